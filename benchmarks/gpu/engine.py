"""The part of the GPU kit that needs vLLM: its runner, graphs, parallel processes and throughput."""

import copy
import gc
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from kit import Part, ask, checkpoint, prompts, run_task

METHODS = {"unmodified": None, "yarn": "yarn:factor=2", "resonance_yarn": "resonance_yarn:factor=2"}
SCORED = 512
"""Tokens whose log-probabilities are compared."""


def vllm(part: Part) -> None:
    """Measure vLLM as it runs on GPUs, everything with one engine but tensor parallel."""
    model = checkpoint(part, **part.size.engine)
    longest = max(part.size.lengths)
    lm = start(model, part, longest)
    try:
        runner(part, lm)
        graphs_after_swap(part, lm, model)
        single = scores_by_method(part, lm)
        lm.set_rope(None)
        throughput(part, lm)
        effective_context(part, lm, model, longest)
    finally:
        lm.close()
        del lm
        gc.collect()
    tensor_parallel(part, model, single)


def start(model: Path, part: Part, length: int, **arguments: Any) -> Any:
    """Start an engine with this package's backend, as it starts by default."""
    from leval_harness.backends import backend_class

    if part.device == "cpu":
        arguments |= {"kv_cache_memory_bytes": 2**28, "max_num_seqs": 4}
    dtype = "bfloat16" if part.device == "cuda" else "float32"
    return backend_class("vllm-long")(str(model), dtype=dtype, max_model_len=length, **arguments)


def runner(part: Part, lm: Any) -> None:
    """Say which model runner scores texts, and compare both ways to score with each other."""
    from leval_harness.backends.vllm_long import scores_given_ids
    from leval_tasks.common.token_logprobs import score_by_vllm, scoring_of

    config = lm.model.llm_engine.vllm_config
    requests = [request(lm, part)]
    seconds, peak, found = part.timed(lambda: list(scoring_of(lm).score(lm, requests)))
    (ranked,) = score_by_vllm(lm, requests)
    part.row(
        "model runner",
        v2=bool(getattr(config, "use_v2_model_runner", False)),
        given_ids=scores_given_ids(lm.model),
        token_budget=config.scheduler_config.max_num_batched_tokens,
        seconds=seconds,
        gib=peak,
        largest_difference=float(np.abs(found[0] - ranked).max()),
    )


def request(lm: Any, part: Part) -> tuple[list[int], list[int]]:
    """Return a context and tokens to score after it."""
    length = min(part.size.lengths[0] - 2, 4 * SCORED)
    (text,) = prompts(length, 1)
    tokens = lm.tok_encode(text)[:length]
    middle = length // 2
    return tokens[:middle], tokens[middle : middle + SCORED]


def graphs_after_swap(part: Part, lm: Any, model: Path) -> None:
    """Compare decoding, which runs in CUDA graphs, with prefill and with transformers.

    Stale tables in a graph would show as a difference after the swap.
    """
    from vllm import SamplingParams

    context, _ = request(lm, part)
    greedy = SamplingParams(
        temperature=0, max_tokens=16, logprobs=0, ignore_eos=True, detokenize=False
    )
    prompt = [{"prompt_token_ids": context}]
    unmodified: tuple[list[int], np.ndarray] | None = None
    for name, rope in METHODS.items():
        lm.model.collective_rpc("set_rope", args=(rope,))
        (answer,) = lm.model.generate(prompt, greedy, use_tqdm=False)
        tokens = list(answer.outputs[0].token_ids)
        steps = zip(tokens, answer.outputs[0].logprobs, strict=True)
        decoded = np.array([candidates[token].logprob for token, candidates in steps])
        prefilled = scores(lm, context, tokens)
        if unmodified is None:
            unmodified = (tokens, prefilled)
        same_tokens, before = unmodified
        expected = by_transformers(model, rope, context, tokens, part)
        part.row(
            f"graphs after a swap: {name}",
            graphs=str(lm.model.llm_engine.vllm_config.compilation_config.cudagraph_mode),
            decode_and_prefill=float(np.abs(decoded - prefilled).max()),
            vllm_and_transformers=float(np.abs(prefilled - expected).max()),
            # What a stale table would show at least.
            method_and_unmodified=float(np.abs(scores(lm, context, same_tokens) - before).max()),
        )


