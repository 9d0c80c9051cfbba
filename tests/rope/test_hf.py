"""`apply_rope` and `load` on transformers: state, swap, wrapping, refusals."""

import copy
import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig
from turned import cos_sin

from resonance_vllm import hf
from resonance_vllm.checkpoint.overrides import with_rope
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core import frequencies
from resonance_vllm.core.remapping import RemappedMethod
from resonance_vllm.core.spec import ROPE_TYPES, RopeSpec, RopeType
from resonance_vllm.hf.building import build_on_meta

L, LENGTH = "original_max_position_embeddings", 16
THETA = {"rope_theta": 100.0}
DEFAULT = {"rope_type": "default", **THETA}
RESONANCE_YARN = {"rope_type": "resonance_yarn", **THETA, "factor": 4.0, L: LENGTH}
TURNING = [t for t in ROPE_TYPES if not issubclass(RopeType.parse(t).method, RemappedMethod)]


def complete(rope_type):
    """Settings of a type for the tiny model, trained on 16 tokens."""
    method = RopeType.parse(rope_type).method
    keys = method.example_settings(16) | {"factor": 4.0, L: LENGTH}
    if method.name == "longrope":
        keys |= {"long_factor": [1.0 + j for j in range(8)]}
    kept = {key: value for key, value in keys.items() if key in method.model_fields}
    return RopeSpec.from_dict({"rope_type": rope_type, **kept, **THETA})


def logits(model, tokens, **more):
    with torch.no_grad():
        return model(torch.as_tensor([tokens]), **more).logits


def asked(tiny, rope_type):
    model = tiny("llama", DEFAULT, max_position_embeddings=LENGTH)
    hf.apply_rope(model, complete(rope_type))
    return model


TEXTS = {n: torch.randint(3, 64, (n,), generator=torch.Generator().manual_seed(n)) for n in
         (7, 16, 17, 25, 60)}  # fmt: skip


@pytest.mark.parametrize("rope_type", TURNING)
def test_apply_rope_answers_depend_on_their_request_alone(tiny, rope_type):
    """Whatever was read before, and whatever other rows are read with it."""
    model = asked(tiny, rope_type)
    alone = {n: logits(copy.deepcopy(model), text.tolist())[0] for n, text in TEXTS.items()}

    @given(st.lists(st.sampled_from(sorted(TEXTS)), min_size=2, max_size=5))
    @settings(max_examples=15, deadline=None)
    def in_any_order(order):
        for n in order:
            assert logits(model, TEXTS[n].tolist())[0].equal(alone[n])
        longest = max(order)
        mask = torch.tensor([[0] * (longest - n) + [1] * n for n in order])
        padded = torch.stack([torch.cat([torch.zeros(longest - n, dtype=torch.int64), TEXTS[n]])
                              for n in order])  # fmt: skip
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        with torch.no_grad():
            together = model(padded, attention_mask=mask, position_ids=positions).logits
        for row, n in enumerate(order):
            torch.testing.assert_close(together[row, -n:], alone[n], atol=2e-4, rtol=0)

    in_any_order()


@pytest.mark.parametrize("rope_type", TURNING)
def test_apply_rope_cos_and_sin_equal_the_closed_form(tiny, rope_type):
    """At each length of a sequence; exact where wavelengths are whole numbers."""
    spec, module = complete(rope_type), asked(tiny, rope_type).model.rotary_emb
    for length in (8, LENGTH, 17, 40, 17, 8):
        wanted = cos_sin(spec, 16, torch.arange(length), seq_len=length)
        found = module(torch.zeros(1), torch.arange(length)[None])
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a[0, :, :8].double(), b, atol=2e-5, rtol=0)
    if spec.resonance and not spec.method.depends_on_length:
        first = frequencies.closed_form_rotation(spec, 16, 2**40).periods.tolist()
        far = torch.tensor([[2**38 + first[0], 2**38, first[0] * 2**22]])
        cos, _ = module(torch.zeros(1), far)
        assert cos[0, 0, 0] == cos[0, 1, 0]


