"""What has to hold on an accelerator; on a machine without one the same runs on the CPU."""

import copy

import pytest
import torch

pytestmark = [pytest.mark.gpu]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROPES = ("default", "linear", "yarn", "resonance", "resonance_yarn", "ntk_aware")
POSITIONS = torch.tensor([[0, 1, 6, 4095, 4096, 65535, 131071]])


def llama(rope_type: str, **more):
    from transformers import LlamaConfig, LlamaForCausalLM

    from resonance_vllm import hf

    hf.register()
    rope = {"rope_type": rope_type, "rope_theta": 10000.0}
    if rope_type not in ("default", "resonance"):
        rope |= {"factor": 4.0, "original_max_position_embeddings": 32768}
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 258,
             "initializer_range": 0.4, "bos_token_id": 0, "eos_token_id": 1}  # fmt: skip
    config = LlamaConfig(**sizes, max_position_embeddings=131072, rope_parameters=rope, **more)
    model = LlamaForCausalLM(config).eval()
    hf.apply_rope(model)
    return model


@pytest.mark.parametrize("rope_type", ROPES)
def test_tables_and_rotations_are_the_cpus(rope_type):
    rotary = llama(rope_type).model.rotary_emb
    x = torch.zeros(1, 1, 64)
    there = copy.deepcopy(rotary).to(DEVICE)
    here, cuda = rotary(x, POSITIONS), there(x.to(DEVICE), POSITIONS.to(DEVICE))
    assert torch.equal(rotary.inv_freq, there.inv_freq.cpu())
    for a, b in zip(here, cuda, strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=0, atol=5e-7)


def test_positions_a_wavelength_apart_are_bit_identical():
    rotary = llama("resonance").model.rotary_emb.to(DEVICE)
    wavelengths = (2 * torch.pi / rotary.inv_freq.double()).round().long().cpu()
    x = torch.zeros(1, 1, 64, device=DEVICE)
    for feature in range(4):
        period = int(wavelengths[feature])
        apart = torch.tensor([[5, 5 + period, 5 + 7 * period]], device=DEVICE)
        for table in rotary(x, apart):
            assert len(table[0, :, feature].unique()) == 1


@pytest.fixture(scope="module")
def documents(kit):
    return kit.prompts(200, 4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hf_long_answers_as_hf(dtype, documents, kit, tmp_path):
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from leval_harness.backends.hf_long import HFLong

    model = llama("default").to(getattr(torch, dtype))
    scored = {}
    for backend in (HFLM, HFLong):
        lm = backend(pretrained=copy.deepcopy(model).to(DEVICE), tokenizer=kit.tokenizer(),
                     max_length=512, batch_size=1)  # fmt: skip
        asked = [
            Instance("loglikelihood", {}, (text, " an answer"), at, ("gpu", at, 1))
            for at, text in enumerate(documents)
        ]
        scored[backend] = torch.tensor([each[0] for each in lm.loglikelihood(asked)])
    near = {"float32": 1e-4, "bfloat16": 2e-2}[dtype]
    torch.testing.assert_close(scored[HFLong], scored[HFLM], rtol=near, atol=near)
    told = lm.telemetry()
    assert told["tokens_prefilled"] < sum(len(lm.tok_encode(text)) for text in documents)  # shared
    assert told["peak_memory_bytes"] > 0
