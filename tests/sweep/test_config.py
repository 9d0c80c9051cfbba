"""Sweep configs: read, included, overridden; every mistake is named with its place."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import load_with_includes, merge, override, parse_config
from resonance_vllm.common.errors import SettingError

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


def test_requests_are_the_product_in_comparable_order() -> None:
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


def test_settings_of_a_task_go_before_the_sweeps_own() -> None:
    config = changed("tasks", [{"tasks": "a", "metadata": {"num_docs": 1}}, "b"])
    of_others = {"max_seq_lengths": [4096], "anything": {"at": "all"}}
    config |= {"metadata": {"num_docs": 9, **of_others}, "limit": 5}
    one, two = parse_config(config).tasks
    assert one.metadata == {"num_docs": 1, **of_others}
    assert two.metadata == {"num_docs": 9, **of_others}
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


def test_merge_replaces_a_method_of_another_type() -> None:
    base = {"methods": {"m": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 16}}}
    over = {"methods": {"m": {"rope_type": "linear", "factor": 4.0}}}
    assert merge(base, over)["methods"]["m"] == {"rope_type": "linear", "factor": 4.0}
    same = merge(base, {"methods": {"m": {"factor": 8.0}}})["methods"]["m"]
    assert same == {"rope_type": "yarn", "factor": 8.0, "beta_fast": 16}


def test_later_includes_win_and_the_file_itself_wins_over_them(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("a: 1\nb: {x: 1, y: 1}\nlist: [1, 2]\n")
    (tmp_path / "two.yaml").write_text("b: {y: 2}\nlist: [3]\n")
    (tmp_path / "top.yaml").write_text("include: [one.yaml, two.yaml]\nb: {z: 3}\n")
    expected = {"a": 1, "b": {"x": 1, "y": 2, "z": 3}, "list": [3]}
    assert load_with_includes(tmp_path / "top.yaml") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("? [1, 2]\n: 3\n", "not valid YAML: found unhashable key \\(line 1, column 3\\)"),
        ("- 1\n", "must be a mapping"),
        ("a: 2020-13-45\n", "not valid YAML"),
        ("include: nowhere.yaml\n", r"nowhere\.yaml: cannot be read: .*No such file"),
    ],
)
def test_files_that_cannot_be_meant(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(SettingError, match=message):
        load_with_includes(path)


def test_overrides_reach_nested_listed_and_dotted_keys() -> None:
    config = {"models": {"llama-3.1": {"dtype": "auto"}}, "tasks": ["a", {"tasks": "b"}]}
    changed = config
    for text in ('models."llama-3.1".dtype=float32', "tasks.1.limit=3", "tasks.0=c", "x.y=[1, 2]"):
        changed = override(changed, text)
    assert changed == {
        "models": {"llama-3.1": {"dtype": "float32"}},
        "tasks": ["c", {"tasks": "b", "limit": 3}],
        "x": {"y": [1, 2]},
    }
    assert config["models"]["llama-3.1"]["dtype"] == "auto"


@pytest.mark.parametrize("item", ["b", ["x", "b"], {"tasks": "b"}, {"tasks": ["x", "b"]}], ids=str)
def test_an_override_names_a_task(item: object) -> None:
    changed = override({"tasks": ["a", item]}, "tasks.b.metadata.num_docs=8")
    own = item["tasks"] if isinstance(item, dict) else item
    assert changed["tasks"] == [{"tasks": "a"}, {"tasks": own, "metadata": {"num_docs": 8}}]
    assert override({"tasks": "b"}, "tasks.b.limit=1")["tasks"] == [{"tasks": "b", "limit": 1}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed", "key=value"),
        ("tasks.7=x", "number of one of 1 entries"),
        ("tasks.one=x", "number of one of 1 entries"),
        ("seed.deeper=1", "lies in int, without keys"),
        ("a..b=1", "key.key=value"),
        ("=1", "key=value"),
        ('a."b=1', "dotted names in quotes"),
        ("a=[1", "is not valid YAML: expected"),
    ],
)
def test_overrides_that_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        override({"tasks": ["a"], "seed": 1}, text)


FACTORS = {"rope": None, "yarn": {"rope_type": "yarn", "factor": [1, 2.5, 4]}, "last": None}


def test_factors_make_a_method_each() -> None:
    models = {"a": {"path": "p"}, "b": {"path": "p", "methods": ["yarn", "rope"]}}
    config = parse_config({"models": models, "methods": FACTORS, "tasks": "wikitext"})
    assert list(config.methods) == ["rope", "yarn-1", "yarn-2.5", "yarn-4", "last"]
    settings = [config.methods[name] for name in ("yarn-1", "yarn-2.5", "yarn-4")]
    assert [rope.settings["factor"] for rope in settings if rope] == [1, 2.5, 4]
    assert config.models["a"].methods is None
    assert config.models["b"].methods == ("yarn-1", "yarn-2.5", "yarn-4", "rope")
    base = {"models": models, "methods": FACTORS, "tasks": "wikitext"}
    one = parse_config(override(base, "methods.yarn.factor=[2]"))
    assert list(one.methods) == ["rope", "yarn-2", "last"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "yarn"}, "yarn has factors 1, 2.5, 4; name one of yarn-1, yarn-2.5, yarn-4"),
        (
            {"methods": {**FACTORS, "yarn-4": None}},
            "methods.yarn: there is a method yarn-4 already",
        ),
        (
            {"methods": {"yarn": {"rope_type": "yarn", "factor": [2, 2.0]}}},
            "there is a method yarn-2 already",
        ),
    ],
)
def test_factors_with_names_that_clash(changes: dict[str, Any], message: str) -> None:
    base = {"models": {"a": {"path": "p"}}, "methods": FACTORS, "tasks": "wikitext"}
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_config({**base, **changes})
