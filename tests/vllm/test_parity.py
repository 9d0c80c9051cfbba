"""transformers and vLLM's engine give the same log-probabilities, in float32.

In bfloat16 rounding hides a forgotten Resonance; in float32 a wrong rope stands out by orders of
magnitude, which `test_plain_yarn_in_its_place_is_noticed` shows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from naive_maps import MOVING

from resonance_vllm import config as settings
from resonance_vllm.config import ModelPositions
from resonance_vllm.core.spec import ROPE_TYPES, RopeType

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

FACTORS = [1.0 + j / 16 for j in range(32)]
LONGROPE = {"factor": 4, "short_factor": FACTORS, "long_factor": [2 * f for f in FACTORS]}


def keys_of(rope_type: str) -> dict[str, Any] | None:
    """Keys for a type with factor 4, None for one whose frequencies differ by length."""
    method = RopeType.read(rope_type).method
    asked = {key: value for key, value in method.example(64).items() if "position" not in key}
    if method.follows_length or method.name == "longrope" or rope_type in MOVING:
        return None
    return asked | {"factor": 4} if "factor" in asked else asked


FIXED = {name: keys for name in ROPE_TYPES if (keys := keys_of(name)) is not None}
SERVED = 1024
# Original length 256: within, across, far beyond.
LENGTHS = (200, 300, 1000)


@dataclass
class Scored:
    """Log-probability of each next token, and what the model thought likeliest there."""

    logprobs: list[float]
    top: list[int]
    margin: list[float]


def score_hf(model: Any, prompt: list[int]) -> Scored:
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, :-1]
    logprobs = logits.log_softmax(-1)
    best = logprobs.topk(2)
    target = torch.tensor(prompt[1:]).unsqueeze(-1)
    return Scored(
        logprobs.gather(-1, target).squeeze(-1).tolist(),
        best.indices[:, 0].tolist(),
        (best.values[:, 0] - best.values[:, 1]).tolist(),
    )


def score_vllm(engine: Any, prompt: list[int]) -> Scored:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, detokenize=False)
    (output,) = engine.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    scored = Scored([], [], [])
    for token, candidates in zip(prompt[1:], output.prompt_logprobs[1:], strict=True):
        scored.logprobs.append(candidates[token].logprob)
        scored.top.append(next(t for t, c in candidates.items() if c.rank == 1))
    return scored


def differences(ours: Scored, theirs: Scored) -> tuple[float, float, int]:
    """Largest difference of a log-probability, of the mean, and clear top-1 disagreements."""
    pairs = list(zip(ours.logprobs, theirs.logprobs, strict=True))
    largest = max(abs(a - b) for a, b in pairs)
    mean = abs(sum(a - b for a, b in pairs) / len(pairs))
    clear = [i for i, margin in enumerate(ours.margin) if margin > 1e-3]
    return largest, mean, sum(ours.top[i] != theirs.top[i] for i in clear)


def assert_same(ours: Scored, theirs: Scored) -> None:
    largest, mean, disagreements = differences(ours, theirs)
    assert largest <= 1e-3
    assert mean <= 1e-5
    assert disagreements == 0


def load_hf(path: Path, rope: dict[str, Any], length: int) -> Any:
    import torch

    from resonance_vllm import hf

    spec = ModelPositions.of_checkpoint(str(path)).complete(rope)
    return hf.load(str(path), spec, precision="float32", limit=length, dtype=torch.float32).eval()


def start_engine(
    path: Path,
    rope: dict[str, Any],
    length: int,
    eager: bool = True,
    workers: int = 1,
) -> Any:
    from vllm import LLM

    positions = ModelPositions.of_checkpoint(str(path))
    overrides = settings.vllm_hf_overrides(positions.complete(rope), positions, length)
    return LLM(
        str(path),
        hf_overrides=overrides,
        max_model_len=length,
        dtype="float32",
        enforce_eager=eager,
        worker_extension_cls="resonance_vllm.vllm.RopeWorker",
        tensor_parallel_size=workers,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_num_seqs=2,
        kv_cache_memory_bytes=2**30,
    )


def use_rope(engine: Any, path: Path, rope: dict[str, Any], length: int) -> None:
    positions = ModelPositions.of_checkpoint(str(path))
    written = settings.vllm_hf_overrides(positions.complete(rope), positions, length)
    engine.collective_rpc("set_rope", args=(written["rope_parameters"],))


def random_prompt(length: int, vocabulary: int = 512) -> list[int]:
    import torch

    return torch.randint(
        0, vocabulary, (length,), generator=torch.Generator().manual_seed(7)
    ).tolist()


@pytest.fixture(scope="module")
def tiny_engine(tiny_llama: Path) -> Iterator[Any]:
    engine = start_engine(tiny_llama, {"rope_type": "resonance_yarn", "factor": 4}, SERVED)
    yield engine
    engine.llm_engine.engine_core.shutdown()


def test_engine_as_started(tiny_engine: Any, tiny_llama: Path) -> None:
    """The path of a user: settings through `hf_overrides`, nothing swapped."""
    model = load_hf(tiny_llama, {"rope_type": "resonance_yarn", "factor": 4}, SERVED)
    for length in LENGTHS:
        prompt = random_prompt(length)
        assert_same(score_hf(model, prompt), score_vllm(tiny_engine, prompt))


@pytest.mark.parametrize("rope_type", FIXED)
def test_fixed_types_agree(tiny_engine: Any, tiny_llama: Path, rope_type: str) -> None:
    rope = {"rope_type": rope_type, **FIXED[rope_type]}
    model = load_hf(tiny_llama, rope, SERVED)
    use_rope(tiny_engine, tiny_llama, rope, SERVED)
    for length in LENGTHS:
        prompt = random_prompt(length)
        assert_same(score_hf(model, prompt), score_vllm(tiny_engine, prompt))


def test_longrope_agrees_past_the_original_length_only(tiny_engine: Any, tiny_llama: Path) -> None:
    """vLLM picks the factors by the served length, transformers by that of the prompt."""
    rope = {"rope_type": "resonance_longrope", **LONGROPE}
    model = load_hf(tiny_llama, rope, SERVED)
    use_rope(tiny_engine, tiny_llama, rope, SERVED)
    for length in (300, 1000):
        prompt = random_prompt(length)
        assert_same(score_hf(model, prompt), score_vllm(tiny_engine, prompt))
    prompt = random_prompt(200)
    assert differences(score_hf(model, prompt), score_vllm(tiny_engine, prompt))[0] > 0.01


@pytest.mark.parametrize("rope_type", ["dynamic", "resonance_dynamic"])
def test_dynamic_agrees_at_the_served_length_only(
    tiny_engine: Any, tiny_llama: Path, rope_type: str
) -> None:
    """vLLM has the base of the served length throughout, transformers that of the prompt."""
    rope = {"rope_type": rope_type, "factor": 4}
    served = 1000
    model = load_hf(tiny_llama, rope, served)
    use_rope(tiny_engine, tiny_llama, rope, served)
    prompt = random_prompt(served)
    assert_same(score_hf(model, prompt), score_vllm(tiny_engine, prompt))
    prompt = random_prompt(300)
    model = load_hf(tiny_llama, rope, served)
    assert differences(score_hf(model, prompt), score_vllm(tiny_engine, prompt))[0] > 0.01


def test_compiled_model_agrees(tiny_llama: Path) -> None:
    """torch.compile takes vLLM's native forward pass instead of the kernel."""
    rope = {"rope_type": "resonance_yarn", "factor": 4}
    engine = start_engine(tiny_llama, rope, SERVED, eager=False)
    try:
        model = load_hf(tiny_llama, rope, SERVED)
        prompt = random_prompt(1000)
        assert_same(score_hf(model, prompt), score_vllm(engine, prompt))
    finally:
        engine.llm_engine.engine_core.shutdown()


