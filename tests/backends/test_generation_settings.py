"""Settings of a checkpoint's generation config, and stop strings of a model that thinks."""

import copy
import random

import pytest
from tiny_backends import asked, build, words
from transformers import AddedToken, GenerationConfig

from leval_harness.backends.answers import KEPT, NEUTRAL, WITHOUT_EFFECT, neutralize
from leval_harness.backends.hf import HF
from leval_harness.backends.hf_long import HFLong

DOCUMENT = words(random.Random(0), 60)
PROMPTS = [f"{DOCUMENT} w{n}" for n in range(10, 18)]
CHANGING = {
    "repetition_penalty": 3.0,
    "encoder_repetition_penalty": 2.0,
    "no_repeat_ngram_size": 1,
    "encoder_no_repeat_ngram_size": 1,
    "suppress_tokens": [*range(20, 70)],
    "begin_suppress_tokens": [*range(20, 70)],
    "bad_words_ids": [[5]],
    "forced_bos_token_id": 7,
    "forced_eos_token_id": 7,
    "exponential_decay_length_penalty": (1, 1.5),
    "sequence_bias": [[[5], 30.0]],
    "min_length": 40,
    "min_new_tokens": 9,
    "max_new_tokens": 2,
    "max_time": 1e-9,
    "stop_strings": ["w5"],
    "num_beams": 2,
    "guidance_scale": 2.0,
    "cache_implementation": "quantized",
}
"""A value that would change an answer, of keys that `generate` reads in greedy decoding."""
HARMLESS = {
    "output_attentions": False,
    "output_hidden_states": False,
    "output_scores": False,
    "output_logits": False,
    "return_dict_in_generate": False,
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.9,
    "max_length": 77,
    "cache_implementation": "static",
    "cache_config": {"nbits": 4},
    "max_cache_len": 40,
    "low_memory": False,
    "chat_format": "chatml",  # a key of a model's own code
    **NEUTRAL,
}


def answers(backend, tokenizer, **settings):
    """The answers of a model with these generation settings, and the settings set back."""
    model = build("llama")
    for key, value in settings.items():
        setattr(model.generation_config, key, value)
    lm = backend(model, tokenizer=tokenizer, device="cpu")
    return lm.generate_until(asked(PROMPTS, until=[]), disable_tqdm=True), lm.neutralized


def test_neutralize_decides_on_every_key():
    """Every key of transformers is kept, without effect, or set back."""
    model = build("llama")
    keys = vars(GenerationConfig()).keys()
    for key in keys:
        setattr(model.generation_config, key, "written")
    neutralized = neutralize(model)
    assert neutralized.keys() == keys - KEPT - WITHOUT_EFFECT
    for key in keys - KEPT:
        assert getattr(model.generation_config, key) == getattr(GenerationConfig(), key)


@pytest.mark.parametrize("backend", [pytest.param(HF, marks=pytest.mark.slow(long=True)), HFLong])
@pytest.mark.parametrize("key", CHANGING)
def test_generation_config_changes_no_answer(tokenizer, backend, key):
    plain, _ = answers(backend, tokenizer)
    changed, neutralized = answers(backend, tokenizer, **{key: CHANGING[key]})
    assert changed == plain
    assert neutralized == {key: CHANGING[key]}


@pytest.mark.parametrize("backend", [HF, HFLong])
def test_telemetry_records_what_was_neutralized(tokenizer, backend):
    model = build("llama")
    model.generation_config.repetition_penalty = 1.1
    lm = backend(model, tokenizer=tokenizer, device="cpu")
    assert lm.telemetry()["neutralized"] == {"repetition_penalty": 1.1}
    # lm-eval writes it into the results file of a run without a sweep.
    assert lm.get_model_info()["neutralized"] == {"repetition_penalty": 1.1}


@pytest.mark.parametrize("key", HARMLESS)
def test_harmless_key_keeps_batches(tokenizer, key):
    """The forward passes are as many as without the key."""
    passes = []
    for settings in ({}, {key: HARMLESS[key]}):
        model = build("llama")
        for name, value in settings.items():
            setattr(model.generation_config, name, value)
        lm = HFLong(model, tokenizer=tokenizer, device="cpu")
        lm.generate_until(asked(PROMPTS[:1], until=[]), disable_tqdm=True)  # the self-check
        count = [0]
        model.register_forward_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        lm.generate_until(asked(PROMPTS, until=[]), disable_tqdm=True)
        assert lm.neutralized == {}
        passes.append(count[0])
    assert passes[1] == passes[0]
    assert passes[0] < 3 * 12, "questions of one document are answered together"


@pytest.mark.parametrize("backend", [HF, HFLong])
@pytest.mark.parametrize("as_id", [False, True])
def test_stop_strings_count_after_thinking(tokenizer, backend, as_id):
    model = build("llama")
    plain = backend(model, tokenizer=tokenizer, device="cpu")
    requests = asked(PROMPTS, until=[], max_gen_toks=12)
    texts = [text.split() for text in plain.generate_until(requests, disable_tqdm=True)]
    thought = next(text for text in texts if len({*text}) >= 5)
    stop, mark = thought[0], next(word for word in thought[2:] if word != thought[0])
    option = tokenizer.convert_tokens_to_ids(mark) if as_id else mark
    lm = backend(model, tokenizer=tokenizer, device="cpu", think_end_token=option)
    with_stop = lm.generate_until(asked(PROMPTS, until=[stop], max_gen_toks=12), disable_tqdm=True)
    expected = []
    for text in texts:
        answer = " ".join(text).split(mark)[-1].lstrip()
        if as_id and mark in text:  # a whole word, which a longer one may contain
            answer = " ".join(text[len(text) - text[::-1].index(mark) :])
        elif as_id:
            answer = " ".join(text)
        expected.append(answer.split(stop)[0])
    assert with_stop == expected


@pytest.mark.parametrize("backend", [HF, HFLong])
@pytest.mark.parametrize("tokens_of_mark", [1, 2])
@pytest.mark.parametrize("until", [[], ["a stop string"]])
def test_mark_of_special_tokens_ends_thinking(tokenizer, backend, tokens_of_mark, until):
    """Decoding drops such a mark, as those of Cohere, Magistral and gpt-oss."""
    model = build("llama")
    plain = backend(model, tokenizer=tokenizer, device="cpu")
    requests = asked(PROMPTS, until=[], max_gen_toks=12)
    texts = [text.split() for text in plain.generate_until(requests, disable_tqdm=True)]
    thought = next(text for text in texts if len({*text}) >= 5)
    # `w12` and above begin no longer word
    first = next(at for at in range(2, 9) if int(thought[at][1:]) > 11)
    mark = thought[first : first + tokens_of_mark]
    own = copy.deepcopy(tokenizer)
    own.add_tokens([AddedToken(mark[0], special=True, single_word=True)], special_tokens=True)
    lm = backend(model, tokenizer=own, device="cpu", think_end_token=" ".join(mark))
    answers = lm.generate_until(asked(PROMPTS, until=until, max_gen_toks=12), disable_tqdm=True)
    for text, answer in zip(texts, answers, strict=True):
        ends = [at for at in range(len(text)) if text[at : at + tokens_of_mark] == mark]
        kept = text[ends[-1] + tokens_of_mark :] if ends else text
        assert answer.split() == [word for word in kept if word != mark[0]]
