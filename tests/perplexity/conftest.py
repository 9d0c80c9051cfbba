"""A tiny random Llama with a small byte-level tokenizer, and a folder of documents."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SENTENCE = "the language reference of python and its statements and expressions"
WORDS = SENTENCE.split()
LIMIT = 256


def build_model(path: Path, *, bos: bool = True) -> Path:
    """Save the model and its tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SENTENCE] * 3, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>" if bos else None, eos_token="</s>"
    ).save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LIMIT,
        initializer_range=0.1,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def sentence(seed: int, words: int) -> str:
    """Some words in an order of their own, with a character of several bytes among them."""
    return " ".join(random.Random(seed).choices(WORDS, k=words)) + " naïve – end"


@pytest.fixture(scope="session")
def without_bos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("nobos"), bos=False)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def documents() -> list[str]:
    return [sentence(seed, words) for seed, words in enumerate((220, 180, 260, 200))]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """`govreport.jsonl`: four usable documents, one empty, one twice, one short."""
    folder = tmp_path_factory.mktemp("data")
    rows = [
        documents[0],
        "  ",
        documents[1],
        documents[0] + "\n",
        "short",
        documents[2],
        documents[3],
    ]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in rows]
    (folder / "govreport.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def evaluate_task(
    model: str, path: Path, metadata: dict[str, Any], task: Any = "ppl_govreport", **args: Any
) -> Any:
    import lm_eval
    from lm_eval.tasks import TaskManager

    import leval_harness.backends
    import leval_tasks

    leval_harness.backends.register()
    engine = {"max_model_len": 256, "enforce_eager": True, "max_num_seqs": 4}
    engine |= {"kv_cache_memory_bytes": 2**28, "gpu_memory_utilization": 0.1}
    settings = engine if model in ("vllm", "vllm-long") else {"device": "cpu"}
    settings = settings | {"pretrained": str(path), "dtype": "float32"} | args
    # indexing all of lm-eval's tasks takes seconds; that ours are found there is a test of its own
    tasks = TaskManager(
        include_path=[str(each) for each in Path(leval_tasks.__file__).parent.glob("*/tasks")],
        include_defaults=False,
        metadata=settings | metadata,
    )
    return lm_eval.simple_evaluate(
        model=model,
        model_args=settings,
        tasks=[task],
        task_manager=tasks,
        batch_size=1,
        bootstrap_iters=0,
    )


@pytest.fixture(scope="session")
def evaluate() -> Callable[..., Any]:
    return evaluate_task


@pytest.fixture(autouse=True)
def _few_lm_eval_tasks(few_lm_eval_tasks: None) -> None:
    """lm-eval reads few of its own tasks here."""
