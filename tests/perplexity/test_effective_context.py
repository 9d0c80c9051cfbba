"""Effective-context tasks: the losses of every read against a plain transformers loop."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import leval_harness.backends
from leval_tasks.context import LengthLimit
from leval_tasks.effective_context.reads import COLUMNS, windows_of
from leval_tasks.effective_context.task import EffectiveContextTask, complete_settings
from leval_tasks.metadata import EffectiveContextSettings, read_metadata
from resonance_vllm.errors import SettingError

TURNS = [160, 240]
ASKED = {"context_length": TURNS, "short_window": 48, "trained_window": 96, "num_docs": 4}
START = 47


@given(st.integers(2, 300), st.integers(1, 4000), st.integers(2, 900), st.booleans())
def test_each_read_scores_every_token_past_its_first_window_once(short, more, trained, bos):
    n = short + more
    found = windows_of(n, short, trained, "all", bos)
    for read, size in (("full", n + bos), ("short", short), ("trained", trained)):
        windows = [window for name, window in found if name == read]
        scored = [at for w in windows for at in range(w.score_start, w.end)]
        assert scored == list(range((short if read == "full" else size) - bos, n))
        assert all(window.end - window.start + window.bos <= size for window in windows)
        # half of a window is before each token
        assert all(w.score_start - w.start >= size // 2 - bos for w in windows[1:])
    assert found == windows_of(n, short, trained, "full", bos) + windows_of(
        n, short, trained, "windows", bos
    )
    assert {name for name, _ in windows_of(n, short, 0, "windows", bos)} == {"short"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("effective")
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (folder / "govreport.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def run(backend: str, path: Path, folder: Path, **asked: Any) -> tuple[Any, EffectiveContextTask]:
    import lm_eval

    leval_harness.backends.register()
    engine = {"max_model_len": 256, "enforce_eager": True, "max_num_seqs": 4}
    engine |= {"kv_cache_memory_bytes": 2**28, "gpu_memory_utilization": 0.1}
    settings = engine if backend.startswith("vllm") else {"device": "cpu"}
    settings = settings | {"pretrained": str(path), "dtype": "float32"}
    metadata = settings | ASKED | {"corpus": "govreport", "data_dir": str(folder)} | asked
    task = EffectiveContextTask({"task": "effective_context_govreport", "metadata": metadata})
    results = lm_eval.simple_evaluate(
        model=backend, model_args=settings, tasks=[task], batch_size=1, bootstrap_iters=0
    )
    return results, task


@pytest.fixture(scope="module")
def plain(tiny: Path, texts: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """Nats of each token past the first window, one forward pass for every token and read."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    found = {}
    for turn, text in enumerate(texts):
        ids = tokenizer(text, add_special_tokens=False).input_ids[: TURNS[turn % 2] - 1]

        def after(start: int, end: int, ids: list[int] = ids) -> np.ndarray:
            window = torch.tensor([[tokenizer.bos_token_id, *ids[start:end]]])
            with torch.no_grad():
                logits = model(window).logits[0].double().log_softmax(-1)
            return np.array([-logits[at, ids[start + at]].item() for at in range(end - start)])

        reads = {"full": after(0, len(ids))[START:]}
        for read, size in (("short", 48), ("trained", 96)):
            losses = np.full(len(ids), np.nan)
            scored, start = size - 1, size // 2
            while scored < len(ids):
                end = min(start + size - 1, len(ids))
                losses[scored:end] = after(start, end)[scored - start :]
                scored, start = end, start + size // 2
            reads[read] = losses[START:]
        found[f"govreport-{turn}"] = reads
    return found


def check_alike(task: EffectiveContextTask, plain: dict[str, dict[str, np.ndarray]]) -> None:
    assert task.token_losses.keys() == plain.keys()
    for name, reads in plain.items():
        for read, want in reads.items():
            ours = task.token_losses[name][read]
            assert ours.dtype == np.float32
            assert (np.isnan(ours) == np.isnan(want)).all()
            assert np.nanmean(np.abs(ours - want)) <= 1e-4


