"""The real Gemma 3 270M on every backend, with a method and without, on short texts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leval_harness as lh
from resonance_vllm.checkpoint.overrides import vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig, complete_rope

pytestmark = pytest.mark.slow(long=True)

YARN = {"rope_type": "yarn", "factor": 2.0}
BACKENDS = {
    "hf": {},
    "hf-long": {"prefill_chunk": 128},
    "vllm": {"enforce_eager": True, "max_num_seqs": 2, "kv_cache_memory_bytes": 1 << 28},
    "vllm-long": {"enforce_eager": True, "max_num_seqs": 2, "kv_cache_memory_bytes": 1 << 28},
}
LENGTH = 256


def sweep_of(backend: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Documents, perplexity and questions under two methods on a backend."""
    model = {
        "path": "gemma3-270m", "backend": backend, "dtype": "float32", "args": arguments,
        "device": "cpu",
    }  # fmt: skip
    questions = {"data_dir": "sample", "num_docs": 1}
    return {
        "name": backend,
        "models": {"Gemma-3-270M": model},
        "methods": {"rope": {"rope_type": "default"}, "yarn": YARN},
        "baseline": "rope",
        "context_lengths": [LENGTH],
        "tasks": [
            {"tasks": ["effective_context_pysource"], "metadata": {"num_docs": 1, "window": 128}},
            {"tasks": ["ppl_pydocs"], "metadata": {"num_docs": 1, "mode": "truncate"}},
            {"tasks": ["leval_closed_toefl"], "context_lengths": [2 * LENGTH], "limit": 2,
             "metadata": questions, "gen_kwargs": {"max_gen_toks": 4}},
        ],
    }  # fmt: skip


def losses_of(folder: Path) -> dict[str, np.ndarray]:
    """Method -> loss of each token of the document, in nats."""
    losses = {}
    for run in folder.glob("runs/*"):
        method = json.loads((run / "run.json").read_text())["method"]["name"]
        for file in run.glob("losses_*.npy"):
            losses[method] = np.load(file)
    return losses


def answers_of(folder: Path) -> dict[str, list[str]]:
    """Method -> answers to the questions."""
    answers = {}
    for run in folder.glob("runs/*"):
        method = json.loads((run / "run.json").read_text())["method"]["name"]
        for file in run.glob("samples_leval_closed_toefl_*"):
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            answers[method] = [row["resps"][0][0] for row in rows]
    return answers


@pytest.fixture(scope="module")
def expected(gemma3, tmp_path_factory) -> dict[str, Any]:
    """What lm-eval's own transformers backend computes."""
    out = tmp_path_factory.mktemp("hf")
    lh.run(sweep_of("hf", BACKENDS["hf"]), out=out)
    losses = losses_of(out / "hf")
    assert set(losses) == {"reference", "rope", "yarn"}
    assert losses["rope"].mean() < 4, "nats/token of source code after a short context"
    assert not np.allclose(losses["rope"], losses["yarn"], atol=1e-3)
    return {"losses": losses, "answers": answers_of(out / "hf")}


@pytest.mark.parametrize("backend", [
    "hf-long",
    pytest.param("vllm", marks=pytest.mark.engine("vllm")),
    pytest.param("vllm-long", marks=pytest.mark.engine("vllm")),
])  # fmt: skip
def test_backends_read_and_answer_alike(expected, tmp_path, backend):
    frame = lh.run(sweep_of(backend, BACKENDS[backend]), out=tmp_path).to_pandas()
    assert set(frame["method"]) >= {"rope", "yarn"}
    losses = losses_of(tmp_path / backend)
    # vLLM generates a token after a document, which is one token shorter to make room for it.
    fewer = 1 if backend.startswith("vllm") else 0
    for method, values in expected["losses"].items():
        scored = len(values) - fewer
        assert len(losses[method]) == scored
        np.testing.assert_allclose(losses[method], values[:scored], atol=5e-3)
    assert answers_of(tmp_path / backend) == expected["answers"]


@pytest.mark.engine("vllm")
def test_diff_finds_libraries_the_same(gemma3):
    arguments = "dtype=float32,enforce_eager=true,max_model_len=512,kv_cache_memory_bytes=268435456"
    engine = f"vllm:{gemma3},{arguments}"
    options = {"length": 256, "count": 2, "isolated": False}
    found = lh.diff(f"hf:{gemma3},dtype=float32", engine, **options)
    assert (found.verdict, found.findings) == ("same", ())


@pytest.mark.engine("vllm")
def test_server_answers_a_client(gemma3, vllm_server):
    """`vllm serve` with a method of this package on the full-attention layers."""
    from openai import OpenAI
    from transformers import AutoTokenizer

    from resonance_vllm import hf

    prompt = "The capital of France is"
    positions = PositionConfig.from_checkpoint(str(gemma3))
    spec = complete_rope("resonance_yarn:factor=2", positions)
    overrides = vllm_hf_overrides(spec, positions, 512)
    arguments = [
        "--hf-overrides",
        json.dumps(overrides),
        "--max-model-len",
        "512",
        "--dtype",
        "float32",
    ]
    with vllm_server(gemma3, *arguments) as url:
        client = OpenAI(base_url=url, api_key="none", timeout=300, max_retries=0)
        answer = client.completions.create(model="mine", prompt=prompt, max_tokens=4, temperature=0)
    tokenizer = AutoTokenizer.from_pretrained(gemma3)
    model = hf.load(str(gemma3), spec, dtype="float32").eval()
    inputs = tokenizer(prompt, return_tensors="pt")
    tokens = model.generate(**inputs, max_new_tokens=4, do_sample=False)[0]
    expected = tokenizer.decode(tokens[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer.choices[0].text == expected
