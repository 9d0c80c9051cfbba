"""Tiny random models and a word-level tokenizer, made on the spot."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

VOCAB = 120


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost more than these models do, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", "<pad>"] + [f"w{i}" for i in range(VOCAB - 4)]
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
    )


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": 256,
        "initializer_range": 0.4,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
        **more,
    }


def build(kind: str, attention: str = "sdpa", **more: Any) -> Any:
    import transformers as t

    torch.manual_seed(0)
    if kind == "gpt2":
        config = t.GPT2Config(
            vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=4, n_positions=256,
            initializer_range=0.4, bos_token_id=1, eos_token_id=2, pad_token_id=3,
        )  # fmt: skip
    elif kind == "bloom":
        config = t.BloomConfig(
            vocab_size=VOCAB, hidden_size=48, n_layer=2, n_head=4, initializer_range=0.4,
            bos_token_id=1, eos_token_id=2, pad_token_id=3,
        )  # fmt: skip
    else:
        if kind in ("mistral", "gemma2"):  # the self-check reads more than a window
            more = {"sliding_window": 128, **more}
        config = t.AutoConfig.for_model(kind, **_sizes(**more))
    return t.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


@pytest.fixture
def make_model() -> Callable[..., Any]:
    return build