@pytest.fixture
def _any_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM binds each worker to cores of its own, which small machines lack."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")


@pytest.mark.usefixtures("_any_core")
@pytest.mark.long
def test_two_workers_that_share_a_model_agree(tiny_llama: Path) -> None:
    """Tensor parallel: each process loads the plugin and holds what was asked for."""
    rope = {"rope_type": "resonance_yarn", "factor": 4}
    engine = start_engine(tiny_llama, rope, SERVED, workers=2)
    try:
        prompt = random_prompt(1000)
        assert_same(score_hf(load_hf(tiny_llama, rope, SERVED), prompt), score_vllm(engine, prompt))
        linear = {"rope_type": "resonance_linear", "factor": 4}
        use_rope(engine, tiny_llama, linear, SERVED)
        model = load_hf(tiny_llama, linear, SERVED)
        assert_same(score_hf(model, prompt), score_vllm(engine, prompt))
    finally:
        engine.llm_engine.engine_core.shutdown()


def test_plain_yarn_in_its_place_is_noticed(tiny_engine: Any, tiny_llama: Path) -> None:
    model = load_hf(tiny_llama, {"rope_type": "resonance_yarn", "factor": 4}, SERVED)
    use_rope(tiny_engine, tiny_llama, {"rope_type": "yarn", "factor": 4}, SERVED)
    for length in LENGTHS:
        prompt = random_prompt(length)
        with pytest.raises(AssertionError):
            assert_same(score_hf(model, prompt), score_vllm(tiny_engine, prompt))


@pytest.fixture(scope="module")
def long_text(smollm2: Path) -> list[int]:
    """9216 tokens of readable English: the bundled sample's documents, one after another."""
    from transformers import AutoTokenizer

    from leval_tasks.data import SAMPLE, parse

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    tokens: list[int] = []
    for name in ("coursera.jsonl", "quality.jsonl", "sci_fi.jsonl"):
        for record in parse((SAMPLE / name).read_bytes(), name):
            tokens += tokenizer(record.document).input_ids
    assert len(tokens) >= 9216
    return tokens[:9216]


@pytest.fixture(scope="module")
def real_engine(smollm2: Path) -> Iterator[Any]:
    engine = start_engine(smollm2, {"rope_type": "resonance_yarn", "factor": 2}, 9217)
    yield engine
    engine.llm_engine.engine_core.shutdown()


@pytest.mark.long
@pytest.mark.parametrize(
    ("rope_type", "length"),
    [(kind, n) for kind in ("resonance_yarn", "yarn", "default") for n in (2048, 9216)],
)
def test_real_model_agrees_at_2k_and_9k(
    real_engine: Any, smollm2: Path, long_text: list[int], rope_type: str, length: int
) -> None:
    rope: dict[str, Any] = {"rope_type": rope_type}
    if rope_type != "default":
        rope["factor"] = 2
    model = load_hf(smollm2, rope, 9217)
    if (rope_type, length) != ("resonance_yarn", 2048):  # as started
        use_rope(real_engine, smollm2, rope, 9217)
    prompt = long_text[:length]
    assert_same(score_hf(model, prompt), score_vllm(real_engine, prompt))