@given(st.lists(st.sampled_from([None, *TURNING, "self_extend"]), min_size=2, max_size=6))
@settings(max_examples=20, deadline=None)
def test_apply_rope_swaps_methods_in_any_order(order):
    """Logits equal those of a model that was made with the settings, bitwise."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "head_dim": 16,
             "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": LENGTH,
             "eos_token_id": None}  # fmt: skip
    config = LlamaConfig(**sizes, rope_parameters=DEFAULT)

    def made(config):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()

    model, text = made(config), TEXTS[25].tolist()
    for rope_type in order:
        spec = None if rope_type is None else complete(rope_type)
        hf.apply_rope(model, spec)
        fresh = made(config if spec is None else with_rope(copy.deepcopy(config), spec.to_dict()))
        hf.apply_rope(fresh)
        assert logits(model, text).equal(logits(fresh, text))
        assert model.config.rope_parameters == fresh.config.rope_parameters


def test_register_lets_from_pretrained_read_types(tiny, tmp_path, caplog):
    """Plain `from_pretrained` has the frequencies; `load` the exact phase, and compares."""
    model = asked(tiny, "resonance_yarn")
    model.save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    wanted = frequencies.closed_form_inv_freq(RopeSpec.from_dict(RESONANCE_YARN), 16)
    torch.testing.assert_close(plain.model.rotary_emb.inv_freq, wanted.float())
    loaded = hf.load(str(tmp_path), dtype=torch.float32)
    text = TEXTS[60].tolist()
    torch.testing.assert_close(logits(loaded, text), logits(model, text))
    assert "Missing validation" not in caplog.text


def test_load_writes_settings_that_none_restores(tiny, tmp_path):
    tiny("llama", DEFAULT).save_pretrained(tmp_path)
    model = hf.load(str(tmp_path), RESONANCE_YARN, limit=64, dtype=torch.float32)
    assert model.config.rope_parameters["rope_type"] == "resonance_yarn"
    assert model.config.max_position_embeddings == 64
    text = TEXTS[25].tolist()
    before = logits(model, text)
    hf.apply_rope(model, complete("linear"))
    assert not logits(model, text).equal(before)
    (report,) = hf.apply_rope(model)
    assert logits(model, text).equal(before)
    assert (report.name, report.exact_phase) == ("model.rotary_emb", True)


@pytest.mark.slow(long=True)
def test_apply_rope_compiles_with_fullgraph(tiny):
    model = asked(tiny, "resonance_yarn")
    text = torch.as_tensor([TEXTS[25].tolist()])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(text, use_cache=False).logits, model(text).logits)
    torch.compiler.reset()


def test_apply_rope_on_dispatched_and_wrapped_models(tiny):
    """accelerate's hooks around each module, and PEFT's model around the whole."""
    from accelerate import cpu_offload
    from peft import LoraConfig, get_peft_model

    text, wanted = TEXTS[60].tolist(), logits(asked(tiny, "resonance_yarn"), TEXTS[60].tolist())
    offloaded = cpu_offload(tiny("llama", DEFAULT, max_position_embeddings=LENGTH))
    hf.apply_rope(offloaded, complete("resonance_yarn"))
    assert logits(offloaded, text).equal(wanted)
    wrapped = get_peft_model(
        tiny("llama", DEFAULT, max_position_embeddings=LENGTH), LoraConfig(task_type="CAUSAL_LM")
    )
    shipped = logits(wrapped, text)
    hf.apply_rope(wrapped, complete("resonance_yarn"))
    assert logits(wrapped, text).equal(wanted)
    hf.apply_rope(wrapped)
    assert logits(wrapped, text).equal(shipped)


def test_apply_rope_float32_and_models_without_rotation(tiny, caplog):
    model = tiny("llama", DEFAULT).to(torch.bfloat16)
    before = logits(model, TEXTS[60].tolist())
    hf.apply_rope(model, None, "float32")
    after = logits(model, TEXTS[60].tolist())
    assert model.rope_precision_used == "float32"
    assert after.dtype == torch.bfloat16
    assert 0 < float((after - before).abs().max()) < 1
    other = AutoModelForCausalLM.from_config(GPT2Config(n_embd=32, n_layer=1, n_head=2))
    with caplog.at_level(logging.WARNING):
        hf.apply_rope(other, None, "float32")
    assert other.rope_precision_used == "model"
    assert "rotates in its own precision, not in float32" in caplog.text
    with pytest.raises(RopeConfigError, match="rope_precision: 'half' is not allowed"):
        hf.apply_rope(model, None, "half")


class Ignoring(torch.nn.Module):
    """A rotary module whose code has frequencies of its own."""

    def __init__(self, config):
        super().__init__()
        self.config, self.rope_type, self.attention_scaling = config, "default", 1.0
        self.register_buffer("inv_freq", torch.linspace(1, 0.1, 8), persistent=False)

    def forward(self, x, position_ids):
        angles = position_ids[..., None] * torch.cat((self.inv_freq, self.inv_freq))
        return angles.cos(), angles.sin()


@pytest.mark.parametrize("rope_type", ["yarn", "resonance_yarn", "ntk_aware"])
def test_apply_rope_names_a_module_that_ignores_settings(tiny, rope_type):
    model = tiny("llama", DEFAULT)
    model.model.rotary_emb = Ignoring(model.config)
    before = logits(model, TEXTS[25].tolist())
    with pytest.raises(RopeConfigError, match=rf"rotary_emb \(Ignoring\) .*'{rope_type}'"):
        hf.apply_rope(model, complete(rope_type))
    assert logits(model, TEXTS[25].tolist()).equal(before), "it rotates as it was loaded"
    assert model.config.rope_parameters == DEFAULT


@pytest.mark.parametrize(
    ("family", "extra", "words"),
    [
        ("gpt2", {"n_embd": 32, "n_head": 2, "n_layer": 1}, "has no rotary module that reads them"),
        ("falcon", {"alibi": True, "hidden_size": 32, "num_attention_heads": 2,
                    "num_hidden_layers": 1}, "has no rotary module that reads them"),
        ("t5gemma", {}, "whose encoder reads the text"),
    ],
)  # fmt: skip
def test_apply_rope_refuses_models_without_rope(family, extra, words):
    model = build_on_meta(AutoConfig.for_model(family, **extra))
    with pytest.raises(RopeConfigError, match=words):
        hf.apply_rope(model, complete("linear"))


def test_apply_rope_leaves_windowed_layers_unmodified(tiny):
    model = tiny("gemma3_text", DEFAULT)
    spec = PositionConfig.from_config(model.config).complete({"rope_type": "linear", "factor": 4})
    before = {each.layer_type: each for each in hf.apply_rope(model)}
    after = {each.layer_type: each for each in hf.apply_rope(model, spec)}
    assert after["sliding_attention"] == before["sliding_attention"]
    assert after["full_attention"].inv_freq == pytest.approx(
        [each / 4 for each in before["full_attention"].inv_freq]
    )
