"""Run families in vLLM's real engine beside transformers: `python run_vllm.py OUT MODE FAMILY...`.

MODE is `eager` or `compiled`. Each family is built small with random weights and Resonance YaRN and
saved; both libraries load that. OUT gets a line of JSON a family: the largest difference of a
token's log-probability, the same with plain YaRN on transformers, and the modules; or an error.
One engine after another in this process, which is what a start costs least.
"""

import gc
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
sys.path.insert(0, str(Path(__file__).parent))

import torch
from models import asked, config_of, model_of, output

from resonance_vllm import hf

ORIGINAL, FACTOR, LENGTH = 64, 4.0, 200
YARN = {"factor": FACTOR, "original_max_position_embeddings": ORIGINAL}


def logprobs(model, prompt: list[int]) -> torch.Tensor:
    """Of each next token, by transformers."""
    scores = output(model, torch.tensor([prompt]))[0, :-1].float().log_softmax(-1)
    return scores.gather(-1, torch.tensor(prompt[1:])[:, None])[:, 0]


def run(folder: Path, mode: str, where: Path) -> dict[str, object]:
    """One family."""
    from vllm import LLM, SamplingParams

    shown = config_of(folder)
    models = [
        model_of(asked(shown, {"rope_type": kind, **YARN}, ORIGINAL))
        for kind in ("resonance_yarn", "yarn")
    ]
    prompt = torch.randint(5, 100, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    ours, plain = (logprobs(model, prompt) for model in models)
    models[0].save_pretrained(where)
    engine = LLM(
        str(where), dtype="float32", enforce_eager=mode == "eager", skip_tokenizer_init=True,
        max_model_len=ORIGINAL * int(FACTOR), max_num_seqs=2, kv_cache_memory_bytes=2**28,
        enable_prefix_caching=False,
    )  # fmt: skip
    try:
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
        (answer,) = engine.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        pairs = zip(prompt[1:], answer.prompt_logprobs[1:], strict=True)
        served = torch.tensor([candidates[token].logprob for token, candidates in pairs])
    finally:
        engine.llm_engine.engine_core.shutdown()
    return {
        "apart": float((served - ours).abs().max()),
        "plain_yarn_apart": float((served - plain).abs().max()),
    }


def main() -> None:
    """Entry point."""
    out, mode, *names = sys.argv[1:]
    hf.register()
    for name in names:
        folder = Path(__file__).parent / "configs" / name
        with tempfile.TemporaryDirectory() as where:
            try:
                found = run(folder, mode, Path(where))
            except Exception as error:  # noqa: BLE001 - the reason is the result
                found = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
        with Path(out).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"family": name, "mode": mode, **found}) + "\n")
        gc.collect()


if __name__ == "__main__":
    main()
