"""transformers runs what the closed forms say, in every family and however a model is built."""

import copy
import functools
import logging
import math
import pickle
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from resonance_vllm.core import frequencies
from resonance_vllm.core.methods.position_map import MappedMethod
from resonance_vllm.core.phase import cos_sin
from resonance_vllm.core.spec import OWN_TYPES, RopeSpec, RopeType
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf import registration as hf
from resonance_vllm.model_config.model_positions import ModelPositions
from resonance_vllm.model_config.overrides import hf_overrides

pytestmark = pytest.mark.hf

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"]
BASE, DIM, ORIGINAL, FACTOR = 10000.0, 16, 256, 4.0
RESONANCE_YARN = {
    "rope_type": "resonance_yarn",
    "rope_theta": BASE,
    "factor": FACTOR,
    "original_max_position_embeddings": ORIGINAL,
}
DEFAULT = {"rope_type": "default", "rope_theta": BASE}
IDS = torch.randint(3, 64, (2, 700), generator=torch.Generator().manual_seed(1))


def yarn_wavelength_list(ramp="dimension"):
    """Closed form, in plain Python: the wavelengths of YaRN before rounding."""

    def dimension_of(turns):
        return DIM * math.log(ORIGINAL / (turns * 2 * math.pi)) / (2 * math.log(BASE))

    low, high = max(math.floor(dimension_of(32)), 0), min(math.ceil(dimension_of(1)), DIM - 1)
    result = []
    for j in range(DIM // 2):
        theta = BASE ** (-2 * j / DIM)
        mixed = min(max((j - low) / (high - low), 0), 1)
        result.append(2 * math.pi / (theta / FACTOR * mixed + theta * (1 - mixed)))
    return result


def wavelengths_of(rope_type):
    plain = [2 * math.pi * BASE ** (2 * j / DIM) for j in range(DIM // 2)]
    return {
        "resonance": plain,
        "resonance_linear": [FACTOR * value for value in plain],
        "resonance_ntk_aware": [
            2 * math.pi * (BASE * FACTOR ** (DIM / (DIM - 2))) ** (2 * j / DIM)
            for j in range(DIM // 2)
        ],
        "resonance_yarn": yarn_wavelength_list(),
    }[rope_type]


def closed_form_forward(lengths, scale):
    """A rotary module's forward: one cosine at a time, from integer wavelengths."""

    def forward(x, position_ids, *args, **kwargs):
        table = [
            [2 * math.pi * (n % length) / length for length in lengths]
            for n in range(int(position_ids.max()) + 1)
        ]
        cos = torch.tensor([[math.cos(a) * scale for a in row] * 2 for row in table])
        sin = torch.tensor([[math.sin(a) * scale for a in row] * 2 for row in table])
        return cos[position_ids].to(x.dtype), sin[position_ids].to(x.dtype)

    return forward


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


def rotary(model):
    return model.model.rotary_emb


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rope_type", ["resonance", "resonance_yarn"])
def test_logits_are_those_of_a_loop_over_the_closed_form(tiny, family, rope_type):
    rope = RESONANCE_YARN if rope_type == "resonance_yarn" else {**DEFAULT, "rope_type": rope_type}
    model = tiny(family, rope)
    ours = logits(model)
    scale = 0.1 * math.log(FACTOR) + 1 if rope_type == "resonance_yarn" else 1.0
    lengths = [round(value) for value in wavelengths_of(rope_type)]
    reference = closed_form_forward(lengths, scale)
    module, own = rotary(model), rotary(model).forward

    def by_layer(x, position_ids, layer_type=None):
        used = own if layer_type == "sliding_attention" else reference
        return used(x, position_ids, *([layer_type] if layer_type else []))

    module.forward = by_layer
    torch.testing.assert_close(ours, logits(model), rtol=1e-5, atol=1e-5)
    plain = logits(tiny(family, DEFAULT))
    assert float((ours - plain).abs().max()) > 1e-2


@pytest.mark.parametrize("rope_type", ["resonance_linear", "resonance_ntk_aware"])
def test_other_resonance_types_follow_their_closed_form(tiny, rope_type):
    model = tiny("llama", {**RESONANCE_YARN, "rope_type": rope_type})
    ours = logits(model)
    lengths = [round(value) for value in wavelengths_of(rope_type)]
    rotary(model).forward = closed_form_forward(lengths, 1.0)
    torch.testing.assert_close(ours, logits(model), rtol=1e-5, atol=1e-5)


def test_phase_is_exact_far_away(tiny):
    module = rotary(tiny("llama", {**DEFAULT, "rope_type": "resonance"}))
    near = torch.arange(6)[None]
    far = near + 6 * 170000  # wavelength 6 is the fastest feature's
    x = torch.zeros(1)
    assert module(x, near)[0][..., 0].equal(module(x, far)[0][..., 0])


def test_ntk_aware_and_yarn_wavelength_run_with_their_frequencies(tiny):
    found = rotary(tiny("llama", {**RESONANCE_YARN, "rope_type": "ntk_aware"})).inv_freq
    base = BASE * FACTOR ** (DIM / (DIM - 2))
    expected = torch.tensor([base ** (-2 * j / DIM) for j in range(DIM // 2)])
    torch.testing.assert_close(found, expected)
    by_paper = rotary(tiny("llama", {**RESONANCE_YARN, "rope_type": "yarn_wavelength"})).inv_freq
    stock = rotary(tiny("llama", {**RESONANCE_YARN, "rope_type": "yarn"})).inv_freq
    assert not torch.allclose(by_paper, stock, rtol=1e-2)


@pytest.mark.parametrize("rope_type", OWN_TYPES)
def test_every_type_of_ours_is_registered_and_runs_with_its_frequencies(tiny, rope_type):
    kind = RopeType.read(rope_type)
    settings = {"rope_type": rope_type, "rope_theta": BASE, **kind.method.example(DIM)}
    if "factor" in kind.method.model_fields:
        settings |= {"factor": FACTOR, "original_max_position_embeddings": ORIGINAL}
    model = tiny("llama", settings)
    spec = RopeSpec.from_dict(settings)
    expected = frequencies.inv_freq(spec, DIM).to(torch.float32)
    assert rotary(model).inv_freq.equal(expected)
    assert logits(model, IDS[:1, :20]).isfinite().all()
    cos, _ = rotary(model)(torch.zeros(1), torch.arange(20)[None])
    kept = torch.arange(20)
    if isinstance(spec.method, MappedMethod):
        kept = spec.method.kept_at(kept)
    wanted, _ = cos_sin(spec, DIM, kept, torch.float32)
    torch.testing.assert_close(cos[0, :, : DIM // 2], wanted, rtol=0, atol=1e-5)


def test_every_way_of_building_gives_the_same_model(tiny, tmp_path):
    from transformers import AutoModelForCausalLM

    model = tiny("llama", RESONANCE_YARN)
    expected = logits(model)
    model.save_pretrained(tmp_path)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert reloaded.config.rope_parameters == RESONANCE_YARN
    plain = tiny("llama", DEFAULT)
    plain.save_pretrained(tmp_path / "plain")
    overridden = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", rope_parameters=dict(RESONANCE_YARN)
    )
    copies = [reloaded, overridden, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for other in copies:
        # a reloaded model chooses its attention kernel itself
        torch.testing.assert_close(logits(other), expected, rtol=0, atol=2e-4)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(model.config)
    empty.to_empty(device="cpu")
    empty.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits(empty), expected, rtol=0, atol=2e-4)


def test_registration_is_silent_and_leaves_stock_types_alone(caplog, tiny):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.utils import logging as hf_logging

    stock = {k: v for k, v in ROPE_INIT_FUNCTIONS.items() if v is not hf.rope_function}
    assert {"linear", "dynamic", "yarn", "longrope", "llama3"} <= set(stock)
    hf_logging.enable_propagation()
    try:
        with caplog.at_level(logging.WARNING):
            tiny("llama", dict(RESONANCE_YARN))
    finally:
        hf_logging.disable_propagation()
    assert "Missing validation" not in caplog.text


@pytest.mark.parametrize(
    ("shipped", "asked", "said"),
    [
        ("yarn", "resonance_yarn", False),
        ("yarn", "resonance", True),
        ("linear", "ntk_aware", True),
        ("yarn", "linear", False),  # a stock type is the library's own affair
        (None, "resonance_yarn", False),
    ],
)
def test_a_scaling_that_a_keyword_replaces_is_spoken_of_once(
    caplog, monkeypatch, shipped, asked, said
):
    from transformers import LlamaConfig

    from resonance_vllm.model_config import shipped_scaling as replaced

    hf.register()
    replaced.log_once.cache_clear()
    monkeypatch.setattr(replaced, "intended", set())  # what this process replaced on purpose
    keys = {"rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 64}
    content = {"max_position_embeddings": 128, "rope_theta": 10000.0}
    content |= {"rope_scaling": {"rope_type": shipped, **keys} if shipped else None}
    plain = {"rope_theta": 10000.0} if asked == "resonance" else keys
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            LlamaConfig.from_dict(dict(content), rope_parameters={"rope_type": asked, **plain})
    assert caplog.text.count("replaces the scaling that this checkpoint ships") == said


@pytest.mark.parametrize(
    ("model_type", "place"),
    [
        ("qwen2_5_omni", ["thinker_config", "text_config"]),
        ("qwen3_omni_moe", ["thinker_config", "text_config"]),
        ("llava", ["text_config"]),
    ],
)
def test_overrides_of_a_nested_config_change_nothing_else_in_it(model_type, place, tmp_path):
    from transformers import CONFIG_MAPPING, AutoConfig

    hf.register()
    shipped = CONFIG_MAPPING[model_type]()
    text = functools.reduce(getattr, place, shipped)
    text.hidden_size, text.num_attention_heads, text.rms_norm_eps = 96, 6, 0.25
    shipped.save_pretrained(tmp_path)
    model = ModelPositions.of_checkpoint(str(tmp_path))
    spec = model.complete({"rope_type": "resonance_yarn", "factor": 4.0})
    plain = AutoConfig.from_pretrained(tmp_path)
    asked, unused = AutoConfig.from_pretrained(
        tmp_path, return_unused_kwargs=True, **hf_overrides(spec, model)
    )
    assert not unused
    before, after = (functools.reduce(dict.__getitem__, place, c.to_dict()) for c in (plain, asked))
    assert {key for key in after if after[key] != before.get(key)} == {
        "rope_parameters",
        "max_position_embeddings",
    }
    assert after["rope_parameters"]["rope_type"] == "resonance_yarn"


def test_dynamic_follows_the_length_and_comes_back(tiny):
    for factor in (1.0, 2.0):
        rope = {**DEFAULT, "rope_type": "resonance_dynamic", "factor": factor}
        # as a config written for the extended length would have it
        rope["original_max_position_embeddings"] = ORIGINAL
        model = tiny("llama", rope, max_position_embeddings=1024)
        short = logits(model, IDS[:, :100])
        long = logits(model, IDS[:, :600])
        scale = factor * 600 / ORIGINAL - (factor - 1)
        base = BASE * scale ** (DIM / (DIM - 2))
        lengths = [round(2 * math.pi * base ** (2 * j / DIM)) for j in range(DIM // 2)]
        torch.testing.assert_close(logits(model, IDS[:, :100]), short)
        rotary(model).forward = closed_form_forward(lengths, 1.0)
        torch.testing.assert_close(logits(model, IDS[:, :600]), long, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_stock_dynamic_loads_from_a_bfloat16_checkpoint(tiny, tmp_path, factor):
    """transformers builds in the dtype of the checkpoint, in which no length is exact."""
    tiny("llama", DEFAULT).to(torch.bfloat16).save_pretrained(tmp_path)
    rope = {**DEFAULT, "rope_type": "dynamic", "factor": factor}
    model = AutoModelForCausalLM.from_pretrained(tmp_path, rope_parameters=rope)
    length = 2 * model.config.max_position_embeddings
    rotary(model)(torch.zeros(1), torch.tensor([[length - 1]]))
    base = BASE * (2 * factor - (factor - 1)) ** (DIM / (DIM - 2))
    expected = [base ** (-2 * j / DIM) for j in range(DIM // 2)]
    assert model.dtype is torch.bfloat16
    torch.testing.assert_close(rotary(model).inv_freq.double(), torch.tensor(expected).double())


def test_longrope_switches_between_its_lists(tiny):
    rope = {
        **RESONANCE_YARN,
        "rope_type": "resonance_longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [1.0 + j for j in range(8)],
    }
    model = tiny("llama", rope)
    scale = math.sqrt(1 + math.log(FACTOR) / math.log(ORIGINAL))
    for count, divisors in ((100, rope["short_factor"]), (600, rope["long_factor"])):
        ours = logits(model, IDS[:, :count])
        plain = wavelengths_of("resonance")
        lengths = [round(v * d) for v, d in zip(plain, divisors, strict=True)]
        reference = copy.deepcopy(model)
        rotary(reference).forward = closed_form_forward(lengths, scale)
        torch.testing.assert_close(ours, logits(reference, IDS[:, :count]), rtol=1e-5, atol=1e-5)


def seen_by_attention(model, ids):
    """Dtypes of q, k, cos as attention's rotation takes them, and of what it gives back."""
    module = sys.modules[type(model.model.layers[0].self_attn).__module__]
    original, seen = module.apply_rotary_pos_emb, []

    def spy(q, k, cos, sin, *args, **kwargs):
        turned = original(q, k, cos, sin, *args, **kwargs)
        seen.append((q, k, cos, sin, turned))
        return turned

    module.apply_rotary_pos_emb = spy
    try:
        logits(model, ids)
    finally:
        module.apply_rotary_pos_emb = original
    return seen


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rope", [DEFAULT, RESONANCE_YARN])
def test_float32_rotation_is_worked_out_in_float32_and_cast_back(tiny, family, rope):
    model = tiny(family, rope).to(torch.bfloat16)
    hf.set_rope_precision(model, "float32")
    for q, k, cos, sin, turned in seen_by_attention(model, IDS[:1, :300]):
        assert cos.dtype == torch.float32
        for before, after in zip((q, k), turned, strict=True):
            assert after.dtype == torch.bfloat16
            a, b = before.float().chunk(2, -1)
            expected = before.float() * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None]
            assert after.equal(expected.to(torch.bfloat16))
    in_float32 = logits(model, IDS[:1])
    hf.set_rope_precision(model, "model")
    assert {cos.dtype for _, _, cos, _, _ in seen_by_attention(model, IDS[:1, :9])} == {
        torch.bfloat16
    }
    assert not logits(model, IDS[:1]).equal(in_float32)


def test_rope_precision_is_a_keyword_of_from_pretrained(tiny, tmp_path):
    from transformers import AutoModelForCausalLM

    tiny("llama", DEFAULT).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, rope_precision="float32", dtype=torch.bfloat16
    )
    assert rotary(model)(torch.zeros(1, dtype=torch.bfloat16), IDS[:, :4])[0].dtype == torch.float32
    with pytest.raises(RopeConfigError, match="rope_precision: 'float16'"):
        AutoModelForCausalLM.from_pretrained(tmp_path, rope_precision="float16")


def test_a_model_that_cannot_be_given_float32_keeps_its_own_precision_and_says_so(caplog):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "gpt2", n_layer=1, n_head=2, n_embd=32, vocab_size=64, rope_precision="float32"
    )
    with caplog.at_level(logging.WARNING):
        model = AutoModelForCausalLM.from_config(config)
    assert model.rope_precision_used == "model"
    assert "GPT2LMHeadModel rotates in its own precision" in caplog.text


@pytest.mark.parametrize(
    ("family", "rope", "extra", "words"),
    [
        ("llama", {**RESONANCE_YARN, "factor": 0.5}, {}, "factor: 0.5"),
        ("llama", {**RESONANCE_YARN, "facter": 2}, {}, "facter"),
        ("llama", {k: v for k, v in RESONANCE_YARN.items() if k != "rope_theta"}, {}, "rope_theta"),
        ("llama", {**RESONANCE_YARN, "rope_type": "yarn", "ramp": "wavelength"}, {}, "ramp"),
        (
            "llama",
            {
                **RESONANCE_YARN,
                "rope_type": "resonance_longrope",
                "short_factor": [1.0] * 3,
                "long_factor": [1.0] * 3,
            },
            {},
            "short_factor: 3 numbers given; allowed: ",
        ),
        ("gptj", RESONANCE_YARN, {}, "would be ignored"),
        ("gpt2", RESONANCE_YARN, {}, "would be ignored"),
    ],
)
def test_what_cannot_run_is_refused(tiny, family, rope, extra, words):
    sizes = {"n_embd": 32, "n_head": 2, "n_layer": 1, "rotary_dim": 8}
    extra = sizes | extra if family in ("gptj", "gpt2") else extra
    with pytest.raises(RopeConfigError, match=words):
        tiny(family, dict(rope), **extra)


def test_a_base_left_out_of_from_pretrained_is_refused(tiny, tmp_path):
    from transformers import AutoModelForCausalLM

    tiny("llama", DEFAULT).save_pretrained(tmp_path)
    rope = {k: v for k, v in RESONANCE_YARN.items() if k != "rope_theta"}
    with pytest.raises(RopeConfigError, match="rope_theta"):
        AutoModelForCausalLM.from_pretrained(tmp_path, rope_parameters=rope)
