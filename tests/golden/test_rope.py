"""Every frequency table, in full precision."""

import json
from itertools import product

import pytest
from golden_access import fine

GEOMETRIES = {
    "llama2 x8": ("--theta", 10000, "--head-dim", 128, "--original", 4096, "--factor", 8),
    "llama3 x4": ("--theta", 500000, "--head-dim", 128, "--original", 8192, "--factor", 4),
    "smollm2 x2": ("--theta", 100000, "--head-dim", 64, "--original", 8192, "--factor", 2),
    "posgen x4": ("--theta", 10000, "--head-dim", 32, "--original", 64, "--factor", 4),
    "odd x2.5": ("--theta", 1234.5, "--head-dim", 26, "--original", 1000, "--factor", 2.5),
    "x1": ("--theta", 10000, "--head-dim", 16, "--original", 512, "--factor", 1),
}
METHODS = {
    "default": ("--method", "default"),
    "linear": ("--method", "linear"),
    "ntk_aware": ("--method", "ntk"),
    "ntk_aware paper": ("--method", "ntk", "--base-scaling", "paper"),
    "dynamic": ("--method", "dynamic"),
    "yarn": ("--method", "yarn"),
    "yarn wavelength": ("--method", "yarn", "--ramp", "wavelength"),
    "llama3": ("--method", "llama3"),
    "llama3 2..8": ("--method", "llama3", "--low-freq-factor", 2, "--high-freq-factor", 8),
    "longrope": ("--method", "longrope"),
}
SMALL = ("--theta", 10000, "--head-dim", 16, "--original", 256, "--factor", 4)
LISTS = (
    *("--short-factor", json.dumps([1 + i / 10 for i in range(8)])),
    *("--long-factor", json.dumps([1 + i * i / 3 for i in range(8)])),
)
LONGER = {
    "dynamic at 2000": ("--method", "dynamic", "--seq-len", 2000),
    "dynamic x1 at 1024": ("--method", "dynamic", "--factor", 1, "--seq-len", 1024),
    "longrope lists": ("--method", "longrope", *LISTS),
    "longrope lists at 1024": ("--method", "longrope", *LISTS, "--seq-len", 1024),
}
RESONANCE = {"": (), "resonance ": ("--resonance",)}


def facts(*flags):
    return json.loads(fine("rope", *flags, "--json"))


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_every_method(golden, geometry):
    found = {
        modifier + method: facts(*METHODS[method], *RESONANCE[modifier], *GEOMETRIES[geometry])
        for method, modifier in product(METHODS, RESONANCE)
    }
    golden(f"rope/{geometry.replace(' ', '-')}.json", found)


def test_what_depends_on_the_length(golden):
    found = {
        modifier + name: facts(*SMALL, *LONGER[name], *RESONANCE[modifier])
        for name, modifier in product(LONGER, RESONANCE)
    }
    golden("rope/lengths.json", found)


def test_the_printed_table(golden, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    golden("rope/table.txt", fine("rope", "--method", "yarn", "--resonance", *SMALL))