@pytest.mark.hf
@pytest.mark.parametrize("backend", ["hf", "hf-long"])
def test_every_token_has_the_loss_of_a_plain_loop(backend, tiny, folder, plain):
    results, task = run(backend, tiny, folder)
    check_alike(task, plain)
    gained = tokens = 0.0
    for sample in results["samples"]["effective_context_govreport"]:
        reads = plain[sample["doc"]["document_id"]]
        gains = np.clip(reads["short"] - reads["full"], -1, 1)
        sums = dict(zip(COLUMNS, np.array(sample["filtered_resps"][0], float).T, strict=True))
        assert sums["start"].tolist() == [48]
        assert sums["tokens"].tolist() == [gains.size]
        assert sums["gain"].sum() == pytest.approx(gains.sum(), abs=1e-2)
        assert sums["full"].sum() == pytest.approx(reads["full"].sum(), abs=1e-2)
        assert np.isnan(sums["trained_gain"]).all()  # the block begins before the second window
        gained, tokens = gained + gains.sum(), tokens + gains.size
    values = results["results"]["effective_context_govreport"]
    figures = {key.partition(",")[0] for key in values if "," in key and "_stderr" not in key}
    assert figures == {"loss", "short_loss", "gain"}
    assert values["gain,none"] == pytest.approx(gained / tokens, abs=1e-4)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("backend", ["vllm", "vllm-long"])
def test_vllm_gives_the_same_losses(backend, tiny, folder, plain):
    _, task = run(backend, tiny, folder)
    check_alike(task, plain)


@pytest.mark.hf
def test_the_work_can_be_divided(tiny, folder, plain):
    _, full = run("hf-long", tiny, folder, reads="full")
    assert {tuple(reads) for reads in full.token_losses.values()} == {("full",)}
    results, windows = run("hf-long", tiny, folder, reads="windows")
    joined = {name: {**full.token_losses[name], **windows.token_losses[name]} for name in plain}
    full.token_losses = joined
    check_alike(full, plain)
    samples = results["samples"]["effective_context_govreport"]
    blocks = [each["filtered_resps"][0] for each in samples]
    assert [[row[2:5:2] for row in rows] for rows in blocks] == [[[None, None]]] * 4


@pytest.mark.hf
def test_short_texts_are_read_as_far_as_they_go(tiny, folder, texts):
    results, task = run("hf-long", tiny, folder, context_length=[256], min_tokens=100)
    metadata = results["configs"]["effective_context_govreport"]["metadata"]
    assert metadata["settings"]["short_window"] == 48
    assert metadata["softmax"] == "float32"
    sizes = {each["document_tokens"] for each in task.test_docs()}
    assert max(sizes) == 255
    assert [each.size for each in (r["full"] for r in task.token_losses.values())] == [
        each["document_tokens"] - START for each in task.test_docs()
    ]


LIMIT = LengthLimit("HFLM", 256, "model")


def complete(limit: LengthLimit = LIMIT, **given: Any) -> EffectiveContextSettings:
    settings = read_metadata(EffectiveContextSettings, given)
    return complete_settings(settings, limit, 256, has_bos=True)


def test_without_settings_windows_follow_the_trained_length():
    found = complete()
    assert found.context_length == (256,)
    assert (found.short_window, found.trained_window, found.min_tokens) == (64, 256, 255)
    # vLLM generates a token after each prompt
    found = complete(LengthLimit("VLLM", 256, "model", after_window=1))
    assert (found.context_length, found.trained_window) == ((255,), 255)
    # a cell of full reads may read less than the trained length, and a cell of windows no more
    for reads, read in (("full", 100), ("windows", 256)):
        model = LengthLimit("HFLM", read, "model")
        found = complete(model, context_length=100, short_window=48, reads=reads)
        assert found.trained_window == 256
    model = LengthLimit("HFLM", 128, "model")
    assert complete(model, context_length=200, reads="windows").trained_window == 128
    # windows may be shorter than the texts that they move through
    assert complete(context_length=1000, reads="windows").context_length == (1000,)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"short_window": 160}, "short_window"),
        ({"context_length": [160, 300]}, "context_length"),
        ({"reads": "some"}, "reads"),
        ({"trained_window": -1}, "trained_window"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(wrong, named):
    with pytest.raises((SettingError, ValueError), match=named):
        complete(**ASKED | wrong)
