"""transformers and vLLM's engine give the same log-probabilities, in float32.

In bfloat16 rounding hides a forgotten Resonance; in float32 a wrong method differs by orders of
magnitude, which `test_engine_differs_for_another_method` shows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from loaded_hf import load_hf
from naive_maps import MOVING

from leval_harness.backends import CannotSwapError
from resonance_vllm.checkpoint.overrides import vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.core.spec import ROPE_TYPES, RopeType

pytestmark = [pytest.mark.engine("vllm"), pytest.mark.slow(long=True)]

FACTORS = [1.0 + j / 16 for j in range(32)]
LONGROPE = {"factor": 4, "short_factor": FACTORS, "long_factor": [2 * f for f in FACTORS]}
SERVED = 1024
LENGTHS = (200, 300, 1000)  # original length 256: within, across, far beyond


def keys_of(rope_type: str) -> dict[str, Any] | None:
    """Keys for a type with factor 4, None for one whose frequencies differ by length."""
    method = RopeType.parse(rope_type).method
    asked = {
        key: value for key, value in method.example_settings(64).items() if "position" not in key
    }
    if method.depends_on_length or method.name == "longrope" or rope_type in MOVING:
        return None
    return asked | {"factor": 4} if "factor" in asked else asked


FIXED = {name: keys for name in ROPE_TYPES if (keys := keys_of(name)) is not None}
YARN = {"rope_type": "resonance_yarn", "factor": 4}


def by_transformers(model: Any, prompt: list[int]) -> torch.Tensor:
    """Log-probability of each next token."""
    with torch.no_grad():
        logprobs = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(prompt[1:])[:, None])[:, 0]


def by_vllm(engine: Any, prompt: list[int]) -> torch.Tensor:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    (output,) = engine.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    pairs = zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
    return torch.tensor([candidates[token].logprob for token, candidates in pairs])


def largest_difference(model: Any, engine: Any, prompt: list[int]) -> float:
    """Return the largest difference of a log-probability; a mean that differs is not rounding."""
    difference = by_transformers(model, prompt) - by_vllm(engine, prompt)
    assert abs(float(difference.mean())) <= 1e-5 or float(difference.abs().max()) > 1e-3
    return float(difference.abs().max())


def written(path: Path, rope: dict[str, Any], length: int) -> dict[str, Any]:
    positions = PositionConfig.from_checkpoint(str(path))
    return vllm_hf_overrides(positions.complete(rope), positions, length)


def start_engine(path: Path, rope: dict[str, Any], length: int = SERVED, **more: Any) -> Any:
    from vllm import LLM

    arguments = {
        "hf_overrides": written(path, rope, length),
        "max_model_len": length,
        "dtype": "float32",
        "enforce_eager": True,
        "worker_extension_cls": "resonance_vllm.vllm.RopeWorker",
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "max_num_seqs": 2,
        "kv_cache_memory_bytes": 2**30,
    }
    return LLM(str(path), **{**arguments, **more})


def use_rope(engine: Any, path: Path, rope: dict[str, Any], length: int = SERVED) -> None:
    engine.collective_rpc("set_rope", args=(written(path, rope, length)["rope_parameters"],))


def random_prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 512, (length,), generator=generator).tolist()


@pytest.fixture(scope="module")
def backend(tiny_llama: Path, smollm2: Path) -> Iterator[Any]:
    """Our backend as it starts by default: the size of its cache is not given."""
    from leval_harness.backends import backend_class

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
        lm = backend_class("vllm")(
            str(tiny_llama),
            tokenizer=str(smollm2),
            hf_overrides=written(tiny_llama, YARN, SERVED),
            max_model_len=SERVED,
            max_num_seqs=2,
            dtype="float32",
            enforce_eager=True,
        )
    yield lm
    lm.close()


def test_engine_with_overrides_agrees(backend: Any, tiny_llama: Path) -> None:
    """The path of a user: settings through `hf_overrides`, nothing swapped."""
    model = load_hf(tiny_llama, YARN, SERVED)
    for length in LENGTHS:
        assert largest_difference(model, backend.model, random_prompt(length)) <= 1e-3


def test_backend_swaps_methods(backend: Any) -> None:
    text = [504, 253, 260, 105, 48, 314, 253, 260, 99, 7, 12, 504] * 4

    def total(rope: dict[str, Any] | None) -> float:
        backend.set_rope(rope, context_length=60)
        return float(backend._loglikelihood_tokens([(("", ""), text[:4], text[4:])])[0][0])

    yarn = {**YARN, "rope_theta": 1e4, "original_max_position_embeddings": 256}
    shipped, other = total(None), total(yarn)
    assert backend.max_length == 60
    assert abs(shipped - other) > 1e-3
    assert (total(None), total(yarn)) == (shipped, other)
    with pytest.raises(CannotSwapError):
        total({**yarn, **LONGROPE, "rope_type": "longrope"})
    assert (total(yarn), total(None)) == (other, shipped), "after an error that was caught"


@pytest.mark.parametrize("rope_type", FIXED)
def test_engine_agrees_for_fixed_types(backend: Any, tiny_llama: Path, rope_type: str) -> None:
    rope = {"rope_type": rope_type, **FIXED[rope_type]}
    model = load_hf(tiny_llama, rope, SERVED)
    use_rope(backend.model, tiny_llama, rope)
    for length in LENGTHS:
        assert largest_difference(model, backend.model, random_prompt(length)) <= 1e-3


@pytest.mark.parametrize(
    ("rope", "served", "agree", "differ"),
    [
        # vLLM picks the factors by the served length, transformers by that of the prompt
        ({"rope_type": "resonance_longrope", **LONGROPE}, SERVED, (300, 1000), 200),
        # vLLM has the base of the served length throughout, transformers that of the prompt
        ({"rope_type": "dynamic", "factor": 4}, 1000, (1000,), 300),
        ({"rope_type": "resonance_dynamic", "factor": 4}, 1000, (1000,), 300),
    ],
)
def test_engine_agrees_for_dynamic_types_at_served_length(
    backend: Any, tiny_llama: Path, rope: Any, served: int, agree: Any, differ: int
) -> None:
    model = load_hf(tiny_llama, rope, served)
    use_rope(backend.model, tiny_llama, rope, served)
    for length in agree:
        assert largest_difference(model, backend.model, random_prompt(length)) <= 1e-3
    assert largest_difference(model, backend.model, random_prompt(differ)) > 0.01


def test_engine_differs_for_another_method(backend: Any, tiny_llama: Path) -> None:
    model = load_hf(tiny_llama, YARN, SERVED)
    use_rope(backend.model, tiny_llama, {"rope_type": "yarn", "factor": 4})
    for length in LENGTHS:
        assert largest_difference(model, backend.model, random_prompt(length)) > 1e-3


@pytest.mark.parametrize(
    ("more", "family"),
    [
        # torch.compile takes vLLM's native forward pass instead of the kernel
        ({"enforce_eager": False}, None),
        # each process of a tensor-parallel engine loads the plugin and holds what was asked for
        ({"tensor_parallel_size": 2}, None),
        # vLLM runs SmolLM3 through transformers' modules
        ({}, "smollm3"),
    ],
)
def test_engine_agrees_compiled_parallel_and_by_transformers(
    tiny_llama: Path, tmp_path: Path, monkeypatch: Any, more: dict[str, Any], family: str | None
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # small machines lack two cores
    path = tiny_llama
    if family:
        from transformers import AutoConfig, AutoModelForCausalLM

        same = AutoConfig.from_pretrained(tiny_llama).to_dict()
        shared = {key: same[key] for key in same if "size" in key or "num_" in key}
        lengths = {"max_position_embeddings": 256, "initializer_range": 0.15, "pad_token_id": None}
        config = AutoConfig.for_model(family, **shared, **lengths, rope_theta=1e4)
        path = tmp_path
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
    engine = start_engine(path, YARN, **more)
    try:
        assert largest_difference(load_hf(path, YARN, SERVED), engine, random_prompt(1000)) <= 1e-3
        if "tensor_parallel_size" in more:
            linear = {"rope_type": "resonance_linear", "factor": 4}
            use_rope(engine, path, linear)
            assert (
                largest_difference(load_hf(path, linear, SERVED), engine, random_prompt(1000))
                <= 1e-3
            )
    finally:
        engine.llm_engine.engine_core.shutdown()


def test_engine_agrees_for_a_real_model_at_2k_and_9k(smollm2: Path, tmp_path: Path) -> None:
    """On 9,216 tokens of readable English: the bundled sample's documents, one after another."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from leval_tasks.closed.catalog import ENTRIES
    from leval_tasks.common.data import load, resolve_source

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    tokens: list[int] = []
    for task in ENTRIES:
        for record in load(resolve_source("sample"), task).records:
            tokens += tokenizer(record.document).input_ids
    six = AutoModelForCausalLM.from_pretrained(smollm2, num_hidden_layers=6, dtype=torch.float32)
    six.save_pretrained(tmp_path)
    engine = start_engine(tmp_path, {"rope_type": "resonance_yarn", "factor": 2}, 9217)
    try:
        for kind, length in (("resonance_yarn", 2048), ("resonance_yarn", 9216), ("yarn", 9216)):
            rope = {"rope_type": kind, "factor": 2}
            use_rope(engine, tmp_path, rope, 9217)
            assert (
                largest_difference(load_hf(tmp_path, rope, 9217), engine, tokens[:length]) <= 1e-3
            )
    finally:
        engine.llm_engine.engine_core.shutdown()
