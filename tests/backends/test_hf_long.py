"""`hf-long` against lm-eval's `hf` and against a plain loop, in float32 on tiny models."""

import random
from types import SimpleNamespace

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tiny_backends import asked, build, words

from leval_harness.backends.hf_long import HFLong
from resonance_vllm.common.errors import RunError, SettingError, UserError

pytestmark = pytest.mark.slow

RNG = random.Random(0)
WINDOW = {"mistral": {"sliding_window": 128}, "gemma2": {"sliding_window": 128}}
"""The self-check reads less than a window."""
DOCUMENTS = [words(RNG, 60), words(RNG, 75)]
PROMPTS = [f"{each} {words(RNG, n)}" for each in DOCUMENTS for n in (3, 9, 5, 1)]
PROMPTS.append(words(RNG, 20))


def model_of(kind, attention="sdpa", **more):
    return build(kind, attention, **WINDOW.get(kind, {}), **more)


def requests(options=None, prompts=PROMPTS):
    return asked(prompts, **(options or {}))


def both(model, tokenizer, **options):
    ours = HFLong(model, tokenizer=tokenizer, device="cpu", **options)
    # lm-eval's logits cache mixes up requests whose text is the same but cut elsewhere.
    return ours, HFLM(model, tokenizer=tokenizer, device="cpu", logits_cache=False)


KINDS = ("llama", "qwen2", "gpt2", "granite", "mistral", "gemma2", "bloom")
WAYS = {(kind, attention) for kind in KINDS for attention in ("sdpa", "eager")}
LONG = pytest.mark.slow(long=True)
CASES = [
    pytest.param(*way, {}, marks=LONG if way[1] == "eager" and way[0] != "bloom" else ())
    for way in sorted(WAYS - {("bloom", "sdpa")})
]
CASES += [("llama", "sdpa", {"prefill_chunk": 7}), ("llama", "sdpa", {"question_batch_size": 1})]


@pytest.mark.parametrize(("kind", "attention", "options"), CASES)
def test_greedy_text_is_that_of_hf(tokenizer, kind, attention, options):
    ours, theirs = both(model_of(kind, attention), tokenizer, **options)
    assert ours.generate_until(requests()) == theirs.generate_until(requests())


def test_a_model_spread_over_devices_answers_as_on_one(tokenizer, tmp_path):
    """Accelerate's hooks bring weights, tokens and states together, here from the disk."""
    model_of("llama").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    whole = HFLong(str(tmp_path), device="cpu", dtype="float32")
    rows = [(None, row[:5], row[5:]) for row in map(whole.tok_encode, PROMPTS)]
    expected = whole.generate_until(requests()), whole._loglikelihood_tokens(rows)
    spread = HFLong(
        str(tmp_path), device="cpu", dtype="float32", parallelize=True,
        max_cpu_memory="60KB", offload_folder=str(tmp_path / "away"),
    )  # fmt: skip
    assert "disk" in spread.model.hf_device_map.values()
    assert (spread.generate_until(requests()), spread._loglikelihood_tokens(rows)) == expected
    assert spread.reuse.mode == "shared"


