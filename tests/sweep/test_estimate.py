"""What the dry run says a sweep will take: tokens, operations, memory, hours."""

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from leval_harness.cli.main import app
from leval_harness.sweep.config import parse_config
from leval_harness.sweep.cost import Cost, Memory, Pass
from leval_harness.sweep.estimate import (
    Estimate,
    Estimator,
    MeasuredRates,
    duration,
    memory_of,
    pass_tokens,
    rate_of_cpu,
    run_cost,
    size_of_model,
    total,
    warnings_of,
)
from leval_harness.sweep.plan import plan
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.workload import Workload, Workloads, workload_of

LONG = {"yarn": {"rope_type": "yarn", "factor": 99}}
Planned = Callable[..., list[RunRecord]]


@pytest.fixture
def planned(tiny: Path) -> Planned:
    def runs(**changes: Any) -> list[RunRecord]:
        model = {"path": str(tiny / "model"), "device": "cpu", **changes.pop("model", {})}
        content = {"name": "x", "models": {"tiny": model}, "methods": {"rope": None}, **changes}
        return plan(parse_config(content))

    return runs


def test_workload_of_full_and_reference_reads(planned: Planned) -> None:
    metadata = {"num_docs": 2}
    reference, full = planned(tasks="effective_context_pydocs", metadata=metadata, methods=LONG,
                              context_lengths=[320])  # fmt: skip
    # windows of 128 tokens that move by 64, each document read to its end
    assert workload_of(full) == Workload(2, [Pass(320, scored=320 - 32)] * 2)
    windows = workload_of(reference)
    assert windows is not None
    assert [one.tokens for one in windows.passes[: len(windows.passes) // 2]] == [128] * 4
    assert sum(one.scored for one in windows.passes) == 2 * (320 - 32)


def test_workload_of_sliding_windows(planned: Planned) -> None:
    metadata = {"num_docs": 1, "mode": "sliding", "stride": 32, "max_tokens": 200}
    (run,) = planned(tasks="ppl_pydocs", metadata=metadata, context_lengths=[128])
    workload = workload_of(run)
    assert workload is not None
    assert workload.documents == 1
    assert [one.tokens for one in workload.passes] == [128, 128, 128, 105]


@pytest.mark.parametrize(("backend", "shares"), [("hf", False), ("hf-long", True)])
def test_workload_of_questions(planned: Planned, backend: str, shares: bool) -> None:
    (run,) = planned(
        tasks="leval_closed_quality", metadata={"data_dir": "sample"}, methods=LONG, limit=5,
        context_lengths=[12_000], gen_kwargs={"max_gen_toks": 7}, model={"backend": backend},
    )  # fmt: skip
    workload = workload_of(run)
    assert workload is not None
    assert workload.documents == 5
    assert {one.generated for one in workload.passes} == {7}
    assert any(one.cached for one in workload.passes) == shares


@pytest.mark.parametrize(("backend", "shares"), [("hf", False), ("hf-long", True)])
def test_workload_of_needles(planned: Planned, backend: str, shares: bool) -> None:
    metadata = {"context_length": [512, 1024], "num_samples": 2}
    (run,) = planned(
        tasks="retrieval_niah_single", metadata=metadata, context_lengths=[1024], limit=9,
        model={"backend": backend}, methods=LONG, gen_kwargs={"max_gen_toks": 16},
    )  # fmt: skip
    workload = workload_of(run)
    assert workload is not None
    first = [(512, 0), (512, 256), (512, 512), (1024, 512), (1024, 512), (1024, 0)]
    second = [(512, 0), (512, 256), (512, 512)]
    expected = [
        Pass(length - 16, cached=min(cached, length - 17) * shares, generated=16)
        for length, cached in first + second
    ]
    assert workload == Workload(9, expected)


def test_workload_of_ruler(planned: Planned) -> None:
    (run,) = planned(tasks="niah_single_1", methods=LONG, context_lengths=[1024], limit=3)
    workload = workload_of(run)
    assert workload == Workload(3, [Pass(1024, generated=128)] * 3)


def test_methods_share_one_workload(planned: Planned) -> None:
    methods = {"rope": None, "yarn": {"rope_type": "yarn", "factor": 2}}
    first, second = planned(tasks="ppl_pydocs", methods=methods, metadata={"num_docs": 1},
                            context_lengths=[64])  # fmt: skip
    workloads = Workloads()
    assert workloads.of(first) is workloads.of(second)


def test_workload_of_a_server_is_not_known(planned: Planned) -> None:
    model = {"backend": "local-completions", "path": "served", "args": {"base_url": "http://h"}}
    runs = planned(tasks="ppl_pydocs", model={**model, "device": None}, context_lengths=[64])
    assert workload_of(runs[0]) is None
    assert Estimator(Workloads(), MeasuredRates(Path("nowhere")), 1.0).of(runs[0]).cost is None


def measured(folder: Path, run: RunRecord, flops: float, seconds: float, host: str) -> None:
    known = {"seconds": seconds, "telemetry": {"flops": flops}, "host": {"name": host}}
    target = folder / "runs" / f"{run.run_id}-{flops:g}"
    target.mkdir(parents=True)
    content = run.model_copy(update=known).written()
    (target / "run.json").write_text(json.dumps(content))


def test_rate_of_runs_beside_this_sweep(planned: Planned, tmp_path: Path) -> None:
    (run,) = planned(tasks="ppl_pydocs", metadata={"num_docs": 1}, context_lengths=[64])
    (other,) = planned(tasks="leval_closed_gsm", metadata={"data_dir": "sample"}, methods=LONG,
                       context_lengths=[9000])  # fmt: skip
    assert MeasuredRates(tmp_path / "new").of(run) is None
    measured(tmp_path / "old", run, 9e9, 1, "another-machine")
    assert MeasuredRates(tmp_path / "new").of(run) is None
    measured(tmp_path / "old", other, 1e9, 2, platform.node())
    assert MeasuredRates(tmp_path / "new").of(run) == 0.5e9, "of the same backend and dtype"
    measured(tmp_path / "older", run, 4e9, 2, platform.node())
    measured(tmp_path / "older", run, 2e9, 4, platform.node())
    assert MeasuredRates(tmp_path / "new").of(run) == 1e9, "also of the same kind"
    bfloat16 = run.model_copy(update={"model": run.model.model_copy(update={"dtype": "bfloat16"})})
    assert MeasuredRates(tmp_path / "new").of(bfloat16) is None


def test_hours_of_given_and_measured_rates(planned: Planned, tmp_path: Path) -> None:
    (run,) = planned(tasks="ppl_pydocs", metadata={"num_docs": 1}, context_lengths=[64])
    unknown = Estimator(Workloads(), MeasuredRates(tmp_path / "new")).of(run)
    assert unknown.cost is not None
    assert unknown.hours is None
    measured(tmp_path / "old", run, unknown.cost.flops, 7200, platform.node())
    assert Estimator(Workloads(), MeasuredRates(tmp_path / "new")).of(run).hours == 2
    given = Estimator(Workloads(), MeasuredRates(tmp_path / "new"), 1e-6).of(run).hours
    assert given == pytest.approx(unknown.cost.flops / 1e6 / 3600)


def test_rate_of_a_new_machine_is_a_benchmark(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = planned(tasks="ppl_pydocs", metadata={"num_docs": 1}, context_lengths=[64])
    rates = MeasuredRates(Path("nowhere"))
    monkeypatch.setattr("leval_harness.sweep.estimate.rate_of_cpu", lambda dtype: 1e9)
    assert Estimator(Workloads(), rates).of(run).hours is None, "seconds are not worth it"
    monkeypatch.setattr("leval_harness.sweep.estimate.WORTH_A_BENCHMARK", 1.0)
    estimate = Estimator(Workloads(), rates).of(run)
    assert estimate.cost is not None
    assert estimate.hours == pytest.approx(estimate.cost.flops / 1e9 / 3600)


def test_benchmark_knows_every_dtype() -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        assert rate_of_cpu(dtype) > 1e8


def test_run_cost_orders_runs(planned: Planned) -> None:
    metadata = {"num_docs": 1}
    short, long = planned(tasks="ppl_pydocs", metadata=metadata, context_lengths=[32, 64])
    assert 0 < run_cost(short) < run_cost(long)
    model = {"backend": "local-completions", "path": "served", "args": {"base_url": "http://h"}}
    (served,) = planned(tasks="ppl_pydocs", model={**model, "device": None}, context_lengths=[64])
    assert run_cost(served) == 0


@pytest.mark.parametrize(
    ("backend", "rope", "shares"),
    [
        ("hf-long", None, True),
        ("hf-long", {"rope_type": "default"}, True),
        ("hf-long", {"rope_type": "yarn", "factor": 4}, False),
        ("hf", None, False),
    ],
)
def test_reference_shares_its_first_windows(
    planned: Planned, backend: str, rope: dict[str, Any] | None, shares: bool
) -> None:
    runs = planned(tasks="effective_context_pydocs", metadata={"num_docs": 2},
                   methods={"first": rope}, context_lengths=[320], model={"backend": backend})  # fmt: skip
    estimator = Estimator(Workloads(), MeasuredRates(Path("nowhere")), 1.0)
    reference, full = (estimate.cost for estimate in estimator.of_all(runs).values())
    alone = estimator.of(runs[0]).cost
    assert reference is not None
    assert full is not None
    assert alone is not None
    assert alone.prefill_tokens - reference.prefill_tokens == (2 * 128 if shares else 0)
    assert reference.documents == 2
    if shares:
        assert reference.flops < full.flops, "the longest first: the full read comes before"


def test_total_has_hours_where_all_have() -> None:
    one = Estimate(
        Cost(documents=1, prefill_tokens=10, flops=1.0, memory=Memory(weights=4, logits=1)), 1.5
    )
    assert total([one, one]).hours == 3
    assert total([one, Estimate(one.cost)]).hours is None
    assert total([one, one]).to_dict()["memory_bytes"] == 5
    assert total([Estimate(None)]).text() == "not estimated"


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.005, "18 s"), (0.5, "30 min"), (30, "30.0 h"), (123, "5.1 days")],
)
def test_duration_in_words(hours: float, text: str) -> None:
    assert duration(hours) == text


