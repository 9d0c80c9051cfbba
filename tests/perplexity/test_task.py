"""The tasks through lm-eval, against a plain transformers loop that shares none of their code."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hf


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
def sliding_long(tiny: Path, data_dir: Path, evaluate) -> dict[str, Any]:
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


def test_what_is_logged_is_small_and_says_what_was_read(sliding_long, documents):
    metadata = sliding_long["configs"]["ppl_govreport"]["metadata"]
    assert metadata["documents"] == 4
    assert metadata["data"]["source"] == "data_dir"
    assert len(metadata["data"]["files"]["govreport.jsonl"]) == 64
    logged = json.dumps(sliding_long["samples"]["ppl_govreport"], default=str)
    assert not any(text[:60] in logged for text in documents)
    doc = sliding_long["samples"]["ppl_govreport"][0]["doc"]
    assert doc["document_id"] == doc["cluster"] == "govreport-0"


def test_a_window_beyond_the_model_is_refused_with_the_method_that_allows_it(
    tiny, data_dir, evaluate
):
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
