"""One engine with other RoPE settings, beside fresh ones: `swap_run.py IN.json OUT.json`.

IN has `model`, `settings` (name -> `rope_parameters` or null), `order` (names), `refused`
(`rope_parameters` that only a new engine can have), `eager`, `length` and `dtype`. All engines run
in this process. OUT has what the fresh engines answered, what the last of them answered after each
swap, and how it refused.
"""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}

from vllm import LLM, SamplingParams

PROMPT = [(7 * n * n + 3 * n) % 97 + 3 for n in range(400)]
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, detokenize=False)
SCORED = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)


def engine(asked: dict[str, Any], rope: dict[str, Any] | None) -> LLM:
    """A fresh engine with settings."""
    return LLM(
        asked["model"],
        hf_overrides={"rope_parameters": rope} if rope else {},
        max_model_len=asked["length"],
        dtype=asked["dtype"],
        enforce_eager=asked["eager"],
        worker_extension_cls="resonance_vllm.vllm.RopeWorker",
        skip_tokenizer_init=True,
        max_num_seqs=2,
        kv_cache_memory_bytes=2**28,
    )


def answers(llm: LLM) -> list[Any]:
    """Log-probabilities of a prompt, and greedy continuations of one that is asked twice."""
    (scored,) = llm.generate([{"prompt_token_ids": PROMPT}], SCORED, use_tqdm=False)
    rows = zip(PROMPT[1:], scored.prompt_logprobs[1:], strict=True)
    asked = [{"prompt_token_ids": PROMPT[:300]}] * 2
    documents = [
        list(out.outputs[0].token_ids) for out in llm.generate(asked, GREEDY, use_tqdm=False)
    ]
    return [[candidates[token].logprob for token, candidates in rows], documents]


def cached(llm: LLM) -> int:
    """Tokens of the prompt that the engine takes from its prefix cache."""
    asked = [{"prompt_token_ids": PROMPT[:300]}]
    return int(llm.generate(asked, GREEDY, use_tqdm=False)[0].num_cached_tokens or 0)


def refusal(llm: LLM, rope: dict[str, Any] | None) -> str | None:
    """How a swap is refused; None where it is done."""
    try:
        llm.collective_rpc("set_rope", args=(rope,))
    except ValueError as error:
        return str(error)
    return None


def while_running(llm: LLM) -> str | None:
    """How a swap is refused while a request is half done."""
    llm.llm_engine.add_request("half", {"prompt_token_ids": PROMPT[:50]}, GREEDY)
    llm.llm_engine.step()
    said = refusal(llm, None)
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    return said


def main() -> None:
    """Entry point."""
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    names, fresh = list(asked["settings"]), {}
    for name in names:
        llm = engine(asked, asked["settings"][name])
        fresh[name] = answers(llm)
        if name != names[-1]:
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()
    before = cached(llm)
    swapped = []
    for name in asked["order"]:
        (reports,) = llm.collective_rpc("set_rope", args=(asked["settings"][name],))
        after = cached(llm) if not swapped else None
        swapped.append({"name": name, "reports": reports, "cached": after, "answers": answers(llm)})
    found = {
        "fresh": fresh,
        "cached": before,
        "swapped": swapped,
        "refused": [refusal(llm, rope) for rope in asked["refused"]],
        "running": while_running(llm),
    }
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
