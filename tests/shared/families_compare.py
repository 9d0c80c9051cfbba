"""A family under a method, ours against the library's own model: what the tests of families do."""

import functools
import math

import pytest
import torch
from families_models import (
    answers,
    applied,
    asked,
    config_of,
    global_rotations,
    model_of,
    output,
    shipped_of,
)
from families_record import RIGHT, folders, read

from resonance_vllm.config import ModelPositions
from resonance_vllm.core.method import plain_frequencies
from resonance_vllm.core.spec import LENGTH as L
from resonance_vllm.core.spec import METHODS, STOCK_TYPES, RopeRequest
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf import report_of_checkpoint

LENGTH, FACTOR = 1024, 4.0
IDS = torch.randint(5, 100, (1, 40), generator=torch.Generator().manual_seed(1))
NEAR = list(range(40))
SHIPPED = "shipped"


@functools.cache
def refusal(folder):
    """Why a family cannot be asked for Resonance at all, by the way that every command goes."""
    try:
        model = ModelPositions.of_checkpoint(str(folder))
        spec = model.complete(RopeRequest.parse("resonance"))
        report_of_checkpoint(str(folder), spec)
    except RopeConfigError as error:
        return str(error)
    return None


def outcomes():
    """Family -> `right` or why transformers refuses it: as noted, or tried without a note."""
    notes = read("transformers")
    return {
        folder: notes.get(folder.name) or refusal(folder) or RIGHT  # one just added has no note
        for folder in folders()
    }


def in_turn(families, values, argument):
    """Parametrise by every family with every value; `make test` runs one value of each family.

    The values take turns, so that each of them runs on some family.
    """
    return pytest.mark.parametrize(
        ("family", argument),
        [
            pytest.param(
                family,
                value,
                marks=() if at == turn % len(values) else pytest.mark.long,
                id=f"{family.name}-{value}",
            )
            for turn, family in enumerate(families)
            for at, value in enumerate(values)
        ],
    )


def settings_of(folder, name):
    """Keys of a method for a family, or what the family ships."""
    if name == SHIPPED:
        return shipped_of(config_of(folder))
    method = METHODS[name]
    (module, prefix, _), *_ = global_rotations(shipped_model(folder)) or [(None, "", None)]
    count = 1 if module is None else len(getattr(module, f"{prefix}inv_freq"))
    keys = {key: value for key, value in method.example(2 * count).items() if key != "rope_theta"}
    keys |= {"factor": FACTOR} if "factor" in method.key_names() else {}
    return keys | {"rope_type": name, "original_max_position_embeddings": LENGTH}


@functools.cache
def shipped_model(folder):
    return model_of(config_of(folder))


def stock_model(folder, settings):
    """The library's own model with settings of its own; None where it cannot run them."""
    if settings["rope_type"] not in STOCK_TYPES:
        return None
    try:
        model = model_of(asked(config_of(folder), settings))
        output(model, IDS)
    except (KeyError, RuntimeError, TypeError, ValueError):
        return None
    return model


def expected(folder, settings, *, rounded):
    """A stock model whose rotary modules turn as settings without Resonance say, or rounded.

    Where the library has no such type, or cannot run it on the family: plain frequencies times
    the ratio by which the method changes plain ones.
    """
    shipped = shipped_of(config_of(folder))
    plain = "proportional" if shipped.get("rope_type") == "proportional" else "default"
    # The share of a head that turns is the family's, also without a method.
    same = settings | {"rope_type": plain} if settings["rope_type"] == "default" else settings
    model = stock_model(folder, same)
    method = None
    if model is None:
        kind = METHODS[settings["rope_type"]]
        keys = {key: value for key, value in settings.items() if key in kind.key_names()}
        method = kind(**{"rope_theta": shipped["rope_theta"], **keys})
        model = stock_model(folder, {"rope_type": plain, L: LENGTH})
    for module, prefix, _ in global_rotations(model):
        held = getattr(module, f"{prefix}inv_freq")
        found = held.double()
        if method is not None:
            dim = 2 * len(found)
            found *= method.frequencies(dim) / plain_frequencies(method.rope_theta, dim)
            setattr(module, f"{prefix}attention_scaling", method.scale())
        if rounded:
            lengths = (2 * math.pi / found).round().clamp(min=1)
            found = torch.where(found > 0, 2 * math.pi / lengths, found)
        held.copy_(found)
        getattr(module, f"{prefix}original_inv_freq").copy_(found)
    return model


def name_of(base, *, resonance):
    if not resonance:
        return base
    return "resonance" if base == "default" else f"resonance_{base}"


def counts(model):
    """How many features the rotations have."""
    return [
        len(getattr(module, f"{prefix}inv_freq")) for module, prefix, _ in global_rotations(model)
    ]


@functools.cache
def fixed_in_code(folder):
    """Whether a family's code makes fixed frequencies of `dynamic`, which begins as plain RoPE."""
    models = [stock_model(folder, settings_of(folder, name)) for name in ("dynamic", "default")]
    if None in models:
        return False
    held = [[getattr(m, f"{p}inv_freq") for m, p, _ in global_rotations(each)] for each in models]
    return any(
        len(a) == len(b) and not a.allclose(b, rtol=1e-3) for a, b in zip(*held, strict=True)
    )


def check(folder, name, *, resonance, loose=1.0):
    """Ours against the stock model: frequencies, attention factor, rotated features, logits.

    `loose` multiplies the tolerances: a wavelength in float32 halfway between two integers is
    rounded to either, and some families have wide logits.
    """
    settings = settings_of(folder, name)
    own = {**settings, "rope_type": name_of(settings["rope_type"], resonance=resonance)}
    try:
        ours = applied(asked(config_of(folder), own))
    except (KeyError, RuntimeError):
        # Loud, where the library has the type and cannot run it either.
        assert name in STOCK_TYPES
        assert stock_model(folder, settings) is None
        return None
    except RopeConfigError:
        # The type makes other features than the family's code turns, or the code has its own.
        assert (name == "dynamic" and fixed_in_code(folder)) or counts(
            model_of(asked(config_of(folder), settings))
        ) != counts(shipped_model(folder))
        return None
    wanted = expected(folder, settings, rounded=resonance)
    pairs = zip(global_rotations(ours), global_rotations(wanted), strict=True)
    for (module, prefix, kind), (reference, _, _) in pairs:
        held, there = (getattr(each, f"{prefix}inv_freq") for each in (module, reference))
        torch.testing.assert_close(held, there, rtol=1e-5 * loose, atol=0)
        factors = [getattr(each, f"{prefix}attention_scaling") for each in (module, reference)]
        assert factors[0] == pytest.approx(factors[1], rel=1e-6)
        found, stock = answers(module, kind, NEAR), answers(reference, kind, NEAR)
        for a, b in zip(found, stock, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=2e-5)
        if resonance:
            fastest = round(2 * math.pi / float(held[0]))
            near, far = (answers(module, kind, [n, n + fastest * 21845])[0] for n in (3, 5))
            assert near[:, 0, 0].equal(near[:, 1, 0])
            assert far[:, 0, 0].equal(far[:, 1, 0])
    a, b = output(ours, IDS), output(wanted, IDS)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-4 * loose * float(b.abs().max()))
    return a