OPTIONS = [{"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 2}, {"num_beams": 2}]
OPTIONS += [{"until": []}, {"min_new_tokens": 9}, {"suppress_tokens": [5, 7]}]


@pytest.mark.parametrize("options", OPTIONS)
def test_generation_options_mean_what_they_mean_on_hf(tokenizer, options):
    ours, theirs = both(model_of("llama"), tokenizer)
    assert ours.generate_until(requests(options)) == theirs.generate_until(requests(options))


def test_sampling_runs_as_on_hf_and_says_so(tokenizer, caplog):
    ours, theirs = both(model_of("llama"), tokenizer)
    options = {"do_sample": True, "temperature": 0.7}
    torch.manual_seed(3)
    mine = ours.generate_until(requests(options))
    torch.manual_seed(3)
    assert mine == theirs.generate_until(requests(options))
    assert caplog.text.count("requests that share no text: sampling") == 1


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_hf_long_shares_under_length_dependent_rope(tokenizer, rope_type, caplog):
    rope = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 2.0}
    if rope_type == "longrope":
        rope |= {
            "short_factor": [1.0] * 6,
            "long_factor": [3.0] * 6,
            "original_max_position_embeddings": 80,
        }
    limit = 80 if rope_type == "dynamic" else 256
    sizes = {"rope_parameters": rope, "max_position_embeddings": limit}
    ours, _ = both(model_of("llama", **sizes), tokenizer, max_length=256)
    ours.generate_until(requests())
    assert ours.telemetry()["tokens_prefilled"] < sum(len(p.split()) for p in PROMPTS) - 60
    assert "where the RoPE base changes" in caplog.text


def test_each_document_is_prefilled_once_and_counted(tokenizer):
    ours, _ = both(model_of("llama"), tokenizer)
    ours.generate_until(requests({"until": []}))
    told = ours.telemetry()
    ids = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    unique = len({tuple(p[:n]) for p in ids for n in range(1, len(p) + 1)})
    assert unique <= told["tokens_prefilled"] <= unique * 1.02, "the self-check does not count"
    assert told["tokens_generated"] <= 12 * len(PROMPTS)
    assert told["peak_memory_bytes"] > 1 << 20


def test_each_row_stops_at_its_first_stop_string(tokenizer):
    ours, _ = both(model_of("llama"), tokenizer)
    free = [text.split() for text in ours.generate_until(requests({"until": []}, PROMPTS[:4]))]
    stops = [free[0][2], free[1][5]]
    ours.count_anew()
    ours.generate_until(requests({"until": stops}, PROMPTS[:4]))
    stopped = [([word in stops for word in words] + [True]).index(True) + 1 for words in free]
    made = [min(12, each) for each in stopped]  # an end token is one, too
    assert len({*made}) > 1
    assert ours.telemetry()["tokens_generated"] == sum(made)


def loop(model, context, scored):
    """Log-likelihood in the plainest way: one forward, every logit, float64."""
    ids = torch.tensor([context + scored])
    with torch.no_grad():
        logprob = model(ids).logits[0].double().log_softmax(-1)
    where = range(len(context) - 1, len(context) + len(scored) - 1)
    total = sum(logprob[i, ids[0, i + 1]].item() for i in where)
    return total, all(logprob[i].argmax() == ids[0, i + 1] for i in where)


def token_requests(tokenizer):
    base = tokenizer(DOCUMENTS[1])["input_ids"]
    out = [(None, base[:-20], base[-20:]), (None, base[:1], base[1:]), (None, base[:1], base[1:40])]
    out += [(None, base[:n], base[n : n + 10]) for n in (10, 20, 30)]  # nested windows
    out += [(None, base[s : s + 30], base[s + 30 : s + 40]) for s in (0, 10, 20)]  # sliding
    for choice in range(4):  # one context, choices of one and of three tokens
        out += [(None, base[:50], [10 + choice]), (None, base[:50], [10 + choice, 4, 5])]
    return [*out, (None, base[:50], [10])]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "granite", "mistral", "gemma2", "bloom"])
@pytest.mark.parametrize("options", [{}, {"prefill_chunk": 7}])
def test_loglikelihoods_are_those_of_a_plain_loop(tokenizer, kind, options):
    model = model_of(kind, "eager")
    ours, theirs = both(model, tokenizer, **options)
    rows = token_requests(tokenizer)
    got = ours._loglikelihood_tokens(rows, disable_tqdm=True)
    hf = theirs._loglikelihood_tokens(rows, disable_tqdm=True)
    for (_, context, scored), mine, other in zip(rows, got, hf, strict=True):
        total, greedy = loop(model, context, scored)
        assert mine[0] == pytest.approx(total, abs=3e-4, rel=3e-6)
        assert mine[0] == pytest.approx(other[0], abs=3e-4, rel=3e-6)
        assert mine[1] == greedy == other[1]


def test_shared_contexts_are_computed_once(tokenizer):
    ours, _ = both(model_of("llama"), tokenizer)
    base = tokenizer(DOCUMENTS[0])["input_ids"]
    ours._loglikelihood_tokens([(None, base, [n]) for n in range(10, 20)])
    again = 9  # the last token of the context, for each further choice
    assert ours.telemetry()["tokens_prefilled"] == len(base) + again


def test_rolling_windows_agree_with_hf(tokenizer):
    ours, theirs = both(model_of("llama"), tokenizer)
    rolling = [Instance("loglikelihood_rolling", {}, (text,), 0, ("t", 0, 1)) for text in DOCUMENTS]
    assert ours.loglikelihood_rolling(rolling) == pytest.approx(
        theirs.loglikelihood_rolling(rolling), abs=1e-4
    )


def test_softmax_is_float32_whatever_the_models_dtype(tokenizer):
    model = model_of("llama").to(torch.bfloat16)
    ours, _ = both(model, tokenizer)
    base = tokenizer(DOCUMENTS[0])["input_ids"]
    got = ours._loglikelihood_tokens([(None, base[:1], base[1:])])[0][0]
    assert got == pytest.approx(loop(model, base[:1], base[1:])[0], rel=1e-6)


@pytest.mark.parametrize("kind", ["llama", "granite", "gemma2"])
def test_teacher_forced_gives_every_position(tokenizer, kind):
    model = model_of(kind, "eager")
    ours, _ = both(model, tokenizer)
    rows = [tokenizer(text)["input_ids"] for text in (*DOCUMENTS, words(RNG, 2))]
    got = ours.teacher_forced([SimpleNamespace(args=(row,)) for row in rows])
    for row, (correct, logprob) in zip(rows, got, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([row])).logits[0].log_softmax(-1)
        goal = torch.tensor(row[1:])
        chosen = expected[:-1].gather(-1, goal[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logprob), chosen, atol=1e-5, rtol=1e-5)
        assert correct == (expected[:-1].argmax(-1) == goal).tolist()


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
ADVICE = (
    r"2 GiB more; memory ran out in the forward pass over tokens 0 to 24; "
    r"set prefill_chunk=12 or less \(now 24\)"
)


