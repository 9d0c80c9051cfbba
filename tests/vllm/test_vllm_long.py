"""`vllm-long`: each document computed once, whatever order the requests come in.

First on engines that only keep count, then on the real one with a cache for 1.4 documents.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.engine("vllm")

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)
PROMPTS = st.lists(TOKENS, min_size=1, max_size=12)


class OnePrompt:
    """Stands for vLLM's engine; its prefix cache holds the last prompt and nothing else."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.last: list[int] = []
        self.asked: list[list[int]] = []
        config = SimpleNamespace(max_model_len=4096)
        self.llm_engine = SimpleNamespace(model_config=config)

    def generate(self, prompts: Any, sampling_params: Any, **_: Any) -> list[Any]:
        outputs = []
        for prompt, params in zip(prompts, sampling_params, strict=True):
            tokens = prompt["prompt_token_ids"]
            self.asked.append(tokens)
            known = 0
            if params.prompt_logprobs is None:
                pairs = enumerate(zip(tokens, self.last, strict=False))
                shorter = min(len(tokens), len(self.last))
                known = next((n for n, (a, b) in pairs if a != b), shorter)
            self.last = tokens
            answer = SimpleNamespace(token_ids=[0] * params.max_tokens, text=str(tokens))
            outputs.append(
                SimpleNamespace(outputs=[answer], num_cached_tokens=known, prompt=tokens)
            )
        return outputs


def backend() -> Any:
    """The backend without a model, around an engine that counts."""
    from leval_harness.backends.vllm_long import VLLMLong

    lm = VLLMLong.__new__(VLLMLong)
    lm.counted = {"tokens_prefilled": 0, "tokens_generated": 0}
    lm.data_parallel_size = lm.tensor_parallel_size = 1
    lm.model, lm.model_args = OnePrompt(), {}
    lm.batch_size, lm.lora_request = "auto", None
    return lm


def ask(lm: Any, prompts: list[list[int]]) -> list[Any]:
    from vllm import SamplingParams

    params = [SamplingParams(max_tokens=1 + len(prompt)) for prompt in prompts]
    return lm._model_generate(prompts, generate=True, sampling_params=params)


def trie_nodes(prompts: list[list[int]]) -> int:
    return len({tuple(p[:n]) for p in prompts for n in range(1, len(p) + 1)})


@given(PROMPTS.flatmap(lambda p: st.tuples(st.just(p), st.permutations(p))))
def test_vllm_long_computes_each_token_once(
    drawn: tuple[list[list[int]], list[list[int]]],
) -> None:
    counts = []
    for prompts in drawn:
        lm = backend()
        outputs = ask(lm, prompts)
        assert [output.prompt for output in outputs] == prompts
        assert [len(output.outputs[0].token_ids) for output in outputs] == [
            1 + len(prompt) for prompt in prompts
        ], "each prompt keeps its own sampling parameters"
        counts.append(lm.telemetry())
    assert counts[0] == counts[1]
    prompts = drawn[0]
    total, unique = sum(map(len, prompts)), trie_nodes(prompts)
    assert counts[0]["tokens_prefilled"] == unique
    assert counts[0]["tokens_generated"] == total + len(prompts)


BLOCK = 32
DOCUMENT = 520
QUESTIONS = 6


@pytest.fixture(scope="module")
def checkpoint(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a tokenizer of one word for each of its 512 ids."""
    import shutil

    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-llama-words") / "model"
    shutil.copytree(tiny_llama, folder)
    words = {"<unk>": 0, "</s>": 1} | {f"w{n}": n for n in range(2, 512)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def long_backend(checkpoint: Path) -> Iterator[Any]:
    """The real engine; its cache holds 24 blocks, a document with its question takes 17."""
    from lm_eval.api.registry import get_model

    import leval_harness.backends

    leval_harness.backends.register()
    lm = get_model("vllm-long").create_from_arg_obj(
        {
            "pretrained": str(checkpoint),
            "dtype": "float32",
            "hf_overrides": {"max_position_embeddings": 576},
            "max_model_len": 576,
            "max_num_seqs": 8,
            "block_size": BLOCK,
            "num_gpu_blocks_override": 24,
            "kv_cache_memory_bytes": 2**28,
            "gpu_memory_utilization": 0.1,
            "enforce_eager": True,
        },
        {"batch_size": 8, "max_batch_size": None, "device": None},
    )
    yield lm
    lm.model.llm_engine.engine_core.shutdown()


def stock_of(lm: Any) -> Any:
    """lm-eval's own backend around the same engine, its cache empty, with the outputs it got."""
    from lm_eval.models.vllm_causallms import VLLM

    stock = copy.copy(lm)
    stock.__class__ = VLLM
    stock.batch_size = 1  # what lm-eval gives it unless another is given
    stock.outputs = []

    def generate(*arguments: Any, **options: Any) -> list[Any]:
        stock.outputs += (outputs := VLLM._model_generate(stock, *arguments, **options))
        return outputs

    stock._model_generate = generate
    assert lm.model.reset_prefix_cache()
    return stock


def requests() -> list[Any]:
    """Questions about three documents, one of each in turn."""
    import random

    from lm_eval.api.instance import Instance

    words = random.Random(5)
    made = []
    documents = [words.choices(range(2, 512), k=DOCUMENT) for _ in range(3)]
    for number in range(QUESTIONS):
        for document in documents:
            question = words.choices(range(2, 512), k=3 + number)
            text = " ".join(f"w{token}" for token in [*document, *question])
            options = {"until": [], "max_gen_toks": 6 + number, "do_sample": False}
            made.append(
                Instance("generate_until", {}, (text, options), len(made), ("t", len(made), 1))
            )
    return made


@pytest.mark.slow(long=True)
def test_vllm_long_needs_a_cache_for_one_document(long_backend: Any) -> None:
    asked = requests()
    assert long_backend.model.llm_engine.vllm_config.scheduler_config.max_num_seqs == 8
    stock = stock_of(long_backend)
    expected = stock.generate_until(asked)
    prompts = [output.prompt_token_ids for output in stock.outputs]
    unique = trie_nodes(prompts)
    computed = sum(map(len, prompts)) - sum(output.num_cached_tokens for output in stock.outputs)

    assert long_backend.model.reset_prefix_cache()
    assert long_backend.generate_until(asked) == expected
    counts = long_backend.telemetry()
    # A block is kept whole or not at all, so that a question recomputes less than one block.
    assert unique <= counts["tokens_prefilled"] < unique + len(asked) * BLOCK
    assert counts["tokens_prefilled"] <= 1.1 * unique
    assert computed > 4 * counts["tokens_prefilled"], "the order of stock lm-eval does not fit"
    assert counts["tokens_generated"] == sum(
        len(answer.token_ids) for output in stock.outputs for answer in output.outputs
    )
