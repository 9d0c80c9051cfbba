"""An answer depends on its request alone: not on others, their order, batches or errors."""

import functools
import random

import pytest
import torch
from tiny_backends import asked, build

from leval_harness.backends import CannotSwapError
from leval_harness.backends.hf import HF
from leval_harness.backends.hf_long import HFLong
from resonance_vllm import hf

pytestmark = pytest.mark.slow

NATIVE = 64
COMMON = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": NATIVE}
LISTS = {"short_factor": [1.0] * 6, "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0]}
METHODS = {
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "dynamic": {"rope_type": "dynamic", **COMMON},
    "resonance_dynamic": {"rope_type": "resonance_dynamic", **COMMON},
    "longrope": {"rope_type": "longrope", **COMMON, **LISTS},
    "resonance_longrope": {"rope_type": "resonance_longrope", **COMMON, **LISTS},
    "yarn": {"rope_type": "yarn", **COMMON},
    "resonance_yarn": {"rope_type": "resonance_yarn", **COMMON},
    **{
        name: {"rope_type": name, **COMMON}
        for kind in ("self_extend", "dual_chunk")
        for name in (kind, f"resonance_{kind}")
    },
}
LAYOUTS = {
    "llama": {},
    "mistral": {"sliding_window": 48},
    "qwen2": {"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}
RNG = random.Random(0)


def tokens(n):
    return [4 + RNG.randrange(100) for _ in range(n)]


DOCUMENT = tokens(50)
TEXTS = [tokens(204), tokens(120), tokens(70), tokens(30), tokens(NATIVE)]
TEXTS += [DOCUMENT + tokens(n) for n in (9, 30, 80, 5)]
SCORED = 8


def model_of(method, layout):
    hf.register()
    # transformers takes the config's length for the trained one where the base follows the length
    positions = NATIVE if "dynamic" in method else 4 * NATIVE
    rope = dict(METHODS[method])
    return build(layout, rope_parameters=rope, max_position_embeddings=positions, **LAYOUTS[layout])


def scores(lm, documents):
    rows = [(("", str(len(text))), text[:-SCORED], text[-SCORED:]) for text in documents]
    return [float(total) for total, _ in lm._loglikelihood_tokens(rows, disable_tqdm=True)]


def answers(lm, documents):
    prompts = [" ".join(f"w{token - 4}" for token in text) for text in documents]
    return lm.generate_until(asked(prompts, until=["w999"], max_gen_toks=6), disable_tqdm=True)


class Broken:
    def add_partial(self, *_):
        raise OSError("disk full")


CASES = [(method, "llama") for method in METHODS]
CASES += [(m, layout) for layout in LAYOUTS if layout != "llama" for m in ("dynamic", "longrope")]
CASES += [("self_extend", "mistral"), ("resonance_yarn", "lfm2")]
QUICK = [("dynamic", "llama"), ("dynamic", "lfm2"), ("longrope", "llama"), ("self_extend", "llama")]
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow(long=True))
    for case in CASES
]


def fresh(kind, method, layout, tokenizer, **options):
    model = model_of(method, layout)
    return kind(model, tokenizer=tokenizer, device="cpu", max_length=256, **options)


@functools.cache
def alone(*case):
    """What each request gets alone, on a fresh `hf`."""
    expected = [scores(fresh(HF, *case), [text])[0] for text in TEXTS]
    return expected, [answers(fresh(HF, *case), [text])[0] for text in TEXTS]


@pytest.mark.parametrize("backend", [HF, HFLong])  # side by side: what is cached is of a case
@pytest.mark.parametrize(("method", "layout"), CASES)
def test_an_answer_depends_on_its_request_alone(tokenizer, method, layout, backend):
    """Each alone on a fresh `hf`, against all in any order on one model."""
    expected, said = alone(method, layout, tokenizer)
    rng = random.Random(method)
    for size in (1, 4):
        lm = fresh(backend, method, layout, tokenizer, batch_size=size)
        for turn in range(2):
            order = list(range(len(TEXTS)))
            rng.shuffle(order)
            documents = [TEXTS[at] for at in order]
            found = scores(lm, documents)
            assert found == pytest.approx([expected[at] for at in order], abs=2e-4), order
            assert answers(lm, documents[: 5 + turn]) == [said[at] for at in order[: 5 + turn]], (
                order
            )
            hook, lm.cache_hook = lm.cache_hook, Broken()
            for ask in (scores, answers):
                with pytest.raises(OSError, match="disk full"):
                    ask(lm, documents)
            lm.cache_hook = hook


@pytest.mark.parametrize("backend", [HF, HFLong])
def test_equal_texts_that_are_cut_elsewhere_are_two_requests(tokenizer, backend):
    """lm-eval's cache of logits takes them for one."""
    lm = backend(build("llama"), tokenizer=tokenizer, device="cpu")
    text = TEXTS[3]
    cuts = [(("", str(at)), text[:at], text[at:]) for at in (5, 12, 20)]
    alone = [lm._loglikelihood_tokens([each], disable_tqdm=True)[0] for each in cuts]
    together = lm._loglikelihood_tokens(cuts, disable_tqdm=True)
    assert [value for value, _ in together] == pytest.approx([v for v, _ in alone], abs=1e-4)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("backend", [pytest.param(HF, marks=pytest.mark.slow(long=True)), HFLong])
def test_settings_are_exchanged_without_a_trace(tokenizer, backend):
    """Each method in turn on one model, among others and errors, against a model of its own."""

    def loaded():
        model = build("llama", max_position_embeddings=NATIVE)
        return backend(model, tokenizer=tokenizer, device="cpu", max_length=256)

    one, methods = loaded(), [*METHODS, None, "yarn", None]
    random.Random(1).shuffle(methods)
    for method in methods:
        alone = loaded()
        rope = None if method is None else METHODS[method]
        for lm in (one, alone):
            lm.set_rope(rope, "float32", 256)
        documents = TEXTS[::2] if method else TEXTS[3:5]
        assert scores(one, documents) == scores(alone, documents), method
        assert answers(one, documents) == answers(alone, documents), method
        if backend is HFLong:
            moved = "self_extend" in str(method) or "dual_chunk" in str(method)
            assert one.reuse.mode == ("copied" if moved else "shared"), method
        with pytest.raises(CannotSwapError):
            one.set_rope({"rope_type": "linear", "rope_theta": 1e4, "factor": 0.0}, "model", 256)
        hook, one.cache_hook = one.cache_hook, Broken()
        with pytest.raises(OSError, match="disk full"):
            answers(one, documents)
        one.cache_hook = hook