@pytest.mark.parametrize("call", ["generate_until", "_loglikelihood_tokens"])
@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [(FULL, RunError, ADVICE), (RuntimeError("broken kernel"), RuntimeError, "^broken kernel$")],
)
def test_out_of_memory_says_which_settings_help(tokenizer, call, error, kind, said):
    model = model_of("llama")
    ours = HFLong(model, tokenizer=tokenizer, device="cpu", prefill_chunk=24)
    _ = ours.reuse
    real = model.model.forward

    def scarce(*args, **kwargs):
        if kwargs["input_ids"].numel() > 11:
            raise error
        return real(*args, **kwargs)

    model.model.forward = scarce
    of_documents = requests(prompts=PROMPTS[:-1])  # the last prompt shares nothing
    rows = {"generate_until": of_documents}.get(call, token_requests(tokenizer))
    with pytest.raises(kind, match=said):
        getattr(ours, call)(rows)
    assert model.config._attn_implementation == "sdpa"


def test_arguments_are_those_of_hf_and_of_transformers(tokenizer, tmp_path):
    model_of("llama").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="unexpected keyword argument 'prefil_chunk'"):
        HFLong(str(tmp_path), device="cpu", prefil_chunk=1)
    with pytest.raises(SettingError, match="rope_precision: 'f16' is not allowed; "):
        HFLong(model_of("llama"), tokenizer=tokenizer, device="cpu", rope_precision="f16")
    taken = {"max_position_embeddings": 99, "attn_implementation": "eager", "dtype": "float32"}
    assert HFLong(str(tmp_path), device="cpu", **taken).max_length == 99


def test_requests_that_cannot_be_asked_are_named(tokenizer):
    ours = HFLong(model_of("llama"), tokenizer=tokenizer, device="cpu", max_length=20)
    with pytest.raises(AssertionError, match=r"\(30\) must be less than model's maximum sequence"):
        ours.generate_until(requests({"max_gen_toks": 30}))
    for context, scored in (0, 1), (1, 25), (1, 0):
        said = f"{scored} scored tokens after {context} of context; allowed: 1 to max_length=20"
        with pytest.raises(ValueError, match=said):
            ours._loglikelihood_tokens([(None, [1] * context, [1] * scored)])


def test_prompts_are_cut_as_hf_cuts_them(tokenizer):
    model = model_of("llama")
    ours = HFLong(model, tokenizer=tokenizer, device="cpu", max_length=50)
    theirs = HFLM(model, tokenizer=tokenizer, device="cpu", max_length=50, logits_cache=False)
    assert ours.generate_until(requests()) == theirs.generate_until(requests())
    base = tokenizer(DOCUMENTS[0])["input_ids"]
    rows = [(None, base[:55], base[55:])]
    assert ours._loglikelihood_tokens(rows)[0][0] == pytest.approx(
        theirs._loglikelihood_tokens(rows)[0][0], abs=1e-4
    )


def test_rope_precision_is_applied(tokenizer):
    model = model_of("llama").to(torch.bfloat16)
    base = tokenizer(DOCUMENTS[0])["input_ids"]
    rows = [(None, base[:1], base[1:])]
    plain = HFLong(model, tokenizer=tokenizer, device="cpu")._loglikelihood_tokens(rows)
    ours = HFLong(model, tokenizer=tokenizer, device="cpu", rope_precision="float32")
    assert ours._loglikelihood_tokens(rows) != plain
    assert model.rope_precision_used == "float32"
    assert ours.reuse.mode == "shared"


@pytest.mark.parametrize("kind", ["generate_until", "loglikelihood"])
def test_hf_long_caches_answers_and_survives_an_error(tokenizer, kind):
    """lm-eval's response cache on a disk that is full after two answers."""
    model, kept = model_of("llama"), []
    ours = HFLong(model, tokenizer=tokenizer, device="cpu", question_batch_size=1)
    scored = [((str(i),), tokenizer(PROMPTS[0])["input_ids"], [i + 4]) for i in range(4)]
    ask, rows, keys = {
        "generate_until": (ours.generate_until, requests(), [r.args for r in requests()]),
        "loglikelihood": (ours._loglikelihood_tokens, scored, [key for key, *_ in scored]),
    }[kind]
    expected = dict(zip(map(str, keys), ask(rows), strict=True))

    def add_partial(*entry):
        if len(kept) == 2:
            raise OSError("disk full")
        kept.append(entry)

    ours.cache_hook = SimpleNamespace(add_partial=add_partial)
    with pytest.raises(OSError, match="disk full") as caught:
        ask(rows)
    assert caught.traceback, "frames are still held"
    assert model.config._attn_implementation == "sdpa"
    assert torch.is_grad_enabled()
    assert kept == [(kind, key, expected[str(key)]) for _, key, _ in kept]
