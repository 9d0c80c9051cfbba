"""One dialect: the field, the value, what is allowed, what is near."""

import pytest

from resonance_vllm.common.errors import (
    SettingError,
    UserError,
    check_choice,
    choices_hint,
    did_you_mean,
)


def test_a_name_is_one_of_those_allowed():
    assert check_choice("truncation", "left", ("left", "right")) == "left"
    with pytest.raises(SettingError) as caught:
        check_choice("truncation", "mid", ("middle", "right"))
    assert str(caught.value) == (
        "truncation: 'mid' is not allowed; allowed: middle, right; did you mean 'middle'?"
    )
    with pytest.raises(UserError):
        check_choice("truncation", None, ("left",), UserError)


def test_any_value_can_be_refused():
    for value in ("x" * 10**4, ["left"], "\x1b[2J", 3):
        with pytest.raises(SettingError, match=r"^truncation: ") as caught:
            check_choice("truncation", value, ("left", "right"))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300


def test_near_names_ignore_case_and_long_lists_are_left_out():
    assert did_you_mean("YaRN", ["yarn", "linear"]) == "; did you mean 'yarn'?"
    assert did_you_mean("zzz", ["yarn"]) == ""
    many = [f"name-{i}" for i in range(99)]
    assert choices_hint("name-7", many).startswith("; did you mean 'name-7'")