@pytest.mark.parametrize(
    ("backend", "part", "words"),
    [
        ("hf", "activations", "backend: hf-long reads in chunks (args.prefill_chunk)"),
        ("hf", "kv_cache", "gpus and args.parallelize divide the model"),
        ("hf-long", "logits", "a smaller args.prefill_chunk reads in smaller chunks"),
        ("hf-long", "weights", "gpus and args.parallelize divide the model"),
        ("vllm-long", "activations", "a smaller args.max_num_batched_tokens"),
        ("vllm-long", "kv_cache", "a larger args.tensor_parallel_size divides the model"),
    ],
)
def test_warning_of_memory(planned: Planned, backend: str, part: str, words: str) -> None:
    (run,) = planned(tasks="ppl_pydocs", context_lengths=[64], metadata={"num_docs": 1},
                     model={"backend": backend})  # fmt: skip
    (warning,) = warnings_of(run, Estimate(Cost(memory=Memory(**{part: 10**15})), 1.0), 10**9)
    assert "needs about 1,000,000.0 GB (" in warning
    assert words in warning
    small = Estimate(Cost(memory=Memory(weights=10**6)), 1.0)
    assert list(warnings_of(run, small, 10**9)) == []
    assert list(warnings_of(run, small, None)) == [], "a GPU that nothing is known of"


