"""Sweeps of effective-context tasks: one reference run serves all methods of a model."""

from typing import Any

import pytest

from leval_harness.results.layout import REFERENCE
from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import RunRequest, parse_config
from leval_harness.sweep.plan import Mistakes, ModelFiles, _prepared
from resonance_vllm.checkpoint.positions import PositionConfig

TASK = "effective_context_pydocs"
NATIVE = {"model_type": "llama", "max_position_embeddings": 2048, "rope_theta": 1e4}


def planned(**settings: Any) -> list[RunRequest]:
    content = {
        "name": "s",
        "models": {"one": {"path": "a", "backend": "hf"}, "two": {"path": "b", "backend": "hf"}},
        "methods": {"plain": None, "yarn": {"rope_type": "yarn", "factor": 2.0}},
        "context_lengths": [4096],
        "tasks": [TASK],
    }
    config = parse_config(content | settings)
    files = ModelFiles("", PositionConfig.from_dict(NATIVE), {})
    of_models = {id(model): files for model in config.models.values()}
    mistakes = Mistakes()
    requests = _prepared(config.requests(), of_models, mistakes)
    mistakes.raise_all()
    return requests


def test_reference_is_one_run_of_the_unmodified_model():
    found = planned()
    assert [(each.model.label, each.method) for each in found] == [
        (model, method) for model in ("one", "two") for method in (REFERENCE, "plain", "yarn")
    ]
    for each in found:
        windows = each.method == REFERENCE
        assert each.task.metadata["reads"] == ("reference" if windows else "full")
        assert each.context_length == (None if windows else 4096)
        if windows:
            assert each.rope is None
            assert each.task.metadata["context_length"] == [4096]


def test_reference_per_context_length():
    lengths = [2048, 4096]
    names = [each.method for each in planned(context_lengths=lengths)]
    assert names.count(REFERENCE) == 4  # two models, two lengths
    given = planned(context_lengths=lengths, metadata={"context_length": [1024, 4096]})
    assert [each.method for each in given].count(REFERENCE) == 2
    assert given[0].task.metadata["context_length"] == [1024, 4096]


def test_other_tasks_of_an_entry_are_not_asked_by_the_windows():
    first, second, *_ = planned(tasks=[[TASK, "ppl_pydocs"]])
    assert first.task.tasks == (TASK,)
    assert second.task.tasks == (TASK, "ppl_pydocs")
    assert REFERENCE not in {each.method for each in planned(tasks=["ppl_pydocs"])}


def test_who_divides_the_reads_is_left_alone():
    found = planned(metadata={"reads": "all"})
    assert [each.method for each in found] == ["plain", "yarn"] * 2
    assert all(each.task.metadata == {"reads": "all"} for each in found)


def test_reference_within_native_length_reads_in_full():
    found = planned(context_lengths=[2048])
    assert {each.task.metadata["reads"] for each in found} == {"full"}
    longer = planned(context_lengths=[2048], metadata={"window": 1024})
    assert longer[0].task.metadata["reads"] == "reference"
    with pytest.raises(ConfigError, match=rf"context_lengths: missing; {TASK}"):
        planned(context_lengths=[None])


@pytest.mark.parametrize(
    ("lengths", "tokens"),
    [
        (None, [3072]),
        (["1x", "1.5x"], [2048, 3072]),
        (["1.05x"], [2150]),
        ([1000, "2x"], [1000, 4096]),
        ("0.5x", [1024]),
    ],
    ids=str,
)
def test_lengths_relative_to_the_native_length(lengths: Any, tokens: list[int]) -> None:
    methods = {"yarn": {"rope_type": "yarn", "factor": 2.0}}
    of_yarn = [r for r in planned(context_lengths=lengths, methods=methods) if r.method == "yarn"]
    assert [request.context_length for request in of_yarn] == tokens * 2


def test_lengths_relative_to_a_stated_window() -> None:
    requests = planned(context_lengths=["1.5x"], metadata={"window": 1000})
    assert {r.context_length for r in requests if r.method != REFERENCE} == {1500}


def test_lengths_default_is_the_limit_for_other_tasks() -> None:
    assert {r.context_length for r in planned(context_lengths=None, tasks=["ppl_pydocs"])} == {None}


def test_lengths_relative_need_a_native_length() -> None:
    content = {
        "models": {"m": {"path": "served", "backend": "local-completions"}},
        "methods": {"served": None},
        "tasks": [TASK],
    }
    config = parse_config(content)
    (model,) = config.models.values()
    mistakes = Mistakes()
    _prepared(config.requests(), {id(model): ModelFiles("served", None, {})}, mistakes)
    with pytest.raises(ConfigError, match=r"1\.5x is a multiple of .* metadata\.window"):
        mistakes.raise_all()


@pytest.mark.parametrize("length", ["x", "0x", "0.0x", "0.0.5x", "1.5", "-1x", "1,5x", 1.5, "1.x"])
def test_lengths_that_are_none(length: object) -> None:
    with pytest.raises(ConfigError, match=r"config\.context_lengths\.0"):
        planned(context_lengths=[length])
