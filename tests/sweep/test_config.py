"""The meaning of a sweep config: every mistake is named with its place, and cells come in order."""

import copy
from typing import Any

import pytest

from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import parse_config
from leval_harness.sweep.config_files import load_config
from resonance_vllm.core.spec import RopeRequest

GOOD: dict[str, Any] = {
    "name": "test",
    "models": {"small": {"path": "some/model", "backend": "hf"}},
    "methods": {"rope": {"rope_type": "default"}, "yarn": {"rope_type": "yarn", "factor": 2}},
    "tasks": ["leval_closed_gsm", ["leval_closed_quality", "leval_closed_toefl"]],
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
    requests = list(parse_config(GOOD).requests())
    assert len(requests) == 1 * 2 * 2 * 2
    assert [request.method for request in requests[:4]] == ["rope", "yarn", "rope", "yarn"]
    assert {r.context_length for r in requests[:2]} == {4096}
    assert requests[0].task.tasks == ("leval_closed_gsm",)
    assert requests[-1].task.tasks == ("leval_closed_quality", "leval_closed_toefl")


MISTAKES: list[tuple[str, Any, str]] = [
    ("modles", {}, r"config\.modles: unknown setting; .*did you mean 'models'"),
    ("models/small/dtyp", "auto", r"config\.models\.small\.dtyp: unknown .* mean 'dtype'"),
    ("models/small/dtype", "float8", r"small\.dtype: 'float8' is not allowed; allowed: auto, "),
    ("models/small/backend", "hf-lnog", r"'hf-lnog' is not allowed; .*did you mean 'hf-long'"),
    ("models/small/args", {"rope_parameters": {}}, r"args\.rope_parameters: write it as methods"),
    ("models/small/args", {"max_length": 3}, r"write it as context_lengths"),
    ("models/small/args", {"x": [{"y": {1, 2}}]}, r"small\.args\.x\.0\.y: \{1, 2\} is not"),
    ("models/small/args", None, r"small\.args: None is not allowed; allowed: a mapping"),
    ("models/small/gpus", -1, r"small\.gpus: -1 is not allowed; allowed: a number of at least 0"),
    ("models/small/label", "/up", r"small\.label: '/up' is not allowed"),
    ("models/small/methods", ["yran"], r"small\.methods: 'yran' is not .* did you mean 'yarn'"),
    (
        "models/small/batch_size",
        0,
        r"batch_size: 0 is not allowed; allowed: a number of",
    ),
    ("models/small/batch_size", "auto:0", r"batch_size: 'auto:0' is not allowed"),
    ("models/small/batch_size", True, r"batch_size: True is not allowed"),
    ("models/small/apply_chat_template", "", r"apply_chat_template: '' is not allowed"),
    ("models/small", {"backend": "hf"}, r"config\.models\.small\.path: missing"),
    ("models", [], r"config\.models: \[\] is not allowed; allowed: a mapping"),
    ("models", {}, r"config\.models: {} is not allowed; allowed: .*at least 1 item"),
    ("methods/yarn", {"factor": 2}, r"config\.methods\.yarn: needs rope_type"),
    ("methods/yarn", {"rope_type": "yran"}, r"did you mean .*yarn"),
    ("methods/yarn", {"rope_type": "yarn", "facter": 2}, r"yarn\.facter: .* mean 'factor'"),
    ("baseline", "rop", r"config\.baseline: 'rop' is not allowed; .*did you mean 'rope'"),
    ("context_lengths", [True], r"^config\.context_lengths\.0: True .* a whole number$"),
    ("context_lengths", [4096, "8192"], r"config\.context_lengths\.1: '8192' is not allowed"),
    ("context_lengths", [], r"config\.context_lengths: .*at least 1 item"),
    ("tasks", [{"task": "leval_closed_gsm"}], r"tasks\.0\.task: unknown .* mean 'tasks'"),
    ("tasks", [{"limit": 3}], r"^config\.tasks\.0\.tasks: missing$"),
    ("tasks", ["a", ["b", 3]], r"config\.tasks\.1\.1: 3 is not allowed; allowed: text"),
    ("metadata", {"num_dosc": 1}, r"config\.metadata\.num_dosc: unknown .* mean 'num_docs'"),
    ("tasks", [{"tasks": "a", "metadata": {"num_dosc": 1}}], r"tasks\.0\.metadata\.num_dosc: unk"),
    ("name", "../up", r"config\.name: '\.\./up' is not allowed"),
    ("seed", 2**32, r"config\.seed: 4294967296 is not allowed; allowed: a number of at most"),
    ("timeout", 0, r"config\.timeout: 0 is not allowed; allowed: a number above 0"),
    ("rope_precision", "float16", r"'float16' is not allowed; allowed: float32, model"),
    ("limit", 0.5, r"config\.limit: 0\.5 is not allowed; allowed: a whole number"),
]


@pytest.mark.parametrize(("path", "value", "message"), MISTAKES)
def test_a_mistake_is_named_with_its_place(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config(changed(path, value))
    assert all(len(line) < 700 for line in str(caught.value).splitlines())


def test_every_mistake_of_a_config_is_named_at_once() -> None:
    wrong = changed("models/small/dtype", "float8") | {"seed": -1, "jbos": 2}
    with pytest.raises(ConfigError) as caught:
        parse_config(wrong)
    assert "config.jbos: unknown setting" in str(caught.value)
    del wrong["jbos"]
    with pytest.raises(ConfigError, match=r"(?s)models\.small\.dtype: .*\n.*config\.seed: "):
        parse_config(wrong)


def test_a_served_model_gets_no_rope_from_here() -> None:
    with pytest.raises(ConfigError, match="cannot be set from here"):
        parse_config(changed("models/small/backend", "local-completions"))
    config = changed("models/small/backend", "local-completions")
    config["methods"] = {"as-served": None}
    assert [r.method for r in parse_config(config).requests()] == ["as-served"] * 4


def test_keys_of_other_peoples_tasks_pass() -> None:
    others = {"max_seq_lengths": [4096], "tokenizer": "x", "anything": {"at": "all"}}
    assert parse_config({**GOOD, "metadata": others}).tasks[0].metadata == others


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
        request.task.tasks[0]: request.context_length for request in parse_config(config).requests()
    }
    assert lengths == {"a": 1024, "b": 2048}


def test_null_takes_back_an_included_argument() -> None:
    config = parse_config(changed("models/small/args", {"parallelize": None, "x": 1}))
    assert config.models["small"].args == {"x": 1}


def test_overrides_are_checked_like_the_file() -> None:
    config = load_config("quickstart", ["methods.yarn.factor=4", "name=other"])
    assert config.methods["yarn"] == RopeRequest.parse("yarn:factor=4")
    assert config.name == "other"
    with pytest.raises(ConfigError, match=r"config\.sed: unknown setting; .*did you mean 'seed'"):
        load_config("quickstart", ["sed=3"])
