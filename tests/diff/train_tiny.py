"""Trains a model in `tests/diff/models`: `python tests/diff/train_tiny.py NAME FOLDER`.

Both copy: a text is a random string of words, repeated. A wrong position, window or precision costs
them loss at known places, which random weights cannot show. `yarn` is a Llama of 128 positions with
YaRN x4 of 32; `window`, trained on from it, a Mistral whose window is 32 tokens. A few minutes each
on one CPU core.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

LENGTH = 128
WORDS = 29
SPECIAL = ["<unk>", "<s>", "</s>"]
SIZES = {
    "vocab_size": WORDS + len(SPECIAL), "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": LENGTH, "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": True,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
STEPS = {"yarn": 1000, "window": 400}
BATCH = 32


def documents(count, longest_period, seed):
    """Token ids `[count, LENGTH]`: BOS, then a string of 4 to `longest_period` words, repeated."""
    made = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        period = int(torch.randint(4, longest_period + 1, (1,), generator=made))
        string = torch.randint(len(SPECIAL), SIZES["vocab_size"], (period,), generator=made)
        rows.append(torch.cat([torch.ones(1).long(), string.repeat(LENGTH // period + 1)]))
    return torch.stack([row[:LENGTH] for row in rows])


def train(model, steps, longest_period):
    """Cross-entropy of the next token, AdamW with a cosine schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=100)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 100)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [100])
    for step in range(steps):
        # Copying short strings is learned first; longer ones follow.
        ids = documents(BATCH, min(longest_period, 8 + step // 10), step)
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model


def tokenizer():
    """Words w0 ... w28 between spaces; BOS is put in front."""
    words = [*SPECIAL, *(f"w{number}" for number in range(WORDS))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def main(name, folder):
    torch.manual_seed(0)
    yarn = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=YARN))
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    config = MistralConfig(**SIZES, rope_parameters=rope, sliding_window=32)
    window = MistralForCausalLM(config)
    if name == "window":  # within a window alone, copying is not learned in so few steps
        window.load_state_dict(LlamaForCausalLM.from_pretrained(folder / "yarn").state_dict())
    model, period = {"yarn": (yarn, 60), "window": (window, 32)}[name]
    train(model, STEPS[name], period).to(torch.bfloat16).save_pretrained(folder / name)
    tokenizer().save_pretrained(folder / name)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
