"""YAML from outside: bounded, safe, and one sentence where it cannot be meant."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from leval_harness.yaml_files import MOST_CHARACTERS, parse_yaml, read_yaml
from resonance_vllm.errors import SettingError
from resonance_vllm.files import user_path

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(VALUES)
def test_ordinary_yaml_is_what_pyyaml_reads(value: Any) -> None:
    assert parse_yaml(yaml.safe_dump(value), "here") == value


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59))
def test_a_number_is_decimal_or_none(number: int, minutes: int, seconds: int) -> None:
    """YAML 1.1 reads 010 as 8 and 1:30 as 90."""
    for text in (
        f"0{number}",
        f"-00{number}",
        f"{minutes}:{seconds:02}",
        f"1:{minutes}:{seconds}.5",
    ):
        assert parse_yaml(text, "here") == text
    assert parse_yaml(f"{number}", "here") == parse_yaml(f"{number:#x}", "here") == number
    assert parse_yaml(f"{number:_}", "here") == number
    assert parse_yaml(f"-{number}.5", "here") == -(number + 0.5)


def test_aliases_and_merges_are_allowed() -> None:
    text = "a: &x {b: 1, c: 2}\nd: *x\ne: {<<: *x, c: 3}\n"
    assert parse_yaml(text, "here")["e"] == {"b": 1, "c": 3}
    assert parse_yaml("", "here") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]", "unconstructable recursive node"),
        ("[" * 100_000, "nested too deep"),
        ("a: " + "9" * 5000, "4300 digits"),
        ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: !env HOME", "could not determine a constructor"),
        ("a: 1\na: 2", "the key 'a' is written twice"),
        ("? [1, 2]\n: 3", "key must be plain text"),
        ("a: *b", "undefined alias"),
        ("a: !!bool maybe", r"'maybe' is no !!bool \('maybe'\) \(line 1, column 4\)"),
        ("a: !!int ''", "'' is no !!int"),
        ("a: !!float ''", "'' is no !!float"),
        ("a: !!timestamp x", "'x' is no !!timestamp"),
        ("a: !!map 3", "'3' is no !!map"),
        ("a: 2020-13-45", "month"),
        ("a: \0", "unacceptable character"),
        (r'a: "\ud83d"', r"\\ud83d is half a character.*\(line 1, column 4\)"),
        ("a: 1\n---\nb: 2", "another document"),
        ("#" * (MOST_CHARACTERS + 1), "is longer than"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence_and_its_place(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        parse_yaml(text, "here")
    assert str(caught.value).startswith("here: ")
    assert str(caught.value).count("\n") in (0, 2)
    assert len(str(caught.value)) < 500


def test_the_caret_is_below_the_mistake() -> None:
    with pytest.raises(SettingError) as caught:
        parse_yaml("models:\n  a: {path: x\n  b: [1]\n", "my.yaml")
    assert str(caught.value) == (
        "my.yaml: is not valid YAML: while parsing a flow mapping expected ',' or '}', but got ':' "
        "(line 3, column 4)\n    b: [1]\n     ^"
    )


TAGS = ("bool", "int", "float", "timestamp", "binary", "null", "str", "omap", "pairs", "set", "seq",
        "map", "merge", "value", "python/name:os.system", "nothing")  # fmt: skip


@given(st.sampled_from(TAGS), st.text(max_size=6), st.booleans())
def test_a_tag_with_any_value_is_a_value_or_a_message(tag: str, text: str, flow: bool) -> None:
    value = f"[{json.dumps(text)}]" if flow else json.dumps(text)
    with contextlib.suppress(SettingError):
        parse_yaml(f"key: !!{tag} {value}", "here")
    with pytest.raises(SettingError, match=r"^here: "):
        parse_yaml(f"key: [!!{tag} {value}", "here")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a: \xff\xfe\n", "not UTF-8"), (b"- 1\n", "must be a mapping of settings, not list")],
)
def test_files_that_are_no_settings(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=message):
        read_yaml(path)
    with pytest.raises(SettingError, match="cannot be read"):
        read_yaml(tmp_path)


@pytest.mark.parametrize("text", ["~nouser/x", "a\0b", "x" * 5000])
def test_what_can_be_no_path_is_said(text: str) -> None:
    with pytest.raises(SettingError, match="is no path"):
        user_path(text)


def test_home_is_found_and_missing_files_are_paths() -> None:
    assert user_path("~/x") == Path.home() / "x"
    assert user_path("nowhere/x") == Path("nowhere/x")
