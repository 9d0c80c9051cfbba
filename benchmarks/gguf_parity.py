"""What llama.cpp makes of an exported GGUF file: log-probabilities of tokens, against transformers.

    pip install xllamacpp
    python benchmarks/gguf_parity.py CHECKPOINT DATA/corpora/govreport.jsonl

Weights, cache and rotation in float32 on both sides; transformers with the exact phase where the
method has it. Tokens are those after evenly spaced prefixes of one text, below the trained length
and beyond it. Beside the exported file stands what a plain one gives, without the method.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer

from resonance_vllm import config as settings
from resonance_vllm import hf
from resonance_vllm.config import ModelPositions
from resonance_vllm.core.spec import RopeRequest
from resonance_vllm.export.gguf import export_gguf

METHODS = ("yarn:factor=2", "resonance_yarn:factor=2", "resonance:wavelengths=prime_period")


class LlamaCpp:
    """A GGUF file in llama.cpp's own server, with attention and cache in float32."""

    def __init__(self, file: Path, length: int, tokenizer: Any, threads: int = 2) -> None:
        import xllamacpp

        self.letter = tokenizer("a")["input_ids"][-1]
        self.vocabulary = GGUFReader(file).fields["llama.vocab_size"].contents()
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.n_ctx, params.n_parallel = length, 1
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.warmup, params.verbosity = False, -1
        self._server: Any = xllamacpp.Server(params)

    def log_prob(self, before: Sequence[int], token: int) -> float:
        """Of a token after others; those already read at the last call are not read again."""
        request = {"prompt": list(before), "n_predict": 1, "n_probs": self.vocabulary}
        # Probabilities are those before sampling. What is sampled has to be a text of its own, or
        # the server answers nothing; the very token asked about need not be.
        request |= {"temperature": 0.0, "cache_prompt": True, "logit_bias": [[self.letter, 1e4]]}
        answer = self._server.handle_completions(request)
        after = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        return next(each["logprob"] for each in after if each["id"] == token)


def lengthen(file: Path, length: int) -> None:
    """Let llama.cpp's server read further than a file says that its model was trained."""
    GGUFReader(file, "r+").fields["llama.context_length"].parts[-1][0] = length


def of_llama_cpp(file: Path, tokenizer: Any, ids: Sequence[int], ends: Sequence[int]) -> Any:
    """Log-probability of `ids[end]` after `ids[:end]` for every end."""
    model = LlamaCpp(file, len(ids) + 8, tokenizer)
    return np.array([model.log_prob(ids[:end], ids[end]) for end in ends])


@torch.no_grad()
def of_transformers(checkpoint: Path, rope: RopeRequest, ids: Sequence[int], ends: Any) -> Any:
    """The same from transformers with our adapter, in float32."""
    positions = ModelPositions.of_checkpoint(str(checkpoint))
    overrides = settings.hf_overrides(positions.complete(rope), positions)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, **overrides)
    hidden = model.model(torch.tensor([ids])).last_hidden_state[0, [end - 1 for end in ends]]
    scores = model.lm_head(hidden).double().log_softmax(-1)
    return scores.gather(1, torch.tensor([[ids[end]] for end in ends]))[:, 0].numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rope", action="append", help=f"as often as wanted; else {METHODS}")
    parser.add_argument("--beyond", type=int, default=1024, help="tokens past the trained length")
    parser.add_argument("--tokens", type=int, default=64, help="compared on either side of it")
    args = parser.parse_args()
    methods = args.rope or METHODS
    hf.register()
    trained = ModelPositions.of_checkpoint(str(args.checkpoint)).original_length
    tokenizer = AutoTokenizer.from_pretrained(args.checkpoint)
    lines = args.corpus.read_text(encoding="utf-8").splitlines()
    text = max((json.loads(line)["text"] for line in lines if line), key=len)
    ids = tokenizer(text)["input_ids"][: trained + args.beyond]
    short = np.linspace(8, trained // 4, args.tokens).astype(int).tolist()
    long = np.linspace(trained, len(ids) - 1, args.tokens).astype(int).tolist()
    parts = {f"up to {short[-1]:,}": slice(args.tokens)}
    parts[f"{trained:,} to {len(ids):,}"] = slice(args.tokens, None)
    with tempfile.TemporaryDirectory() as scratch:
        full = Path(scratch) / "float32"
        whole = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32)
        whole.save_pretrained(full)
        tokenizer.save_pretrained(full)
        files = [Path(scratch) / f"{number}.gguf" for number in range(len(methods) + 1)]
        for file, method in zip(files, ("default", *methods), strict=True):
            export_gguf(full, RopeRequest.parse(method), file)
        for file in files:
            lengthen(file, 2 * len(ids))
        plain = of_llama_cpp(files[0], tokenizer, ids, short + long)
        head = ("method", "positions", "transformers", "llama.cpp", "furthest")
        print("|", " | ".join((*head, "plain GGUF", "furthest")), "|\n" + "|---" * 7 + "|")
        for method, file in zip(methods, files[1:], strict=True):
            ours = of_transformers(full, RopeRequest.parse(method), ids, short + long)
            found = of_llama_cpp(file, tokenizer, ids, short + long)
            for name, part in parts.items():
                cells = [f"`{method}`", name, f"{-ours[part].mean():.4f}"]
                for other in (found, plain):
                    apart = np.abs(other - ours)[part].max()
                    cells += [f"{-other[part].mean():.4f}", f"{apart:.2g}"]
                print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
