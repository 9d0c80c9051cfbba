"""Run families in vLLM's real engine beside transformers: `python run_vllm.py OUT FAMILY...`.

Each family is built small with random weights and Resonance YaRN, and saved; both libraries load
that, vLLM the language model alone. OUT gets a line of JSON a family: the largest difference of a
token's log-probability, and that from transformers without Resonance; or an error. Families with
gated delta rules run in bfloat16, which vLLM's code for processors wants, as it does for latent
attention on processors with AMX; the others in float32. One engine after another in this process,
which is what a start costs least. PYTHONPATH has to name what `make test` puts aside
for pictures (`.venv/pictures`).
"""

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
from families_models import applied, asked, config_of, output

from resonance_vllm import hf

ORIGINAL, FACTOR, LENGTH = 64, 4.0, 200
SERVED = ORIGINAL * int(FACTOR)
YARN = {"factor": FACTOR, "original_max_position_embeddings": ORIGINAL}


def logprobs(model, prompt: list[int]) -> torch.Tensor:
    """Of each next token, by transformers."""
    scores = output(model, torch.tensor([prompt]))[0, :-1].float().log_softmax(-1)
    return scores.gather(-1, torch.tensor(prompt[1:])[:, None])[:, 0]


def built(folder: Path, kind: str, dtype: torch.dtype) -> Any:
    """transformers' model of a family with YaRN or with Resonance YaRN."""
    return applied(asked(config_of(folder), {"rope_type": kind, **YARN}, ORIGINAL)).to(dtype)


def plainly(folder: Path, dtype: torch.dtype, prompt: list[int]) -> torch.Tensor | None:
    """The same without Resonance; None where transformers' code cannot run it (Gemma 4's YaRN)."""
    try:
        return logprobs(built(folder, "yarn", dtype), prompt)
    except RuntimeError:
        return None


def wants_bfloat16(config: Any) -> bool:
    """Whether vLLM's code for this processor runs a family in bfloat16 only."""
    latent = getattr(config, "kv_lora_rank", None) is not None
    linear = "linear_attention" in (getattr(config, "layer_types", None) or [])
    return linear or (latent and torch.cpu._is_amx_tile_supported())


def run(folder: Path, where: Path) -> dict[str, object]:
    """One family."""
    from vllm import LLM, SamplingParams

    dtype = torch.bfloat16 if wants_bfloat16(config_of(folder).get_text_config()) else torch.float32
    model = built(folder, "resonance_yarn", dtype)
    prompt = torch.randint(5, 100, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    ours, plain = logprobs(model, prompt), plainly(folder, dtype, prompt)
    # Of Gemma 3 vLLM takes the length as it is, of others no more than the settings allow.
    model.config.get_text_config().max_position_embeddings = SERVED
    model.save_pretrained(where)
    engine = LLM(
        str(where), dtype=str(dtype).removeprefix("torch."), enforce_eager=True,
        skip_tokenizer_init=True, language_model_only=True, max_model_len=SERVED, max_num_seqs=2,
        kv_cache_memory_bytes=2**28, enable_prefix_caching=False,
    )  # fmt: skip
    try:
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
        (answer,) = engine.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        pairs = zip(prompt[1:], answer.prompt_logprobs[1:], strict=True)
        served = torch.tensor([candidates[token].logprob for token, candidates in pairs])
    finally:
        engine.llm_engine.engine_core.shutdown()
    return {
        "dtype": str(dtype),
        "apart": apart(served, ours),
        "mean": apart(served, ours, torch.mean),
        "plain_apart": None if plain is None else apart(served, plain),
        "plain_mean": None if plain is None else apart(served, plain, torch.mean),
    }


def apart(a: torch.Tensor, b: torch.Tensor, of: Callable[..., torch.Tensor] = torch.max) -> float:
    """The largest, or mean, difference of a token's log-probability, in nats."""
    return float(of((a - b).abs()))


def main() -> None:
    """Entry point."""
    out, *names = sys.argv[1:]
    hf.register()
    for name in names:
        folder = Path(__file__).parent / "configs" / name
        with tempfile.TemporaryDirectory() as where:
            try:
                found = run(folder, Path(where))
            except Exception as error:  # noqa: BLE001 - the reason is the result
                found = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
        with Path(out).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"family": name, **found}) + "\n")
        gc.collect()


if __name__ == "__main__":
    main()