def scores(lm: Any, context: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """Return the log-probabilities of tokens after a context, from the engine."""
    from leval_tasks.common.token_logprobs import scored_requests

    (total,) = scored_requests(lm, [SimpleNamespace(token_parts=(None, context, tokens))])
    return total.logprobs


def by_transformers(
    model: Path, rope: str | None, context: Sequence[int], tokens: Sequence[int], part: Part
) -> np.ndarray:
    """Return the same log-probabilities from transformers, in the dtype of the engine."""
    from transformers import AutoModelForCausalLM

    from resonance_vllm.hf import apply_rope

    dtype = torch.bfloat16 if part.device == "cuda" else torch.float32
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(part.device)
    if rope is not None:
        apply_rope(loaded, rope)
    token_ids = torch.tensor([[*context, *tokens]], device=part.device)
    with torch.no_grad():
        logits = loaded(token_ids).logits[0, len(context) - 1 : -1].float()
    chosen = logits.log_softmax(-1).gather(-1, token_ids[0, len(context) :, None])
    return chosen[:, 0].cpu().numpy()


def throughput(part: Part, lm: Any) -> None:
    """Time questions about one document, with `vllm-long` and in lm-eval's own order."""
    from lm_eval.models.vllm_causallms import VLLM

    length = part.size.lengths[min(1, len(part.size.lengths) - 1)]
    documents = [
        text
        for seed in range(2)
        for text in prompts(length - part.size.new_tokens - 2, part.size.questions, seed)
    ]
    stock = copy.copy(lm)
    stock.__class__ = VLLM
    row: dict[str, Any] = {}
    answers = {}
    for name, backend in {"vllm-long": lm, "vllm": stock}.items():
        lm.model.reset_prefix_cache()
        seconds, _, answers[name] = part.timed(
            lambda backend=backend: ask(backend, documents, part.size.new_tokens)
        )
        row[f"{name}_s"] = seconds
    pairs = zip(answers["vllm"], answers["vllm-long"], strict=True)
    part.row(
        f"L-Eval throughput at {length}",
        questions=len(documents),
        **row,
        faster=row["vllm_s"] / row["vllm-long_s"],
        same_answers=sum(a == b for a, b in pairs),
    )


def effective_context(part: Part, lm: Any, model: Path, longest: int) -> None:
    """Time an effective-context task at the longest length."""
    if not part.has_time("effective context"):
        return
    tokens = lm.telemetry()["tokens_prefilled"]
    metadata = {"context_length": longest - 1, "window": longest // 2}
    seconds, peak, _ = part.timed(
        run_task(part, lm, model, "effective_context_govreport", metadata)
    )
    tokens = lm.telemetry()["tokens_prefilled"] - tokens
    part.row(f"effective context at {longest}", tokens=tokens, seconds=seconds, gib=peak)


def scores_by_method(part: Part, lm: Any) -> dict[str, np.ndarray]:
    """Return method -> log-probabilities of the same tokens."""
    context, tokens = request(lm, part)
    by_method = {}
    for method, rope in METHODS.items():
        lm.model.collective_rpc("set_rope", args=(rope,))
        by_method[method] = scores(lm, context, tokens)
    return by_method


def tensor_parallel(part: Part, model: Path, single: dict[str, np.ndarray]) -> None:
    """Compare two processes that divide a model with one, before and after a swap.

    `single` is what one process scored, by method.
    """
    name = "tensor parallel 2"
    if part.device == "cuda" and torch.cuda.device_count() < 2:
        part.row(name, note="not run: one GPU is visible")
        return
    if not part.has_time(name):
        return
    lm = start(model, part, part.size.lengths[0], tensor_parallel_size=2)
    try:
        divided = scores_by_method(part, lm)
    finally:
        lm.close()
    part.row(
        name,
        **{method: float(np.abs(divided[method] - single[method]).max()) for method in METHODS},
    )
