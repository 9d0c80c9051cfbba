"""How many tokens one forward pass reads by default."""

import json

import pytest
from families_record import folders
from tiny_backends import build
from transformers import AutoConfig

from leval_harness.backends.hf_long import HFLong
from leval_harness.backends.prefill import CHUNK, activation_bytes, one_pass_tokens

SMOLLM2 = {
    "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_key_value_heads": 3,
}  # fmt: skip
LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336}
GEMMA = {"hidden_size": 640, "intermediate_size": 2048, "sliding_window": 512}


@pytest.mark.parametrize(
    ("kind", "sizes", "bytes_per_value", "expected"),
    [
        ("llama", SMOLLM2, 4, 14_563),
        ("llama", SMOLLM2, 2, 29_127),
        ("llama", LLAMA_8B, 2, 3_542),
        ("gemma3_text", GEMMA, 4, CHUNK),
        ("mistral", {"sliding_window": 4096}, 2, CHUNK),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False, **SMOLLM2}, 4, 14_563),
        ("mamba", {"hidden_size": 768}, 2, 21_845),
    ],
)
def test_one_pass_tokens_of_known_models(kind, sizes, bytes_per_value, expected):
    config = AutoConfig.for_model(kind, **sizes)
    assert one_pass_tokens(config, bytes_per_value) == pytest.approx(expected, abs=1)


def has_windowed_layers(config):
    text = config.get("text_config", config)
    kinds = text.get("layer_types") or ()
    return any("sliding" in kind or "chunked" in kind for kind in kinds)


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_families_with_windows_are_read_in_chunks(folder):
    content = json.loads((folder / "config.json").read_text())
    try:
        config = AutoConfig.from_pretrained(folder)
    except (ValueError, KeyError, OSError):
        pytest.skip("transformers does not know it")
    tokens = one_pass_tokens(config, 2)
    if has_windowed_layers(content):
        assert tokens == CHUNK
    assert tokens >= CHUNK
    text = config.get_text_config(decoder=True)
    assert tokens == CHUNK or tokens * activation_bytes(text, 2) <= 1 << 29


@pytest.mark.parametrize(("kind", "passes"), [("llama", [79]), ("gemma3_text", [20, 20, 20, 19])])
def test_documents_are_read_in_the_passes_of_their_model(tokenizer, kind, passes, monkeypatch):
    monkeypatch.setattr("leval_harness.backends.prefill.CHUNK", 20)
    monkeypatch.setattr("leval_harness.backends.hf_long.CHUNK", 20)
    more = {"sliding_window": 16} if kind == "gemma3_text" else {}
    model = build(kind, **more)
    lm = HFLong(model, tokenizer=tokenizer, device="cpu")
    _ = lm.reuse
    widths = []
    model.get_decoder().register_forward_pre_hook(
        lambda _module, _args, options: widths.append(options["input_ids"].shape[1]),
        with_kwargs=True,
    )
    document = list(range(4, 84))
    lm.score_token_ids([(document[:1], document[1:])])
    assert widths == passes
