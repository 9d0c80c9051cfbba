"""What is wrong in a setting is told in one line: place, pydantic's message, given value."""

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, field_validator, model_validator

from resonance_vllm.common.errors import SettingError, UserError
from resonance_vllm.common.settings import Settings, parse_settings


class Layer(Settings):
    width: int = Field(ge=1, le=1_048_576)
    kind: Literal["plain, old", "this or that", "new"] = "new"


class Config(Settings):
    rate: float = Field(1.0, gt=0)
    device: Literal["auto", "cpu"] | int = "auto"
    lengths: tuple[int, ...] = Field((1,), strict=False, min_length=1)
    many: float | list[float] = 1.0
    methods: dict[str, int | list[int]] = Field(default_factory=dict)
    layer: Layer | None = None
    layers: list[Layer] = Field(default_factory=list)
    even: int = 2
    low: int = 0
    high: int = 9
    source: str = Field("", alias="from", exclude=True)

    @field_validator("even")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError(f"{value} is odd")
        return value

    @model_validator(mode="after")
    def _ordered(self) -> "Config":
        if self.low > self.high:
            raise UserError(f"low: {self.low} is not allowed; at most high={self.high}")
        return self


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"layer": {"wdith": 3}},
            "config.layer.wdith: unknown setting; allowed: width, kind; did you mean 'width'?",
        ),
        ({"layer": {}}, "config.layer.width: missing"),
        ({"rate": "1"}, "config.rate: Input should be a valid number ('1' given)"),
        ({"rate": -1}, "config.rate: Input should be greater than 0 (-1 given)"),
        ({"rate": float("nan")}, "config.rate: Input should be a finite number (nan given)"),
        ({"lengths": 3}, "config.lengths: Input should be a valid tuple (3 given)"),
        ({"lengths": [1, "2"]}, "config.lengths.1: Input should be a valid integer ('2' given)"),
        ({"layers": [{"width": 1}, {"width": 0}]}, "config.layers.1.width: Input should be gr"),
        ({"device": "AUT"}, "config.device: Input should be 'auto' or 'cpu' ('AUT' given)"),
        ({"many": [1.0, "1"]}, "config.many.1: Input should be a valid number ('1' given)"),
        # Keys of users that pydantic also calls the members of a union.
        ({"methods": {"int": 1.5}}, "config.methods.int: Input should be a valid integer"),
        ({"even": 3}, "config.even: 3 is odd"),
        ({"low": 10}, "config.low: 10 is not allowed; at most high=9"),
        ({"from": 1}, "config.from: Input should be a valid string (1 given)"),
        ({"layer": {"width": 1, "kind": {"key": "secret"}}}, "kind: Input should be"),
    ],
)
def test_a_wrong_setting_is_one_line(content, message):
    with pytest.raises(SettingError) as caught:
        parse_settings(Config, content, "config")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value), "one line"
    assert "secret" not in str(caught.value), "a value may hold others"


def test_each_wrong_field_has_its_line():
    with pytest.raises(SettingError) as caught:
        parse_settings(Config, {"rate": 0, "layers": [{"width": 0}, {}]})
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "rate", "layers.0.width", "layers.1.width"
    ]  # fmt: skip


def test_without_a_place_a_model_names_its_own_field():
    with pytest.raises(SettingError, match=r"^low: 10 is not allowed"):
        parse_settings(Config, {"low": 10})
    with pytest.raises(SettingError, match=r"^Input should be .* given"):
        parse_settings(Config, 3)


def test_a_changed_copy_is_checked_like_the_first():
    config = parse_settings(Config, {"rate": 2, "layer": {"width": 3}})
    assert config.with_changes(rate=3).rate == 3.0
    assert config.with_changes(rate=3).layer == config.layer
    assert config.with_changes(**{"from": "hub"}).with_changes(rate=3).source == "hub"
    assert config.rate == 2.0
    with pytest.raises(UserError, match="rate: Input should be greater than 0"):
        config.with_changes(rate=0)
    with pytest.raises(SettingError, match="did you mean 'rate'"):
        config.with_changes(rat=1)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
_keys = st.sampled_from([*Config.model_fields, "from", "int", "layer"]) | st.text(max_size=4)


@given(st.dictionaries(_keys, _json, max_size=4) | _json)
def test_anything_is_either_read_or_refused(content):
    try:
        config = parse_settings(Config, content, "config")
    except SettingError as error:
        said = str(error)
        assert said.startswith("config")
    else:
        json.dumps(config.model_dump(), allow_nan=False)
