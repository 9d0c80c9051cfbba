"""A real model of a few kilobytes, a task on four lines of data, and sweeps over them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SWEEP = """
models:
  tiny: {{path: {root}/model, backend: hf, dtype: float32, device: cpu}}
methods:
  rope: {{rope_type: default}}
  yarn: {{rope_type: yarn, factor: 2}}
context_lengths: [128]
tasks:
  - {root}/tiny_gen.yaml
baseline: rope
"""

TASK = """
task: tiny_gen
dataset_path: json
dataset_kwargs:
  data_files: {{test: {root}/docs.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}} Answer:"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{until: [], max_gen_toks: 4}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1}}
"""


LLAMA = {
    "model_type": "llama",
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "hidden_size": 64,
    "num_attention_heads": 1,
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Folder of a checkpoint of 4,096 positions, enough to plan runs: its weights are empty."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def byte_tokenizer() -> Any:
    """A tokenizer of single bytes and a few merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(["What is the answer?"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, save_llama: Callable[..., Path]) -> Path:
    """Folder with `model/`, `tiny_gen.yaml` and `sweep.yaml`."""
    root = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_tokenizer()
    save_llama(
        root / "model",
        vocab_size=len(tokenizer),
        num_key_value_heads=1,
        max_position_embeddings=128,
    )
    tokenizer.save_pretrained(root / "model")
    rows = [{"q": f"What is {i} + {i}?", "a": str(2 * i)} for i in range(4)]
    (root / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "tiny_gen.yaml").write_text(TASK.format(root=root))
    (root / "sweep.yaml").write_text(SWEEP.format(root=root))
    return root


@pytest.fixture(autouse=True)
def _few_lm_eval_tasks(few_lm_eval_tasks: None) -> None:
    """lm-eval reads few of its own tasks here."""
