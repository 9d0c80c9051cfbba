"""Checkpoints whose own code keeps inverse frequencies in a buffer that is not saved.

transformers builds models on the meta device and gives such a buffer whatever was in memory.
"""

import json
import sys

import pytest
import torch

from resonance_vllm import hf
from resonance_vllm.common.errors import RopeConfigError

CONFIGURATION = """
from transformers import PreTrainedConfig


class RemoteConfig(PreTrainedConfig):
    model_type = "remote_code_model"

    def __init__(self, hidden_size=16, vocab_size=32, rope_theta=100.0, **kwargs):
        self.hidden_size, self.vocab_size, self.rope_theta = hidden_size, vocab_size, rope_theta
        self.max_position_embeddings = 64
        super().__init__(**kwargs)
"""
MODELING = """
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_remote import RemoteConfig


def frequencies(dim, base):
    return 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)


class RemoteRotaryEmbedding(nn.Module):
    def __init__(self, dim, base):
        super().__init__()
        self.dim, self.base = dim, base
        self.register_buffer("inv_freq", frequencies(dim, base), persistent=PERSISTENT)

    def forward(self, positions):
        angles = positions[..., None] * torch.cat((self.inv_freq, self.inv_freq))
        return angles.cos(), angles.sin()


class RemoteModel(PreTrainedModel):
    config_class = RemoteConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary = RemoteRotaryEmbedding(config.hidden_size, config.rope_theta)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        super()._init_weights(module)
        if ADAPTED and isinstance(module, RemoteRotaryEmbedding):
            module.inv_freq.copy_(frequencies(module.dim, module.base))

    def forward(self, input_ids, **kwargs):
        states = self.embed(input_ids)
        cos, sin = self.rotary(torch.arange(input_ids.shape[1]))
        left, right = states.chunk(2, -1)
        states = states * cos + torch.cat((-right, left), -1) * sin
        return CausalLMOutput(logits=self.head(states))
"""
IN_MEMORY = {
    "not a number": torch.full((8,), float("nan")),
    "zeros": torch.zeros(8),
    "negative": -torch.ones(8),
    "rising": torch.linspace(0.1, 1.0, 8),
    "the frequencies of another base": 10000.0 ** -(torch.arange(8) / 8),
}


@pytest.fixture(scope="module")
def modules_folder(tmp_path_factory):
    """Let transformers copy the code of checkpoints into a folder of this test."""
    folder = str(tmp_path_factory.mktemp("modules"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", folder)
        patch.setattr(sys, "path", [*sys.path, folder])
        patch.delitem(sys.modules, "transformers_modules", raising=False)
        yield folder
    for name in list(sys.modules):
        if name.startswith("transformers_modules"):
            del sys.modules[name]


@pytest.fixture
def remote_code(tmp_path, modules_folder):
    """Write a checkpoint with code of its own."""

    def write(*, persistent=False, adapted=False):
        from safetensors.torch import save_file

        folder = tmp_path / f"remote_{tmp_path.name}"
        folder.mkdir()
        (folder / "configuration_remote.py").write_text(CONFIGURATION)
        code = MODELING.replace("PERSISTENT", str(persistent)).replace("ADAPTED", str(adapted))
        (folder / "modeling_remote.py").write_text(code)
        names = {
            "AutoConfig": "configuration_remote.RemoteConfig",
            "AutoModelForCausalLM": "modeling_remote.RemoteModel",
        }
        config = {"model_type": "remote_code_model", "auto_map": names}
        (folder / "config.json").write_text(json.dumps(config))
        weights = {"embed.weight": torch.randn(32, 16), "head.weight": torch.randn(32, 16)}
        if persistent:
            weights["rotary.inv_freq"] = 100.0 ** -(torch.arange(8) / 8)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return str(folder)

    return write


@pytest.fixture
def memory(monkeypatch):
    """Decide what new tensors of eight numbers find in memory."""
    original = torch.empty_like

    def fill(values):
        def empty_like(like, *args, **kwargs):
            tensor = original(like, *args, **kwargs)
            if tensor.shape == values.shape and not tensor.is_meta:
                tensor.copy_(values)
            return tensor

        monkeypatch.setattr(torch, "empty_like", empty_like)

    return fill


@pytest.mark.parametrize("case", IN_MEMORY)
def test_load_refuses_frequencies_nobody_computed(remote_code, memory, case):
    memory(IN_MEMORY[case])
    with pytest.raises(RopeConfigError, match=r"rotary \(RemoteRotaryEmbedding\): inv_freq: "):
        hf.load(remote_code(), trust_remote_code=True, dtype=torch.float32)


@pytest.mark.parametrize("case", IN_MEMORY)
def test_apply_rope_refuses_frequencies_nobody_computed(remote_code, memory, case):
    from transformers import AutoModelForCausalLM

    memory(IN_MEMORY[case])
    model = AutoModelForCausalLM.from_pretrained(
        remote_code(), trust_remote_code=True, dtype=torch.float32
    )
    with pytest.raises(RopeConfigError, match=r"rotary \(RemoteRotaryEmbedding\): inv_freq: "):
        hf.apply_rope(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ways", [{"persistent": True}, {"adapted": True}])
def test_load_accepts_frequencies_that_code_computes(remote_code, memory, ways, dtype):
    memory(IN_MEMORY["rising"])
    model = hf.load(remote_code(**ways), trust_remote_code=True, dtype=dtype)
    torch.testing.assert_close(
        model.rotary.inv_freq.float(), 100.0 ** -(torch.arange(8) / 8), atol=4e-3, rtol=0
    )
    assert hf.apply_rope(model) == []


@pytest.mark.parametrize("own_code", [False, True])
@pytest.mark.parametrize("case", ["not a number", "zeros", "negative"])
def test_verify_frequencies_without_a_second_model(case, own_code):
    """Impossible values are refused by themselves: there may be no code to compare them with."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from resonance_vllm.hf.buffers import verify_frequencies

    class OwnCode(LlamaForCausalLM):
        """A class that needs more than a config, so that it cannot be built again."""

        def __init__(self, config, needed):
            super().__init__(config)

    sizes = {"hidden_size": 32, "intermediate_size": 8, "vocab_size": 8, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=2)
    model = LlamaForCausalLM(config)
    if own_code:
        model = OwnCode(config, "more")
    verify_frequencies(model)
    model.model.rotary_emb.inv_freq = IN_MEMORY[case]
    with pytest.raises(
        RopeConfigError, match=r"model.rotary_emb \(LlamaRotaryEmbedding\): inv_freq"
    ):
        verify_frequencies(model)
