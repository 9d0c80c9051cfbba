"""Every family on transformers: stock modules with their wavelengths rounded, or refused."""

import functools
import inspect
import math
import sys

import pytest
import torch
from families_models import (
    answers,
    asked,
    config_of,
    global_rotations,
    model_of,
    output,
    shipped_of,
)
from families_record import settle

from resonance_vllm import hf
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.method import plain_frequencies
from resonance_vllm.core.spec import BASE_TYPES, STOCK_TYPES, RopeRequest
from resonance_vllm.core.spec import LENGTH as L
from resonance_vllm.hf_build import held_by_transformers
from resonance_vllm.hf_float32 import rotations
from resonance_vllm.hf_request import by_layer
from resonance_vllm.hf_rotary import hold
from resonance_vllm.positions import ModelPositions
from resonance_vllm.settings import hf_overrides

pytestmark = pytest.mark.hf

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
        held_by_transformers(str(folder), hf_overrides(spec, model))
    except RopeConfigError as error:
        return str(error)
    return None


def settings_of(folder, name):
    """Keys of a method for a family, or what the family ships."""
    if name == SHIPPED:
        return shipped_of(config_of(folder))
    method, _ = BASE_TYPES[name]
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
    except (KeyError, RuntimeError, TypeError):
        return None
    return model


def expected(folder, settings, *, rounded):
    """A stock model whose rotary modules turn as settings without Resonance say, or rounded.

    Where the library has no such type, or cannot run it on the family: plain frequencies times
    the ratio by which the method changes plain ones.
    """
    model = stock_model(folder, settings)
    method = None
    if model is None:
        shipped = shipped_of(config_of(folder))
        kind, implied = BASE_TYPES[settings["rope_type"]]
        keys = {key: value for key, value in settings.items() if key in kind.key_names()}
        method = kind(**{"rope_theta": shipped["rope_theta"], **implied, **keys})
        plain = "proportional" if shipped["rope_type"] == "proportional" else "default"
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


def check(folder, name, *, resonance):
    """Ours against the stock model: frequencies, attention factor, rotated features, logits."""
    settings = settings_of(folder, name)
    own = {**settings, "rope_type": name_of(settings["rope_type"], resonance=resonance)}
    try:
        ours = model_of(asked(config_of(folder), own))
    except (KeyError, RuntimeError):
        # Loud, where the library has the type and cannot run it either.
        assert name in STOCK_TYPES
        assert stock_model(folder, settings) is None
        return None
    except RopeConfigError:
        # The type makes other features than the family's code turns.
        assert counts(model_of(asked(config_of(folder), settings))) != counts(shipped_model(folder))
        return None
    wanted = expected(folder, settings, rounded=resonance)
    pairs = zip(global_rotations(ours), global_rotations(wanted), strict=True)
    for (module, prefix, kind), (reference, _, _) in pairs:
        held, there = (getattr(each, f"{prefix}inv_freq") for each in (module, reference))
        torch.testing.assert_close(held, there, rtol=1e-5, atol=0)
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
    torch.testing.assert_close(a, b, rtol=0, atol=1e-4 * float(b.abs().max()))
    return a


def test_resonance_on_what_is_shipped_or_a_reason(family):
    refused = refusal(family)
    settle("transformers", family, refused)
    if refused is None:
        check(family, SHIPPED, resonance=True)


