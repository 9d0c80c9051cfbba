"""What is wrong in a setting is told in one dialect, whatever pydantic calls it."""

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, field_validator, model_validator

from resonance_vllm.errors import SettingError, UserError
from resonance_vllm.settings import Settings, read


class Layer(Settings):
    width: int = Field(ge=1, le=1_048_576)
    kind: Literal["plain, old", "this or that", "new"] = "new"


class Config(Settings):
    rate: float = Field(1.0, gt=0)
    share: float = Field(0.5, ge=0, lt=1)
    device: Literal["auto", "cpu"] | int = "auto"
    lengths: tuple[int, ...] = Field((1,), strict=False, min_length=1)
    many: float | list[float] = 1.0
    methods: dict[str, int | list[int]] = Field(default_factory=dict)
    layer: Layer | None = None
    layers: list[Layer] = Field(default_factory=list)
    name: str = Field("x", min_length=1)
    fast: bool = False
    even: int = 2
    low: int = 0
    high: int = 9
    source: str = Field("", alias="from")

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
        ({"rate": "1"}, "config.rate: '1' is not allowed; allowed: a number"),
        ({"rate": -1}, "config.rate: -1 is not allowed; allowed: a number above 0"),
        ({"rate": float("nan")}, "config.rate: nan is not allowed; allowed: a finite number"),
        ({"share": 1}, "config.share: 1 is not allowed; allowed: a number below 1"),
        ({"fast": 1}, "config.fast: 1 is not allowed; allowed: true or false"),
        ({"name": None}, "config.name: None is not allowed; allowed: text"),
        ({"name": ""}, "config.name: '' is not allowed; allowed: String of at least 1 character"),
        ({"lengths": 3}, "config.lengths: 3 is not allowed; allowed: a list"),
        ({"lengths": [1, "2"]}, "config.lengths.1: '2' is not allowed; allowed: a whole number"),
        (
            {"layers": [{"width": 1}, {"width": 2**21}]},
            "config.layers.1.width: 2097152 is not allowed; allowed: a number of at most 1048576",
        ),
        ({"layer": [1]}, "config.layer: [1] is not allowed; allowed: a mapping"),
        (
            {"device": "AUT"},
            "config.device: 'AUT' is not allowed; allowed: auto, cpu or a whole number",
        ),
        ({"many": "1"}, "config.many: '1' is not allowed; allowed: a number or a list"),
        ({"many": [1.0, "1"]}, "config.many.1: '1' is not allowed; allowed: a number"),
        # Keys of users that pydantic also calls the members of a union.
        ({"methods": {"int": 1.5}}, "config.methods.int: 1.5 is not allowed; allowed: a whole num"),
        ({"even": 3}, "config.even: 3 is odd"),
        ({"low": 10}, "config.low: 10 is not allowed; at most high=9"),
        ({"from": 1}, "config.from: 1 is not allowed; allowed: text"),
        (None, "config: None is not allowed; allowed: a mapping"),
    ],
)
def test_a_wrong_setting_is_one_sentence(content, message):
    with pytest.raises(SettingError) as caught:
        read(Config, content, "config")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value), "one sentence"


def test_each_wrong_field_has_its_sentence():
    with pytest.raises(SettingError) as caught:
        read(Config, {"rate": 0, "layers": [{"width": 0}, {}]})
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "rate", "layers.0.width", "layers.1.width"
    ]  # fmt: skip


def test_without_a_place_a_model_names_its_own_field():
    with pytest.raises(SettingError, match=r"^low: 10 is not allowed"):
        read(Config, {"low": 10})
    with pytest.raises(SettingError, match=r"^settings: 3 is not allowed"):
        read(Config, 3)


def test_a_changed_copy_is_checked_like_the_first():
    config = read(Config, {"rate": 2, "layer": {"width": 3}})
    assert config.changed(rate=3).rate == 3.0
    assert config.changed(rate=3).layer == config.layer
    assert config.changed(**{"from": "hub"}).changed(rate=3).source == "hub"
    assert config.rate == 2.0
    with pytest.raises(UserError, match="rate: 0 is not allowed"):
        config.changed(rate=0)
    with pytest.raises(SettingError, match="did you mean 'rate'"):
        config.changed(rat=1)


_numbers = st.integers() | st.floats() | st.integers(10**300, 10**310)
_json = st.recursive(
    st.none() | st.booleans() | _numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
_keys = st.sampled_from([*Config.model_fields, "from", "int", "layer"]) | st.text(max_size=4)


@given(st.dictionaries(_keys, _json, max_size=4) | _json)
def test_anything_is_either_read_or_refused(content):
    try:
        config = read(Config, content, "config")
    except SettingError as error:
        said = str(error)
        assert said.startswith("config")
    else:
        json.dumps(config.model_dump(), allow_nan=False)
