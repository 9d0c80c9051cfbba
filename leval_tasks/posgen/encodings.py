"""The position encodings that PosGen compares: RoPE or Resonance RoPE, plain or under YaRN."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from resonance_vllm.common.errors import check_choice

Name = Literal["rope", "resonance", "yarn", "resonance_yarn", "yarn_code", "resonance_yarn_code"]
Reading = Literal["text", "code"]
"""`text`: a model is trained with the encoding it is tested with; `code`: it is trained without
scaling, which is switched on for the test."""


@dataclass(frozen=True)
class Encoding:
    """One encoding; `scaling` is YaRN of the paper's text, of the authors' code, or None."""

    name: Name
    title: str
    resonance: bool
    scaling: Reading | None


ENCODINGS: Mapping[str, Encoding] = {
    encoding.name: encoding
    for encoding in (
        Encoding("rope", "RoPE", False, None),
        Encoding("resonance", "Resonance RoPE", True, None),
        Encoding("yarn", "YaRN", False, "text"),
        Encoding("resonance_yarn", "Resonance YaRN", True, "text"),
        Encoding("yarn_code", "YaRN (code)", False, "code"),
        Encoding("resonance_yarn_code", "Resonance YaRN (code)", True, "code"),
    )
}
"""Name -> encoding; the paper's four first, in its order."""

PUBLISHED: tuple[Name, ...] = ("rope", "resonance", "yarn", "resonance_yarn")
"""Those of the paper's Table 1."""


class Pair(NamedTuple):
    """What a model was trained with, and what it was tested with."""

    trained: Name
    tested: Name


OF_CODE = {
    "yarn": Pair("rope", "yarn_code"),
    "resonance_yarn": Pair("resonance", "resonance_yarn_code"),
}
"""Row of Table 1 -> what the authors' code trains and tests for it, where they differ."""


def parse_tests(documents: Iterable[str]) -> Mapping[str, list[str]]:
    """Return trained encoding -> encodings to test it under, from `TESTED` or `NATIVE:TESTED`."""
    tests: dict[str, list[str]] = {name: [] for name in ENCODINGS}
    for text in documents:
        names = [check_choice("encoding", name.strip(), ENCODINGS) for name in text.split(":", 1)]
        for trained in names[:1] if ":" in text else tests:
            tests[trained].append(names[-1])
    return tests


def published_pairs(reading: Reading) -> dict[str, Pair]:
    """Return for each row of the paper's Table 1 what a reading of the protocol trains and tests."""
    pairs: dict[str, Pair] = {name: Pair(name, name) for name in PUBLISHED}
    return pairs | (OF_CODE if reading == "code" else {})


def trained_by_default(reading: Reading) -> tuple[Name, ...]:
    """Return the encodings that the published table needs models of."""
    return tuple(dict.fromkeys(pair.trained for pair in published_pairs(reading).values()))


def tests_of(reading: Reading, trained: str) -> tuple[Name, ...]:
    """Return the encodings under which a reading tests a model that was trained with one."""
    pairs = published_pairs(reading).values()
    further = [pair.tested for pair in pairs if pair.trained == trained]
    return tuple(dict.fromkeys([ENCODINGS[trained].name, *further]))
