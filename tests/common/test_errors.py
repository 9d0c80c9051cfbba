"""One dialect: the field, the value, what is allowed, what is near."""

import pytest

from resonance_vllm.common.errors import SettingError, UserError, hint, near, one_of


def test_a_name_is_one_of_those_allowed():
    assert one_of("truncation", "left", ("left", "right")) == "left"
    with pytest.raises(SettingError) as caught:
        one_of("truncation", "mid", ("middle", "right"))
    assert str(caught.value) == (
        "truncation: 'mid' is not allowed; allowed: middle, right; did you mean 'middle'?"
    )
    with pytest.raises(UserError):
        one_of("truncation", None, ("left",), UserError)


def test_any_value_can_be_refused():
    for value in ("x" * 10**4, ["left"], "\x1b[2J", 3):
        with pytest.raises(SettingError, match=r"^truncation: ") as caught:
            one_of("truncation", value, ("left", "right"))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300


def test_near_names_ignore_case_and_long_lists_are_left_out():
    assert near("YaRN", ["yarn", "linear"]) == "; did you mean 'yarn'?"
    assert near("zzz", ["yarn"]) == ""
    many = [f"name-{i}" for i in range(99)]
    assert hint("name-7", many).startswith("; did you mean 'name-7'")