def test_yarn_and_resonance_are_not_the_model_as_shipped(family):
    if refusal(family) is None and global_rotations(shipped_model(family)):
        shipped = output(shipped_model(family), IDS)
        ours = check(family, "yarn", resonance=True)
        assert float((ours - shipped).abs().max()) > 1e-3 * float(shipped.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("resonance", [False, True])
@pytest.mark.parametrize("name", BASE_TYPES)
def test_every_method(family, name, resonance):
    if refusal(family) is None and (resonance or name not in STOCK_TYPES):
        check(family, name, resonance=resonance)


def own_model(folder, name=SHIPPED, length=None, **more):
    """A model with Resonance on a method, or on what is shipped."""
    settings = settings_of(folder, name) | more
    kind = name_of(settings["rope_type"], resonance=True)
    return model_of(asked(config_of(folder), {**settings, "rope_type": kind}, length))


def runs(folder):
    """Whether there is a rotation to ask for."""
    return refusal(folder) is None and bool(global_rotations(shipped_model(folder)))


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_frequencies_that_change_with_the_length(family, name):
    """Short, long and short again: at each length the library's own, rounded."""
    if not runs(family) or shipped_of(config_of(family))["rope_type"] == "proportional":
        return
    length, settings = 16, settings_of(family, name) | {L: 16}
    if stock_model(family, settings) is None:
        return
    stock = model_of(asked(config_of(family), settings, length))
    ours = own_model(family, name, length, **{L: 16})
    same = {kind: module for module, _, kind in global_rotations(ours)}
    for module, prefix, kind in global_rotations(stock):
        for count in (10, 40, 50, 45, 12):
            positions = list(range(count))
            try:
                answers(module, kind, positions)
            except UnboundLocalError:
                return  # transformers cannot do this by layer type
            held = getattr(module, f"{prefix}inv_freq").double()
            wavelengths = (2 * math.pi / held).round().clamp(min=1)
            turned = torch.tensor(positions)[:, None] % wavelengths * (2 * math.pi / wavelengths)
            cos = turned.cos() * getattr(module, f"{prefix}attention_scaling")
            found = answers(same[kind], kind, positions)[0][0]
            pairs = same[kind]._carried[kind].layout.features == "pairs"
            found = found[:, ::2] if pairs else found[:, : cos.shape[-1]]
            torch.testing.assert_close(found.double(), cos, rtol=0, atol=2e-5)


def test_a_saved_model_is_loaded_alike(family, tmp_path):
    if not runs(family):
        return
    model = own_model(family)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    assert by_layer(loaded.config.get_text_config()) == by_layer(model.config.get_text_config())
    assert hold(loaded) == hold(model)
    torch.testing.assert_close(output(loaded, IDS), output(model, IDS), rtol=0, atol=1e-4)


def test_rotary_modules_compile_whole(family):
    if not runs(family):
        return
    for module, _, kind in global_rotations(own_model(family)):
        if module._carried[kind].follows:
            continue  # a length that frequencies follow is looked at, by transformers too
        keywords = {} if kind is None else {"layer_type": kind}
        compiled = torch.compile(
            functools.partial(module, **keywords), fullgraph=True, backend="aot_eager"
        )
        positions = torch.arange(40)[None]
        found = compiled(torch.zeros(1), positions)
        wanted = module(torch.zeros(1), positions, **keywords)
        wanted = [wanted] if isinstance(wanted, torch.Tensor) else wanted
        found = [found] if isinstance(found, torch.Tensor) else found
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)
        torch.compiler.reset()


def test_positions_of_several_axes(family):
    """A picture's tokens have three positions; text has three equal ones."""
    if not runs(family):
        return
    wanted = expected(family, settings_of(family, SHIPPED), rounded=True)
    ours = own_model(family)
    pairs = zip(global_rotations(ours), global_rotations(wanted), strict=True)
    for (module, _, kind), (reference, _, _) in pairs:
        axes = module._carried[kind].layout.axes
        if axes is None:
            continue
        count = max(axes) + 1
        apart = torch.stack([torch.arange(30) * (axis + 1) for axis in range(count)])[:, None]
        equal = torch.arange(30).expand(count, 1, -1)
        x = torch.zeros(1)
        for positions in (apart, equal):
            for a, b in zip(module(x, positions), reference(x, positions), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=2e-5)
        for a, b in zip(module(x, equal), module(x, equal[0]), strict=True):
            assert a.equal(b)


def test_rotation_in_float32(family):
    """Queries and keys are turned in float32 and given back in the model's dtype, or it is said."""
    if not runs(family):
        return
    model = own_model(family).to(torch.bfloat16)
    before = output(model, IDS)
    hf.set_rope_precision(model, "float32")
    assert model.rope_precision_used == "float32"  # every family here; others may say `model`
    # One function may call another one of them, in float32 already.
    seen = [
        call for call in turned_by(model) if next(iter(call[1].values())).dtype == torch.bfloat16
    ]
    assert seen
    for function, inputs, answer in seen:
        wide = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        turn = wide.get("cos", wide.get("freqs_cis"))
        assert turn.dtype in (torch.float32, torch.complex64)
        doubled = {k: v.double() if v.is_floating_point() else v for k, v in wide.items()}
        exact = function(**{**inputs, **doubled})
        pairs = zip(
            *((each,) if isinstance(each, torch.Tensor) else each for each in (answer, exact)),
            strict=True,
        )
        for found, wanted in pairs:
            assert found.dtype == torch.bfloat16
            apart = (found.double() - wanted.double()).abs()
            assert bool((apart <= wanted.double().abs() * 2**-8 * 1.001 + 1e-6).all())
    hf.set_rope_precision(model, "model")
    assert output(model, IDS).equal(before)


def turned_by(model):
    """Calls of rotation functions in one forward pass: the family's own, arguments, answer."""
    seen = []
    module = sys.modules[type(global_rotations(model)[0][0]).__mro__[1].__module__]
    spied = dict(rotations(module))

    def spy(function):
        own = inspect.unwrap(function)
        signature = inspect.signature(own)

        @functools.wraps(function)
        def call(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            answer = function(*args, **kwargs)
            seen.append((own, dict(bound.arguments), answer))
            return answer

        return call

    for name, function in spied.items():
        setattr(module, name, spy(function))
    try:
        output(model, IDS)
    finally:
        for name, function in spied.items():
            setattr(module, name, function)
    return seen
