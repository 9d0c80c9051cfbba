"""Eight GPUs are busy: the real scheduler with a simulated clock, as `benchmarks/bench_schedule.py`."""

import sys
from pathlib import Path

import pytest

from leval_harness.sweep.run import neighbouring

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("case", "most_hours", "least_busy"),
    [
        ("one model, one method, 8 documents", 0.21, 0.9),
        ("nine methods and the reference at 128K, 8 documents", 2.0, 0.95),
        pytest.param("eight methods at 16K, 32K, 64K, 128K", 1.57, 0.95, marks=pytest.mark.slow),
        pytest.param(
            "thirty models of one GPU each, then one model of four GPUs",
            16.4,
            0.93,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_eight_gpus_are_busy(
    monkeypatch: pytest.MonkeyPatch, case: str, most_hours: float, least_busy: float
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import bench_schedule

    simulation = bench_schedule.Simulation(bench_schedule.CASES[case])
    hours = simulation.hours()
    assert hours <= most_hours
    assert simulation.busy / (hours * 8) >= least_busy
    sys.modules.pop("bench_schedule")


@pytest.mark.parametrize(
    ("taken", "number", "expected"),
    [
        ("", 4, "0123"),
        ("1", 4, "4567"),
        ("15", 4, "0234"),
        ("1", 2, "23"),
        ("0356", 2, "12"),
        ("134", 2, "67"),
        ("0246", 2, "13"),
        ("012", 1, "3"),
        ("01234567", 1, None),
        ("01237", 4, None),
    ],
)
def test_gpus_of_a_worker_are_neighbours(taken: str, number: int, expected: str | None) -> None:
    chosen = neighbouring("01234567", taken, number)
    assert (None if chosen is None else "".join(chosen)) == expected
