import pytest

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="session", autouse=True)
def registered():
    from resonance_vllm import hf

    hf.register()
    hf.register()  # a second call must change nothing


@pytest.fixture
def tiny():
    """Builds a tiny random model of a family with given rope_parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    def build(family, rope, **extra):
        rope = dict(rope)  # the configs of some families add keys of their own to it
        if family == "gemma3_text":
            local = {"rope_type": "default", "rope_theta": 10000.0}
            rope = {"full_attention": rope, "sliding_attention": local}
            extra |= {"layer_types": ["sliding_attention", "full_attention"]}
        if family in ("gemma2", "gemma3_text", "mistral"):
            extra |= {"sliding_window": 4096}
        config = AutoConfig.for_model(
            family, **SIZES | {"initializer_range": 0.3, "rope_parameters": rope} | extra
        )
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()

    return build
