"""The tasks through lm-eval, against a plain transformers loop that shares none of their code."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leval_tasks.common.token_logprobs import SumOfLogprobs
from leval_tasks.perplexity.task import Window, first_not_finite


def per_document(results: dict[str, Any], metric: str, task="ppl_govreport") -> list[list[float]]:
    return [sample[metric] for sample in results["samples"][task]]


def plain_sliding(path: Path, text: str, length: int, stride: int) -> tuple[float, int]:
    """Sliding windows with BOS as the papers' scripts write them: labels of -100, HF's own loss."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[0]
    bos = torch.tensor([tokenizer.bos_token_id])
    total, count, previous = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + length - 1, len(ids))
        window = torch.cat([bos, ids[begin:end]])[None]
        labels = window.clone()
        labels[0, : -(end - previous)] = -100
        with torch.no_grad():
            loss = model(window, labels=labels).loss
        total += loss.item() * (end - previous)
        count += end - previous
        previous = end
        if end == len(ids):
            break
    return total, count


SLIDING = {"context_length": [48, 96], "stride": 16, "mode": "sliding"}


@pytest.fixture(scope="module")
def sliding_long(
    tiny: Path, data_dir: Path, evaluate, few_lm_eval_tasks_of_file: None
) -> dict[str, Any]:
    return evaluate("hf-long", tiny, SLIDING | {"data_dir": str(data_dir)})


def test_sliding_agrees_with_a_plain_loop(tiny, documents, sliding_long):
    for length in SLIDING["context_length"]:
        pairs = per_document(sliding_long, f"token_perplexity@{length}")
        expected = [plain_sliding(tiny, text, length, 16) for text in documents]
        assert [count for _, count in pairs] == [count for _, count in expected]
        for (nll, count), (want, _) in zip(pairs, expected, strict=True):
            assert nll / count == pytest.approx(want / count, abs=1e-4)
            assert nll == pytest.approx(want, rel=1e-5)
        value = sliding_long["results"]["ppl_govreport"][f"token_perplexity@{length},none"]
        want = math.exp(sum(x for x, _ in expected) / sum(n for _, n in expected))
        assert value == pytest.approx(want, rel=1e-5)


def test_logged_samples_hold_no_text(sliding_long, documents):
    metadata = sliding_long["configs"]["ppl_govreport"]["metadata"]
    assert metadata["documents"] == 4
    assert metadata["data"]["source"] == "data_dir"
    digest = metadata["data"]["files"]["govreport.jsonl"]
    assert len(digest) == 64
    alias = sliding_long["results"]["ppl_govreport"]["alias"]
    assert alias == f"ppl_govreport [govreport.jsonl, SHA-256 {digest[:12]}…]"
    logged = json.dumps(sliding_long["samples"]["ppl_govreport"], default=str)
    assert not any(text[:60] in logged for text in documents)
    doc = sliding_long["samples"]["ppl_govreport"][0]["doc"]
    assert doc["document_id"] == doc["cluster"] == "govreport-0"


def test_window_beyond_the_model_is_refused(tiny, data_dir, evaluate):
    metadata = {"context_length": 257, "data_dir": str(data_dir)}
    with pytest.raises(ValueError, match=r"257 is above the 256.*max_length=257.*yarn"):
        evaluate("hf-long", tiny, metadata)
    # the user may ask for bare extrapolation
    assert evaluate("hf-long", tiny, metadata, max_length=300)["results"]


def test_without_bos_the_first_token_is_context_only(without_bos, data_dir, caplog, evaluate):
    metadata = {"context_length": 48, "mode": "truncate", "data_dir": str(data_dir)}
    with caplog.at_level(logging.WARNING):
        results = evaluate("hf-long", without_bos, metadata)
    assert "first token of each document is not scored" in caplog.text
    assert per_document(results, "token_perplexity@48")[0][1] == 47


def test_pydocs_needs_no_data(tiny, evaluate):
    metadata = {"context_length": [32, 64], "num_docs": 3}
    results = evaluate("hf-long", tiny, metadata, task="ppl_pydocs")
    pairs = per_document(results, "token_perplexity@64", "ppl_pydocs")
    assert [n for _, n in pairs] == [63, 63, 63]
    data = results["configs"]["ppl_pydocs"]["metadata"]["data"]
    assert set(data) >= {"python_version", "files"}


@pytest.fixture(scope="module")
def broken(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with weights of NaN for the token of an en dash's last byte."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("broken")
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    last_byte = tokenizer("–", add_special_tokens=False).input_ids[-1]
    with torch.no_grad():
        model.model.embed_tokens.weight[last_byte] = math.nan
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("task", "metadata", "position"),
    [
        ("ppl_jsonl", {"context_length": 48, "mode": "truncate"}, 1),
        ("ppl_jsonl", {"context_length": 32, "mode": "sliding", "stride": 8}, 1),
        ("effective_context_jsonl", {"context_length": 48, "window": 24}, 6),
    ],
)
def test_nan_losses_are_named(task, metadata, position, broken, tmp_path, caplog, evaluate):
    """Attention spreads the NaN to every position of a window: the first scored one is named."""
    fine = "the language reference of python " * 20
    parts = ["the reference of python and ", "– the language reference" + " of python" * 30]
    lines = [json.dumps({"text": text}) for text in (fine, "".join(parts))]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    with caplog.at_level(logging.ERROR):
        results = evaluate(
            "hf-long", broken, {"file": str(tmp_path / "mine.jsonl"), **metadata}, task=task
        )
    config = results["configs"][task]
    assert config["metadata"]["not_finite"] == {"mine-1": position}
    assert config["task_alias"] == "mine"
    assert results["results"][task]["alias"] == "mine"
    assert f"document mine-1 is not a finite number from position {position} on" in caplog.text
    assert "mine-0" not in caplog.text


@pytest.mark.parametrize(
    ("window", "logprobs", "position"),
    [
        (Window(9, 0, 0, 8, bos=True), [-1, -1, math.nan, -1, math.nan, -1, -1, -1], 3),
        (Window(9, 4, 8, 12, bos=True), [-1, -math.inf, -1, -1], 10),
        (Window(8, 0, 1, 8, bos=False), [-1, -1, math.nan, -1, -1, -1, -1], 3),
        (Window(9, 4, 8, 12, bos=True), [], 9),  # of a server: the sum alone
    ],
)
def test_first_not_finite_position(window, logprobs, position):
    total = SumOfLogprobs(math.nan, np.array(logprobs, np.float32))
    assert first_not_finite(window, total) == position
