"""The bound on caches: what is free, what it does to batches and to the path."""

import pytest
import torch

from leval_harness.backends import resources
from leval_harness.backends.cache import Footprint
from leval_harness.backends.hf_long import HFLong
from leval_harness.backends.resources import Counters, free_bytes


def test_a_footprint_counts_windows_states_and_copies():
    taken = Footprint(((100, None), (10, 16)), states=7)
    assert taken.path(8) == 7 + 8 * 110
    assert taken.path(50) == 7 + 50 * 100 + 16 * 10
    assert taken.row(3) == 7 + 3 * 110


def test_the_bound_is_what_is_free_unless_it_is_given(make_model, tokenizer, monkeypatch):
    monkeypatch.setattr("leval_harness.backends.hf_long.free_bytes", lambda devices: 12345)
    model = make_model("llama")
    assert HFLong(model, tokenizer=tokenizer, device="cpu").setup.kv_cache_bytes == 12345
    given = HFLong(model, tokenizer=tokenizer, device="cpu", kv_cache_gib=2)
    assert given.setup.kv_cache_bytes == 2 << 30


def test_free_main_memory_is_that_of_the_cgroup(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    cpu = [torch.device("cpu")]
    free = free_bytes(cpu)
    assert free > 1 << 20
    (tmp_path / "memory.current").write_text("9000\n")
    (tmp_path / "memory.stat").write_text("anon 5000\nfile 4000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(cpu) == pytest.approx(free, rel=0.5)
    (tmp_path / "memory.max").write_text("25000\n")
    assert free_bytes(cpu) == (25000 - 9000 + 4000) // 2
    (tmp_path / "memory.max").write_text("4000\n")
    assert free_bytes(cpu) == 0


def test_a_smaller_batch_is_logged_and_counted(make_model, tokenizer, caplog):
    ours = HFLong(make_model("llama"), tokenizer=tokenizer, device="cpu")
    taken = ours.reuse.footprint
    base = tokenizer(" ".join(f"w{n}" for n in range(40)))["input_ids"]
    asked = [(None, base, [n, n, n]) for n in range(10, 16)]
    whole = ours._loglikelihood_tokens(asked, disable_tqdm=True)
    assert ours.telemetry()["batches_bounded"] == 0
    room = taken.path(40) + 2 * taken.row(2)
    bounded = HFLong(
        ours.model, tokenizer=tokenizer, device="cpu", kv_cache_gib=(room + 1) / (1 << 30)
    )
    got = bounded._loglikelihood_tokens(asked, disable_tqdm=True)
    assert [v for v, _ in got] == pytest.approx([v for v, _ in whole], abs=1e-4)
    assert bounded.telemetry()["batches_bounded"] == 2
    assert bounded.telemetry()["requests_alone"] == {}
    assert caplog.text.count("2 rows at a time instead of more (kv_cache_gib)") == 1


def test_a_path_that_does_not_fit_a_given_bound_is_not_shared(make_model, tokenizer):
    model = make_model("llama")
    ours = HFLong(model, tokenizer=tokenizer, device="cpu", kv_cache_gib=1e-6)
    assert ours.setup.refusal(1) == ""
    assert ours.setup.refusal(100) == "their cache takes more than kv_cache_gib=1e-06"
    free = HFLong(model, tokenizer=tokenizer, device="cpu")
    assert free.setup.refusal(1 << 30) == ""


def test_the_bar_moves_within_one_forward_pass_and_counts_it_once():
    seen = []
    counters = Counters()
    layers = [torch.nn.Linear(2, 2) for _ in range(4)]
    with counters.progress("Reading", disable=False):
        bar = counters._bar
        counters.expect(100, 100, 100)
        with counters.within(layers, 100):
            for layer in layers:
                layer(torch.zeros(2))
                seen.append(bar.n)
        assert seen == [25, 50, 75, 100]
        counters.prefilled(100)
        assert (bar.n, bar.total) == (100, 100)
        layers[0](torch.zeros(2))
        assert bar.n == 100, "its hooks are gone"
    assert counters.tokens_prefilled == 100
