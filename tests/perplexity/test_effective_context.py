"""Effective-context tasks: the losses of every read against a plain transformers loop."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.registry import get_model

from leval_tasks.common.metadata import EffectiveContextSettings, read_metadata, scored_from
from leval_tasks.common.model import LengthLimit
from leval_tasks.common.token_logprobs import check_reports_tokens, scored_requests, scoring_of
from leval_tasks.effective_context.task import (
    EffectiveContextTask,
    complete_settings,
    moving_window,
    windows_of,
)
from resonance_vllm.common.errors import SettingError

ASKED = {"context_length": 240, "window": 96, "num_docs": 4, "corpus": "govreport"}
START = 24 - 1  # a quarter of the window, without BOS
Run = Callable[..., tuple[Any, EffectiveContextTask]]


@given(st.integers(2, 400), st.integers(1, 4000), st.booleans())
def test_windows_of_score_every_token_once(window, more, bos):
    start = max(window // 4, 2) - bos
    n = start + more
    found = windows_of(n, start, window, "all", bos)
    for read, size in (("full", n + bos), ("reference", window)):
        windows = [each for name, each in found if name == read]
        assert [at for w in windows for at in range(w.score_start, w.end)] == list(range(start, n))
        assert all(each.end - each.start + each.bos <= size for each in windows)
        # half of a window is before each token past the first one
        assert all(w.score_start - w.start >= window // 2 - bos for w in windows[1:])
    apart = [windows_of(n, start, window, reads, bos) for reads in ("full", "reference")]
    assert found == apart[0] + apart[1]


@pytest.fixture(scope="module")
def run(tiny: Path, data_dir: Path, evaluate: Any) -> Run:
    def read(backend: str, **asked: Any) -> tuple[Any, EffectiveContextTask]:
        metadata = {"pretrained": str(tiny), "data_dir": str(data_dir)} | ASKED | asked
        task = EffectiveContextTask({"task": "effective_context_govreport", "metadata": metadata})
        return evaluate(backend, tiny, {}, task), task

    return read


@pytest.fixture(scope="module")
def plain(tiny: Path, documents: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """Nats of each scored token by read, from plain forward passes."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    found = {}
    for line, text in zip((0, 2, 5, 6), documents, strict=True):
        ids = tokenizer(text, add_special_tokens=False).input_ids[:239]

        def after(start: int, end: int, ids: list[int] = ids) -> np.ndarray:
            window = torch.tensor([[tokenizer.bos_token_id, *ids[start:end]]])
            with torch.no_grad():
                logits = model(window).logits[0].double().log_softmax(-1)
            return np.array([-logits[at, ids[start + at]].item() for at in range(end - start)])

        losses = np.full(len(ids), np.nan)
        scored, start = START, 0
        while scored < len(ids):
            end = min(start + 95, len(ids))
            losses[scored:end] = after(start, end)[scored - start :]
            scored, start = end, start + 48
        found[f"govreport-{line}"] = {
            "full": after(0, len(ids))[START:],
            "reference": losses[START:],
        }
    return found


def check_alike(task: EffectiveContextTask, plain: dict[str, dict[str, np.ndarray]]) -> None:
    assert task.token_losses.keys() == plain.keys()
    for name, reads in plain.items():
        for read, want in reads.items():
            ours = task.token_losses[name][read]
            assert ours.dtype == np.float32
            assert np.mean(np.abs(ours - want)) <= 1e-4


@pytest.mark.parametrize("backend", ["hf", "hf-long"])
def test_every_token_has_the_loss_of_a_plain_loop(backend, run, plain):
    results, task = run(backend)
    check_alike(task, plain)
    lost = tokens = 0.0
    for sample in results["samples"]["effective_context_govreport"]:
        reads = plain[sample["doc"]["document_id"]]
        differences = np.clip(reads["full"] - reads["reference"], -1, 1)
        start, sizes, *sums = np.array(sample["filtered_resps"][0], float).T
        edges = start.astype(int) - 24
        assert edges.tolist() == [0, 64, 128, 192][: edges.size]  # the last one takes what remains
        assert sizes.sum() == differences.size
        for found, values in zip(
            sums, (reads["full"], reads["reference"], differences), strict=True
        ):
            assert found == pytest.approx(np.add.reduceat(values, edges), abs=1e-2)
        lost, tokens = lost + differences.sum(), tokens + differences.size
    values = results["results"]["effective_context_govreport"]
    figures = {key.partition(",")[0] for key in values if "," in key and "_stderr" not in key}
    assert figures == {"loss", "reference_loss", "loss_difference"}
    assert values["loss_difference,none"] == pytest.approx(lost / tokens, abs=1e-4)


