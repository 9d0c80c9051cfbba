"""Tiny random models and a word-level tokenizer, made on the spot."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

VOCAB = 120
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
    "max_position_embeddings": 256, "initializer_range": 0.4, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 3,
}  # fmt: skip


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


def build(kind: str, attention: str = "sdpa", **more: Any) -> Any:
    import transformers as t

    torch.manual_seed(0)
    if kind in ("mistral", "gemma2"):  # the self-check reads more than a window
        more = {"sliding_window": 128, **more}
    sizes = SIZES
    if kind in ("gpt2", "bloom"):  # they know no more of these
        kept = {
            k: SIZES[k]
            for k in SIZES
            if k.endswith("_token_id") or k in ("vocab_size", "hidden_size", "initializer_range")
        }
        sizes = {**kept, "n_layer": 2, "n_head": 4}
    config = t.AutoConfig.for_model(kind, **{**sizes, **more})
    return t.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


@pytest.fixture
def make_model() -> Callable[..., Any]:
    return build
