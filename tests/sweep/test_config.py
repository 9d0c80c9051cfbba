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
    ("modles", {}, r"config\.modles: .*did you mean 'models'"),
    ("models/small/dtyp", "auto", r"config\.models\.small\.dtyp: .* mean 'dtype'"),
    ("models/small/dtype", "float8", r"config\.models\.small\.dtype: .*float8"),
    ("models/small/backend", "hf-lnog", r"'hf-lnog' .*did you mean 'hf-long'"),
    ("models/small/args", {"rope_parameters": {}}, r"args\.rope_parameters: write it as methods"),
    ("models/small/args", {"max_length": 3}, r"max_length: write it as context_lengths"),
    ("models/small/args", {"x": [{"y": {1, 2}}]}, r"config\.models\.small\.args\.x\.0\.y: "),
    ("models/small/gpus", -1, r"config\.models\.small\.gpus: .*-1"),
    ("models/small/label", "/up", r"config\.models\.small\.label: .*/up"),
    ("models/small/methods", ["yran"], r"small\.methods: 'yran' .* did you mean 'yarn'"),
    ("models/small/batch_size", "auto:0", r"config\.models\.small\.batch_size.*: .*auto:0"),
    ("models/small", {"backend": "hf"}, r"config\.models\.small\.path: "),
    ("models", {}, r"config\.models: "),
    ("methods/yarn", {"factor": 2}, r"config\.methods\.yarn\.rope_type: missing"),
    ("methods/yarn", {"rope_type": "yran"}, r"did you mean .*yarn"),
    ("methods/yarn", {"rope_type": "yarn", "facter": 2}, r"yarn\.facter: .* mean 'factor'"),
    ("baseline", "rop", r"config\.baseline: 'rop' .*did you mean 'rope'"),
    ("context_lengths", [4096, "8192"], r"config\.context_lengths\.1.*: .*8192"),
    ("tasks", [{"task": "leval_closed_gsm"}], r"config\.tasks\.0\.task: .* mean 'tasks'"),
    ("tasks", ["a", ["b", 3]], r"config\.tasks\.1\..*1: .*3"),
    (
        "tasks",
        [{"tasks": "a", "metadata": {"num_dosc": 1}}],
        r"\.0\.metadata\.num_dosc: .*num_docs",
    ),
    ("name", "../up", r"config\.name: .*\.\./up"),
    ("limit", 0.5, r"config\.limit: .*0\.5"),
]


@pytest.mark.parametrize(("path", "value", "message"), MISTAKES)
def test_a_mistake_is_named_with_its_place(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(changed(path, value))


def test_every_mistake_of_a_config_is_named_at_once() -> None:
    wrong = changed("models/small/dtype", "float8") | {"seed": -1}
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