@pytest.mark.engine("vllm")
@pytest.mark.slow
@pytest.mark.slow(long=True)
@pytest.mark.parametrize("backend", ["vllm", "vllm-long"])
def test_vllm_gives_the_same_losses(backend, run, plain):
    _, task = run(backend)
    check_alike(task, plain)


def test_the_work_can_be_divided(run, plain):
    _, full = run("hf-long", reads="full")
    assert {tuple(reads) for reads in full.token_losses.values()} == {("full",)}
    results, windows = run("hf-long", reads="reference")
    full.token_losses = {n: {**full.token_losses[n], **windows.token_losses[n]} for n in plain}
    check_alike(full, plain)
    samples = results["samples"]["effective_context_govreport"]
    rows = [row for each in samples for row in each["filtered_resps"][0]]
    assert {(row[2], row[4]) for row in rows} == {(None, None)}
    assert all(row[3] > 0 for row in rows)


def test_a_text_within_the_window_is_read_once(run):
    _, task = run("hf-long", window=240)
    assert {tuple(reads) for reads in task.token_losses.values()} == {("full",)}


def test_the_softmax_of_a_bfloat16_model_is_float32(tiny):
    import torch

    lm = get_model("hf")(str(tiny), device="cpu", dtype="bfloat16")
    context, scored = list(range(2, 42)), list(range(50, 150))
    with torch.no_grad():
        logits = lm.model(torch.tensor([context + scored])).logits[0].double().log_softmax(-1)
    want = [logits[at - 1, each] for at, each in enumerate(scored, len(context))]
    (found,) = scored_requests(lm, [SimpleNamespace(token_parts=(None, context, scored))])
    np.testing.assert_allclose(found.logprobs, want, atol=1e-5)
    assert scored_requests(lm, []) == []


def test_a_backend_that_does_not_report_tokens_is_refused():
    with pytest.raises(SettingError, match=r"DummyLM does not .*allowed: hf, hf-long, vllm"):
        check_reports_tokens(scoring_of(get_model("dummy")()), "DummyLM")


@pytest.mark.parametrize("task", ["ppl_govreport", "effective_context_govreport"])
def test_chat_endpoints_are_refused_before_a_request(evaluate, tiny, data_dir, task):
    metadata = {"data_dir": str(data_dir), "context_length": 64, "window": 32, "stride": 16}
    address = "http://127.0.0.1:9/v1/chat/completions"  # nothing answers there
    with pytest.raises(SettingError, match=r"LocalChatCompletion .*chat endpoints do not"):
        evaluate(
            "local-chat-completions", tiny, metadata, task, base_url=address, tokenizer=str(tiny)
        )


LIMIT = LengthLimit("HFLM", 256)


def complete(limit: LengthLimit = LIMIT, **given: Any) -> EffectiveContextSettings:
    settings = read_metadata(EffectiveContextSettings, given)
    return complete_settings(settings, limit, given.pop("trained", 256))


def test_window_is_the_native_length_on_every_backend():
    found = complete()
    assert (found.context_length, found.window) == ((256,), 256)
    vllm = LengthLimit("VLLM", 256, after_window=1)  # it generates a token after a prompt
    assert (complete(vllm).context_length, complete(vllm).window) == ((255,), 256)
    assert (moving_window(256, LIMIT), moving_window(256, vllm)) == (256, 255)
    assert (scored_from(256, 1000), scored_from(256, 100)) == (64, 25)  # within, of the text
    # windows may be shorter than the documents that they move through
    assert complete(context_length=1000, reads="reference").context_length == (1000,)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"context_length": 2, "window": 4}, "context_length: 2 .*above 2"),
        ({"context_length": [160, 240]}, "context_length: .*one length"),
        ({"context_length": 300}, "context_length: 300 is above"),
        ({"reads": "reference", "window": 400, "context_length": 1000}, "context_length: 400"),
        ({"reads": "some"}, "reads"),
        ({"window": 0}, "window"),
        ({"window": None, "trained": None}, "window.*states no native context length"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(wrong, named):
    with pytest.raises((SettingError, ValueError), match=named):
        complete(**ASKED | wrong)