@pytest.mark.parametrize(
    ("task", "words"),
    [("ppl_pydocs", "metadata.stride (now 256)"), ("effective_context_pydocs", "num_docs")],
)
def test_warning_of_more_than_a_day(planned: Planned, task: str, words: str) -> None:
    run = planned(tasks=task, context_lengths=[64])[-1]
    (warning,) = warnings_of(run, Estimate(Cost(), 25.0, times_read=4.0), None)
    assert "takes about 25.0 h for each method" in warning
    assert words in warning


def test_warning_of_a_small_stride_without_a_rate(planned: Planned) -> None:
    metadata = {"num_docs": 1, "mode": "sliding", "stride": 1, "max_tokens": 640}
    (run,) = planned(tasks="ppl_pydocs", metadata=metadata, context_lengths=[64])
    estimate = Estimator(Workloads(), MeasuredRates(Path("nowhere"))).of(run)
    (warning,) = warnings_of(run, estimate, None)
    assert "reads each token about 58 times; a larger metadata.stride (now 1)" in warning


def test_memory_of_chunks_and_of_one_pass(planned: Planned) -> None:
    workload = Workload(1, [Pass(9000, scored=9000)])
    needed = []
    tokens = []
    for backend, args in (("hf-long", {"prefill_chunk": 64}), ("hf-long", {}), ("hf", {})):
        (run,) = planned(tasks="ppl_pydocs", methods=LONG, context_lengths=[9000],
                         model={"backend": backend, "args": args})  # fmt: skip
        size = size_of_model(run)
        assert size is not None
        tokens.append(pass_tokens(run, size, workload))
        needed.append(memory_of(run, size, workload).total)
    assert tokens == [64, 9000, 9000], "the activations of a small model are small"
    assert sorted(set(needed)) == needed


