"""Reach tasks: windows over fixed targets, and their losses against a plain transformers loop."""

import hashlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_border.errors import SettingError
from leval_tasks.reach.targets import (
    default_lengths,
    shared_positions,
    spacing,
    target_ends,
    target_windows,
)

LENGTHS = [48, 96, 144, 192]
ASKED = {"context_length": LENGTHS, "target_tokens": 20, "num_targets": 3, "num_docs": 4}


@given(
    st.lists(st.integers(30, 3000), min_size=1, max_size=5, unique=True).map(sorted),
    st.integers(1, 20),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 9000),
)
def test_every_length_scores_the_same_tokens(lengths, target, targets, bos, spare):
    step = spacing(lengths, target, targets, bos)
    n = lengths[-1] - bos + spare
    ends = target_ends(n, lengths[-1], step, targets, bos)
    windows = target_windows(ends, lengths, target, bos)
    assert ends[-1] == n
    assert len(ends) == min(targets, 1 + spare // step)
    scored = {
        length: [(w.score_start, w.end) for w in windows if w.context_length == length]
        for length in lengths
    }
    for length in lengths:
        assert scored[length] == [(end - target, end) for end in ends]
    for a, b in itertools.pairwise(ends):
        assert b - target >= a  # no token is a target twice
    for window in windows:
        assert window.positions == window.context_length
        assert 0 <= window.start < window.score_start + bos
    assert shared_positions(windows) <= len(ends) * sum(lengths)


def test_neighbouring_targets_share_windows():
    lengths = (2048, 4096, 8192, 12288, 16384)
    step = spacing(lengths, 512, 4, True)
    windows = target_windows(target_ends(60_000, 16384, step, 4, True), lengths, 512, True)
    assert shared_positions(windows) < 0.6 * 4 * sum(lengths)


def test_default_lengths_are_shares_of_the_trained_one():
    assert default_lengths(8192, 16384) == (2048, 4096, 8192, 12288, 16384)
    assert default_lengths(8192, 65536) == (2048, 4096, 8192, 12288, 16384, 32768, 65536)
    assert default_lengths(8192, 8192) == (2048, 4096, 8192)
    assert default_lengths(8192, 10000) == (2048, 4096, 8192, 10000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("reach")
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (folder / "govreport.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def plain_losses(path: Path, text: str, ends_back: list[int]) -> dict[int, list[float]]:
    """Nats of each target token at each length, one plain forward pass a window."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids = tokenizer(text, add_special_tokens=False).input_ids
    out: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for length, back in itertools.product(LENGTHS, ends_back):
        end = len(ids) - back
        window = torch.tensor([[tokenizer.bos_token_id, *ids[end - length + 1 : end]]])
        with torch.no_grad():
            logits = model(window).logits[0].double().log_softmax(-1)
        places = range(length - 20, length)
        out[length] += [-logits[at - 1, window[0, at]].item() for at in places]
    return out


@pytest.fixture(scope="module")
def on_hf_long(tiny: Path, folder: Path, evaluate) -> dict[str, Any]:
    return evaluate("hf-long", tiny, ASKED | {"data_dir": str(folder)}, "reach_govreport")


@pytest.fixture(scope="module")
def plain(tiny: Path, texts: list[str], on_hf_long: dict[str, Any]) -> list[dict[int, list[float]]]:
    step = on_hf_long["configs"]["reach_govreport"]["metadata"]["settings"]["step"]
    counted = [s["loss@48"][1] // 20 for s in on_hf_long["samples"]["reach_govreport"]]
    assert max(counted) > 1  # some text has several targets
    return [
        plain_losses(tiny, text, [step * index for index in range(n)])
        for text, n in zip(texts, counted, strict=True)
    ]


@pytest.mark.hf
def test_losses_are_those_of_a_plain_loop(on_hf_long, plain):
    for sample, losses in zip(on_hf_long["samples"]["reach_govreport"], plain, strict=True):
        for length in LENGTHS:
            nats, tokens = sample[f"loss@{length}"]
            assert tokens == len(losses[length])
            assert nats / tokens == pytest.approx(math.fsum(losses[length]) / tokens, abs=1e-4)
        for shorter, longer in itertools.pairwise(LENGTHS):
            gain = math.fsum(losses[shorter]) - math.fsum(losses[longer])
            assert sample[f"gain@{longer}"][0] == pytest.approx(gain, abs=2e-3)
    values = on_hf_long["results"]["reach_govreport"]
    tokens = sum(len(losses[96]) for losses in plain)
    want = math.fsum(math.fsum(losses[96]) for losses in plain) / tokens
    assert values["loss@96,none"] == pytest.approx(want, abs=1e-4)
    assert values["gain@96_stderr,none"] > 0


@pytest.mark.hf
def test_what_is_computed_is_no_more_than_the_contexts_and_shared_where_it_can_be(on_hf_long):
    work = on_hf_long["config"]["hf_long"]
    targets = sum(s["loss@48"][1] for s in on_hf_long["samples"]["reach_govreport"]) // 20
    assert work["tokens_prefilled"] < 0.85 * targets * sum(LENGTHS)


@pytest.mark.hf
def test_one_target_a_text_costs_its_contexts(tiny, folder, evaluate):
    asked = ASKED | {"num_targets": 1, "data_dir": str(folder)}
    results = evaluate("hf-long", tiny, asked, "reach_govreport")
    assert results["config"]["hf_long"]["tokens_prefilled"] <= 1.05 * 4 * sum(LENGTHS)


@pytest.mark.hf
def test_hf_scores_the_same_windows_alike(tiny, folder, on_hf_long, evaluate):
    metadata = ASKED | {"data_dir": str(folder)}
    stock = evaluate("hf", tiny, metadata, "reach_govreport", softmax_dtype="float32")
    check_alike(stock, on_hf_long)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("model", [pytest.param("vllm", marks=pytest.mark.long), "vllm-long"])
def test_vllm_scores_the_same_windows_alike(model, tiny, folder, on_hf_long, evaluate):
    served = evaluate(model, tiny, ASKED | {"data_dir": str(folder)}, "reach_govreport")
    check_alike(served, on_hf_long)


def check_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    for a, b in zip(*(r["samples"]["reach_govreport"] for r in (one, other)), strict=True):
        assert a["arguments"] == b["arguments"]
        assert a["doc"] == b["doc"]
        for length in LENGTHS:
            x, y = a[f"loss@{length}"], b[f"loss@{length}"]
            assert x[1] == y[1]
            assert x[0] / x[1] == pytest.approx(y[0] / y[1], abs=1e-4)
            assert a.get("key_spans", b["key_spans"]) == b["key_spans"]


@pytest.mark.hf
def test_without_lengths_the_model_is_asked_at_shares_of_its_trained_one(tiny, folder, evaluate):
    asked = {"target_tokens": 16, "data_dir": str(folder), "num_docs": 4}
    results = evaluate("hf-long", tiny, asked, "reach_govreport")
    metadata = results["configs"]["reach_govreport"]["metadata"]
    assert metadata["settings"]["context_length"] == [64, 128, 256]
    assert metadata["claimed_length"] == 256


@pytest.mark.hf
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"target_tokens": 48}, "target_tokens"),
        ({"context_length": [48, 300]}, "context_length"),
        ({"max_tokens": 100}, "max_tokens"),
        ({"num_targets": 0}, "num_targets"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(tiny, folder, wrong, named, evaluate):
    with pytest.raises((SettingError, ValueError), match=named):
        evaluate("hf-long", tiny, ASKED | {"data_dir": str(folder)} | wrong, "reach_govreport")


def published_key_tokens(path: Path, ids: list[int], trunc_len: int, sliding_window: int):
    """LongPPL's `find_key_token` for the last `sliding_window` tokens, and their full losses."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    whole = torch.tensor([ids])
    start = len(ids) - trunc_len - sliding_window
    with torch.no_grad():
        full, short = model(whole).logits[0], model(whole[:, start:]).logits[0]
    aims = whole[0, start + trunc_len :]
    loss_full = cross_entropy(full[start + trunc_len - 1 : -1], aims, reduction="none")
    loss_short = cross_entropy(short[trunc_len - 1 : -1], aims, reduction="none")
    is_key = (loss_short - loss_full > 2) & (loss_full < 2)
    return torch.nonzero(is_key).flatten().tolist(), loss_full


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, tiny: Path, texts: list[str]) -> Path:
    """A model that has learned the texts' last 200 tokens at their places, and no shorter ones."""
    import shutil

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = tmp_path_factory.mktemp("learned") / "model"
    shutil.copytree(tiny, path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    encoded = tokenizer(texts, add_special_tokens=False).input_ids
    batch = torch.tensor([ids[-200:] for ids in encoded])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        model(batch, labels=batch).loss.backward()
        optimizer.step()
    model.save_pretrained(path)
    return path


KEYED = {"context_length": [90, 200], "target_tokens": 80, "num_docs": 4, "bos": False}


@pytest.fixture(scope="module")
def keyed(learned: Path, folder: Path, evaluate) -> dict[str, Any]:
    return evaluate("hf-long", learned, KEYED | {"data_dir": str(folder)}, "reach_govreport")


@pytest.mark.hf
def test_key_tokens_and_longppl_are_those_of_the_published_definition(learned, texts, keyed):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(learned)
    found = 0
    for sample, text in zip(keyed["samples"]["reach_govreport"], texts, strict=True):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"][-80:]
        places, losses = published_key_tokens(learned, encoded["input_ids"][-200:], 10, 80)
        nats, count = sample["key_loss@200"]
        assert count == len(places)
        assert nats == pytest.approx(losses[places].sum().item(), abs=1e-3)
        within = {at for start, end in sample["key_spans"] for at in range(start, end)}
        assert within == {at for i in places for at in range(*offsets[i])}
        found += count
    assert found > 5


@pytest.mark.hf
def test_key_tokens_of_a_reference_model_are_used_in_place_of_the_own(
    learned, tiny, folder, evaluate, keyed, tmp_path
):
    samples = keyed["samples"]["reach_govreport"]
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")
    asked = KEYED | {"data_dir": str(folder), "key_tokens": str(path)}
    results = evaluate("hf-long", tiny, asked, "reach_govreport")
    for own, told in zip(results["samples"]["reach_govreport"], samples, strict=True):
        assert own["key_spans"] == told["key_spans"]
        # of a character in several tokens the reference may have told one
        assert own["key_loss@90"][1] >= told["key_loss@90"][1]
        assert own["key_loss@90"][0] != told["key_loss@90"][0]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    settings = results["configs"]["reach_govreport"]["metadata"]["settings"]
    assert settings["key_tokens"] == digest[:16]
    missing = asked | {"key_tokens": str(tmp_path / "absent.jsonl")}
    with pytest.raises(ValueError, match=r"absent\.jsonl"):
        evaluate("hf-long", tiny, missing, "reach_govreport")
