"""Every family on transformers: stock modules with their wavelengths rounded, or refused."""

import functools
import inspect
import math
import sys

import pytest
import torch
from families_compare import (
    IDS,
    SHIPPED,
    check,
    expected,
    fixed_in_code,
    in_turn,
    name_of,
    outcomes,
    refusal,
    settings_of,
    shipped_model,
    stock_model,
)
from families_models import (
    answers,
    asked,
    config_of,
    global_rotations,
    output,
)
from families_record import RIGHT, settle
from naive_maps import MAPS
from transformers import AutoConfig

from resonance_vllm.core.spec import LENGTH as L
from resonance_vllm.core.spec import METHODS as EVERY_METHOD
from resonance_vllm.core.spec import STOCK_TYPES
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf import registration as hf
from resonance_vllm.hf.float32 import rotations
from resonance_vllm.hf.model import rotary_report
from resonance_vllm.hf.tiny import model_of
from resonance_vllm.positions import by_layer

pytestmark = pytest.mark.hf

RUNS = [family for family, outcome in outcomes().items() if outcome == RIGHT]
every_family_that_runs = pytest.mark.parametrize("family", RUNS, ids=lambda folder: folder.name)
CONFIGS = {family: AutoConfig.from_pretrained(family) for family in RUNS}
HEAD_SIZE_OPEN = [
    family for family, config in CONFIGS.items() if vars(config).get("head_dim", 1) is None
]
SEVERAL_AXES = [
    family
    for family, config in CONFIGS.items()
    if "mrope_section" in (config.get_text_config().rope_parameters or {})
]
SHORT = 16
METHODS = [  # the library's own without Resonance are tested in `test_stock.py`
    name_of(base, resonance=resonance)
    for base in EVERY_METHOD
    for resonance in (False, True)
    if base not in MAPS and (resonance or base not in STOCK_TYPES)
]


def test_resonance_on_what_is_shipped_or_a_reason(family):
    refused = refusal(family)
    settle("transformers", family, refused)
    if refused is None:
        check(family, SHIPPED, resonance=True)


@every_family_that_runs
def test_yarn_and_resonance_are_not_the_model_as_shipped(family):
    shipped = output(shipped_model(family), IDS)
    ours = check(family, "yarn", resonance=True)
    assert float((ours - shipped).abs().max()) > 1e-3 * float(shipped.abs().max())


@in_turn(RUNS, METHODS, "method")
def test_every_method(family, method):
    resonance = method.startswith("resonance")
    base = method.removeprefix("resonance").removeprefix("_") or "default"
    check(family, base, resonance=resonance)


def own_model(folder, name=SHIPPED, length=None, **more):
    """A model with Resonance on a method, or on what is shipped."""
    settings = settings_of(folder, name) | more
    kind = name_of(settings["rope_type"], resonance=True)
    return model_of(asked(config_of(folder), {**settings, "rope_type": kind}, length))


@pytest.mark.parametrize("family", HEAD_SIZE_OPEN, ids=lambda folder: folder.name)
def test_types_of_the_library_build_where_a_config_leaves_the_head_size_open(family):
    config = config_of(family)
    for kind in ("yarn", "linear", "dynamic"):
        model = model_of(asked(config, {"rope_type": kind, "factor": 2.0, L: 16}, 16))
        output(model, torch.arange(5, 45)[None])
        size = config.hidden_size // config.num_attention_heads
        assert {len(m.inv_freq) for m, _, _ in global_rotations(model)} == {size // 2}


@in_turn(RUNS, ["dynamic", "longrope"], "name")
def test_frequencies_that_change_with_the_length(family, name):
    """Short, long and short again: at each length the library's own, rounded."""
    settings = settings_of(family, name) | {L: SHORT}
    if stock_model(family, settings) is None:
        check(family, name, resonance=True)  # refused, or an error as in the library
    elif name == "dynamic" and fixed_in_code(family):
        with pytest.raises(RopeConfigError, match="of its own, which factor 4 does not change"):
            own_model(family, name, SHORT, **{L: SHORT})
    else:
        stock = model_of(asked(config_of(family), settings, SHORT))
        same_at_each_length(own_model(family, name, SHORT, **{L: SHORT}), stock)


def same_at_each_length(ours, stock):
    same = {kind: module for module, _, kind in global_rotations(ours)}
    for module, prefix, kind in global_rotations(stock):
        for count in (10, 40, 50, 45, 12):
            positions = list(range(count))
            try:
                answers(module, kind, positions)  # which is when it follows the length
            except UnboundLocalError:
                continue  # transformers cannot do this by layer type
            held = getattr(module, f"{prefix}inv_freq").double()
            wavelengths = (2 * math.pi / held).round().clamp(min=1)
            turned = torch.tensor(positions)[:, None] % wavelengths * (2 * math.pi / wavelengths)
            cos = turned.cos() * getattr(module, f"{prefix}attention_scaling")
            found = answers(same[kind], kind, positions)[0][0]
            pairs = same[kind]._requested[kind].layout.features == "pairs"
            found = found[:, ::2] if pairs else found[:, : cos.shape[-1]]
            torch.testing.assert_close(found.double(), cos, rtol=0, atol=2e-5)


@every_family_that_runs
def test_a_saved_model_is_loaded_alike(family, tmp_path, caplog):
    model = own_model(family)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    loaded.config.get_text_config().validate_rope()  # as vLLM does of a config that it has read
    assert "Missing validation" not in caplog.text
    assert by_layer(loaded.config.get_text_config()) == by_layer(model.config.get_text_config())
    assert rotary_report(loaded) == rotary_report(model)
    torch.testing.assert_close(output(loaded, IDS), output(model, IDS), rtol=0, atol=1e-4)


@every_family_that_runs
def test_rotary_modules_compile_whole(family):
    for module, _, kind in global_rotations(own_model(family)):
        axes = module._requested[kind].layout.axes
        assert (axes is not None) == (family in SEVERAL_AXES)
        if module._requested[kind].follows:
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


@pytest.mark.parametrize("family", SEVERAL_AXES, ids=lambda folder: folder.name)
def test_positions_of_several_axes(family):
    """A picture's tokens have three positions; text has three equal ones."""
    wanted = expected(family, settings_of(family, SHIPPED), rounded=True)
    ours = own_model(family)
    pairs = zip(global_rotations(ours), global_rotations(wanted), strict=True)
    for (module, _, kind), (reference, _, _) in pairs:
        count = max(module._requested[kind].layout.axes) + 1
        apart = torch.stack([torch.arange(30) * (axis + 1) for axis in range(count)])[:, None]
        equal = torch.arange(30).expand(count, 1, -1)
        x = torch.zeros(1)
        for positions in (apart, equal):
            for a, b in zip(module(x, positions), reference(x, positions), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=2e-5)
        for a, b in zip(module(x, equal), module(x, equal[0]), strict=True):
            assert a.equal(b)


@every_family_that_runs
def test_rotation_in_float32(family):
    """Queries and keys are turned in float32 and given back in the model's dtype, or it is said."""
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