def test_pass_of_a_large_model_is_a_chunk(planned: Planned, tmp_path: Path) -> None:
    (run,) = planned(tasks="ppl_pydocs", methods=LONG, context_lengths=[9000],
                     model={"backend": "hf-long"})  # fmt: skip
    workload = Workload(1, [Pass(9000, scored=9000)])
    content = json.loads((Path(run.model.path) / "config.json").read_text())
    large = {**content, "hidden_size": 8192, "intermediate_size": 28672}
    (tmp_path / "config.json").write_text(json.dumps(large))
    run = run.model_copy(update={"model": run.model.model_copy(update={"path": str(tmp_path)})})
    size = size_of_model(run)
    assert size is not None
    assert pass_tokens(run, size, workload) == 2048


def test_size_has_the_defaults_that_a_config_leaves_out(planned: Planned, tmp_path: Path) -> None:
    """As that of Gemma 3 4B, which names neither heads nor the kinds of its layers."""
    text = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 12,
            "intermediate_size": 96, "sliding_window": 32, "vocab_size": 300}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    (run,) = planned(tasks="ppl_pydocs", context_lengths=[64], metadata={"num_docs": 1})
    run = run.model_copy(update={"model": run.model.model_copy(update={"path": str(tmp_path)})})
    size = size_of_model(run)
    assert size is not None
    assert (size.heads, size.kv_heads, size.head_dim) == (8, 4, 256)
    assert (size.full_layers, size.windowed_layers) == (2, 10)
    assert size.has_shared_embedding


def test_dry_run_shows_the_cost(tiny: Path, tmp_path: Path) -> None:
    content = {
        "models": {"tiny": {"path": str(tiny / "model"), "device": "cpu"}},
        "methods": {"rope": None},
        "tasks": "ppl_pydocs",
        "metadata": {"num_docs": 1, "max_tokens": 100},
        "context_lengths": [64],
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(content))
    words = ["sweep", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out")]
    device = ["--device-tflops", "1e-12", "--device-gb", "1e-6"]
    printed = CliRunner().invoke(app, [*words, "--dry-run", *device]).output
    assert "1 document, 64 tokens to prefill" in printed
    assert "Note: tiny @ 64 | ppl_pydocs: needs about 0.0 GB (" in printed
    assert "Note: tiny @ 64 | ppl_pydocs: takes about" in printed
    plain = CliRunner().invoke(app, [*words, "--dry-run", "--json"])
    report = json.loads(plain.output)
    cost = report["groups"][0]["runs"][0]["cost"]
    assert cost == report["cost"] == report["groups"][0]["cost"]
    assert cost["prefill_tokens"] == 64
    assert cost["hours"] is None
    assert cost["flops"] > 0
    for option in ("--device-tflops", "--device-gb"):
        refused = CliRunner().invoke(app, [*words, option, "1"])
        assert f"{option} goes with --dry-run" in refused.output
