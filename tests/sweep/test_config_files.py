"""Reading, including and overriding YAML: what is written is meant, or an error says why."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_harness.sweep import ConfigError
from leval_harness.sweep.config_files import (
    find_config,
    load_with_includes,
    merge,
    override,
)
from resonance_vllm.errors import SettingError

VALUES = st.recursive(
    st.integers() | st.text(max_size=5) | st.none() | st.booleans(),
    lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=8,
)
CONFIGS = st.dictionaries(st.text("abc", min_size=1, max_size=2), VALUES, max_size=4)


@given(CONFIGS, CONFIGS)
def test_merge_keeps_every_leaf_of_the_upper_layer(base: dict, over: dict) -> None:
    def leaves(node: object, path: tuple = ()) -> dict:
        if isinstance(node, dict) and node:
            found: dict = {}
            for key, item in node.items():
                found |= leaves(item, (*path, key))
            return found
        return {path: node}

    def at(node: object, path: tuple) -> object:
        for key in path:
            node = node[key]  # type: ignore[index]
        return node

    merged = merge(base, over)
    for path, value in leaves(over).items():
        if value != {}:
            assert at(merged, path) == value
    assert set(merged) == set(base) | set(over)


def test_another_rope_type_leaves_nothing_of_the_old_method_behind() -> None:
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


def test_names_near_a_shipped_sweep_are_suggested() -> None:
    assert find_config("quickstart").name == "quickstart.yaml"
    with pytest.raises(ConfigError, match="did you mean 'quickstart'"):
        find_config("quikstart")
    with pytest.raises(ConfigError, match=r"'nowhere/x\.yaml' is no file and no shipped sweep"):
        find_config("nowhere/x.yaml")


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


def test_an_override_names_the_only_task() -> None:
    changed = override({"tasks": "b", "metadata": {"stride": 4}}, "tasks.b.metadata.num_docs=8")
    assert changed["tasks"] == [{"tasks": "b", "metadata": {"num_docs": 8}}]
    assert override({"tasks": "b"}, "tasks=c") == {"tasks": "c"}


@pytest.mark.parametrize("item", ["b", ["x", "b"], {"tasks": "b"}, {"tasks": ["x", "b"]}], ids=str)
def test_an_override_names_a_task(item: object) -> None:
    changed = override({"tasks": ["a", item]}, "tasks.b.metadata.num_docs=8")
    own = item["tasks"] if isinstance(item, dict) else item
    assert changed["tasks"] == [{"tasks": "a"}, {"tasks": own, "metadata": {"num_docs": 8}}]


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


@given(st.text('ab."=[]0', max_size=12))
def test_no_override_text_ends_in_anything_but_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        override({"a": {"b": 1}, "tasks": [1]}, text)
