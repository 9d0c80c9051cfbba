"""The meaning of a sweep config: every mistake is named with its place, and cells come in order."""

import copy
from typing import Any

import pytest

from leval_sweep.config import expand, load_config, parse_config, task_names
from leval_sweep.errors import ConfigError

GOOD: dict[str, Any] = {
    "name": "test",
    "models": {"small": {"path": "some/model", "backend": "hf"}},
    "methods": {"rope": {"rope_type": "default"}, "yarn": {"rope_type": "yarn", "factor": 2}},
    "tasks": ["leval_gsm", ["leval_quality", "leval_toefl"]],
    "context_lengths": [4096, 8192],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    config: Any = copy.deepcopy(GOOD)
    node = config
    *front, last = path.split("/")
    for key in front:
        node = node[key]
    node[last] = value
    return config


def test_cells_are_the_product_and_comparable_ones_are_neighbours() -> None:
    requests = list(expand(parse_config(GOOD)))
    assert len(requests) == 1 * 2 * 2 * 2
    assert [request.method for request in requests[:4]] == ["rope", "yarn", "rope", "yarn"]
    assert {r.context_length for r in requests[:2]} == {4096}
    assert requests[0].task.tasks == ("leval_gsm",)
    assert requests[-1].task.tasks == ("leval_quality", "leval_toefl")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("modles", {}, r"config: unknown key 'modles'; did you mean 'models'"),
        ("models/small/dtyp", "auto", r"config\.models\.small: unknown key 'dtyp'; did you mean"),
        ("models/small/dtype", "float8", r"dtype: must be one of .* not 'float8'"),
        ("models/small/backend", "hf-lnog", r"unknown backend 'hf-lnog'; did you mean 'hf-long'"),
        ("models/small/args", {"rope_parameters": {}}, r"write it as methods"),
        ("models/small/args", {"max_length": 3}, r"write it as context_lengths"),
        ("models/small/methods", ["yran"], r"unknown 'yran'; did you mean 'yarn'"),
        ("models/small/batch_size", 0, r"batch_size: must be a whole number above 0"),
        ("models/small", {"backend": "hf"}, r"path: is missing"),
        ("models/bad\nname", {"path": "x"}, r"must be a name"),
        ("methods/yarn", {"factor": 2}, r"needs rope_type"),
        ("methods/yarn", {"rope_type": "yran"}, r"did you mean yarn"),
        ("methods/yarn", {"rope_type": "yarn", "facter": 2}, r"no 'facter'; did you mean 'factor'"),
        ("methods/yarn", {"rope_type": "yarn", "factor": float("nan")}, r"finite number"),
        ("baseline", "rop", r"unknown method 'rop'; did you mean 'rope'"),
        ("context_lengths", [True], r"whole number above 0"),
        ("context_lengths", [8192, 8192], r"8192 is there twice"),
        ("context_lengths", [], r"must not be empty"),
        ("tasks", [], r"config\.tasks: is missing or empty"),
        ("tasks", [{"task": "leval_gsm"}], r"unknown key 'task'; did you mean 'tasks'"),
        ("tasks", [{"limit": 3}], r"tasks: is missing"),
        ("name", "../up", r"must be a name"),
        ("name", ".hidden", r"must be a name"),
        ("seed", -1, r"0 or more"),
        ("timeout", 0, r"above 0"),
        ("timeout", float("inf"), r"above 0"),
        ("rope_precision", "float16", r"must be one of float32, model"),
        ("limit", 0.5, r"whole number above 0"),
    ],
)
def test_a_mistake_is_named_with_its_place(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(changed(path, value))


def test_a_served_model_gets_no_rope_from_here() -> None:
    with pytest.raises(ConfigError, match="cannot be set from here"):
        parse_config(changed("models/small/backend", "local-completions"))
    config = changed("models/small/backend", "local-completions")
    config["methods"] = {"as-served": None}
    assert [r.method for r in expand(parse_config(config))] == ["as-served"] * 4


def test_settings_of_a_task_go_before_the_sweeps_own() -> None:
    config = changed("tasks", [{"tasks": "a", "metadata": {"num_docs": 1}}, "b"])
    config |= {"metadata": {"num_docs": 9, "data_dir": "sample"}, "limit": 5}
    one, two = parse_config(config).tasks
    assert one.metadata == {"num_docs": 1, "data_dir": "sample"}
    assert two.metadata == {"num_docs": 9, "data_dir": "sample"}
    assert one.limit == two.limit == 5


def test_context_lengths_of_task_before_model_before_sweep() -> None:
    config = changed("models/small/context_lengths", [1024])
    config["tasks"] = ["a", {"tasks": "b", "context_lengths": [2048]}]
    lengths = {
        request.task.tasks[0]: request.context_length for request in expand(parse_config(config))
    }
    assert lengths == {"a": 1024, "b": 2048}


def test_null_takes_back_an_included_argument() -> None:
    config = parse_config(changed("models/small/args", {"parallelize": None, "x": 1}))
    assert config.models[0].args == {"x": 1}


def test_overrides_are_checked_like_the_file() -> None:
    config = load_config("quickstart", ["methods.yarn.factor=4", "name=other"])
    assert config.methods["yarn"] == {"rope_type": "yarn", "factor": 4}
    assert config.name == "other"
    with pytest.raises(ConfigError, match="unknown key 'sed'; did you mean 'seed'"):
        load_config("quickstart", ["sed=3"])


def test_task_names_once_in_order() -> None:
    assert task_names(parse_config(changed("tasks", ["b", ["a", "b"]]))) == ["b", "a"]
