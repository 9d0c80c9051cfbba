"""How answers ended, against the tokens that a plain greedy loop gives."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tiny_backends import asked, build

from leval_harness.backends.answer_limits import AnswerEnds, record_answer_ends
from leval_harness.backends.hf import HF
from leval_harness.backends.hf_long import HFLong
from leval_harness.sweep.evaluation import mark_answer_ends

PROMPTS = [f"w{a} w{3 * a % 97} w{7 * a % 89}" for a in range(1, 25)]
LIMIT = 6


@torch.no_grad()
def greedy(model, tokenizer, prompt):
    """The first `LIMIT` tokens, up to an end token, one forward pass each."""
    ids, new = tokenizer.encode(prompt), []
    while len(new) < LIMIT and 2 not in new:
        new.append(int(model(torch.tensor([ids + new])).logits[0, -1].argmax()))
    return new


@pytest.mark.parametrize("backend", [HF, HFLong])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_an_answer_reached_the_limit_where_nothing_else_ended_it(tokenizer, backend, kind):
    model = build(kind)
    documents = {prompt: greedy(model, tokenizer, prompt) for prompt in PROMPTS}
    stop = tokenizer.decode(documents[PROMPTS[0]][2])
    lm = backend(model, tokenizer=tokenizer, device="cpu", batch_size=5)
    ends = record_answer_ends(lm)
    answers = lm.generate_until(asked(PROMPTS, until=[stop], max_gen_toks=LIMIT), disable_tqdm=True)
    rows = list(map(row, PROMPTS, answers))
    mark_answer_ends(ends.of, {"task": rows})
    expected = [
        float(2 not in new and stop not in tokenizer.decode(new)) for new in documents.values()
    ]
    assert [row["reached_limit"] for row in rows] == expected
    assert {0.0, 1.0} <= {*expected}
    assert not any(row["thinking_unfinished"] for row in rows)
    assert not ends.pending


@pytest.mark.engine("vllm")
def test_the_engine_of_vllm_says_why_an_answer_ended():
    from leval_harness.backends.vllm_long import RopeVLLM

    reasons = [SimpleNamespace(finish_reason=reason) for reason in ("length", "stop", "length")]
    outputs = [SimpleNamespace(outputs=[each]) for each in reasons]
    tell = partial(RopeVLLM.ends_of_batch, None)
    lm = SimpleNamespace(
        _model_generate=lambda **given: outputs, cache_hook=None, ends_of_batch=tell
    )
    ends = record_answer_ends(lm)
    lm._model_generate(requests=[], generate=False)
    assert not ends.pending, "documents that are scored have no end"
    for _ in range(2):  # what lm-eval made no documents of is not the next batch's
        lm._model_generate(requests=[], generate=True)
    assert list(ends.pending) == [True, False, True]
    assert record_answer_ends(SimpleNamespace()) is None, "a class that cannot tell is left alone"


def row(prompt, *answers, **more):
    return {"arguments": [(prompt, {"until": []})], "resps": [list(answers)], **more}


def test_what_is_not_known_is_not_written():
    rows = [row("Q<think>", "hm"), row("Q", "A"), row("Q", "<think>hm"), row("Q", "x</think>A")]
    rows += [row("Q", "[THINK]hm"), row("Q", "◁think▷hm"), row("Q", "x</think>A\n<think>hm")]
    rows.append(row("Q", "<think>hm", filtered_resps=[["A", "right"]]))  # a task's own mark
    scored = [{"arguments": [("Q", " A")], "resps": [[-1.0]]}]
    mark_answer_ends(lambda *_: [], {"gsm8k": rows, "scored": scored})
    assert [each["thinking_unfinished"] for each in rows[:-1]] == [1, 0, 1, 0, 1, 1, 1]
    assert "thinking_unfinished" not in rows[-1]
    assert not any("reached_limit" in each for each in rows)


def test_answer_limits_share_of_a_question():
    ends = AnswerEnds()
    for answer, at_limit in (("A", True), ("A", False), ("B", True), ("B", True)):
        ends.known.setdefault(("Q", answer), []).append(at_limit)
    rows = [row("Q", "A", "B"), row("Q", "A", "C"), row("P", "A")]
    mark_answer_ends(ends.of, {"gsm8k": rows})
    assert [each.get("reached_limit") for each in rows] == [0.75, None, None], "all or none"
