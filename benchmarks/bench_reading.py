"""Time and memory of reading one long document with `hf-long`, on a CPU.

    python benchmarks/bench_reading.py losses --vocabulary 262144 --positions 512
    python benchmarks/bench_reading.py memory --lengths 16384 32768 65536 --repetitions 3
    python benchmarks/bench_reading.py attention --length 32768
    python benchmarks/bench_reading.py rounding MODEL --length 2048 --chunk 512
    python benchmarks/bench_reading.py passes MODEL

Random weights decide no time and no memory, so that only `rounding` and `passes` need a checkpoint.
Times are CPU seconds of one thread, the best of some repetitions: other work on the machine moves
them less than seconds of a clock. `memory` runs each read in a process of its own.
"""

import argparse
import inspect
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

GIB = 1 << 30
RATIO = 1.3
"""Most time of losses, as a multiple of the time of the matrix product."""
MODELS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 2,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "sliding_window": 512,
        "layer_types": ["sliding_attention", "full_attention"], "vocab_size": 32768,
    },
    "llama": {
        "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 32768,
    },
}  # fmt: skip
"""Shapes of models: one as wide as Gemma 3 270M with two of its layers, and one without windows."""


def cpu_seconds(function: Callable[[], Any], repetitions: int) -> float:
    """Return the CPU seconds of the fastest of some calls."""
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


class PlainHead:
    """An output layer without a model before it."""

    def __init__(self, matrix: torch.nn.Linear) -> None:
        self.matrix = matrix
        self.vocabulary = matrix.out_features


@torch.no_grad()
def losses(args: argparse.Namespace) -> None:
    """Compare losses over a large vocabulary with the matrix product that they need."""
    from leval_harness.backends.scoring import BLOCK_POSITIONS, BLOCK_VOCABULARY, token_scores

    dtype = getattr(torch, args.dtype)
    matrix = torch.nn.Linear(args.width, args.vocabulary, bias=False, dtype=dtype)
    states = torch.randn(args.positions, args.width).to(dtype)
    targets = torch.randint(args.vocabulary, (args.positions,))
    head: Any = PlainHead(matrix)
    weight = matrix.weight

    def product() -> None:
        for part in states.split(BLOCK_POSITIONS):
            for block in weight.split(BLOCK_VOCABULARY):
                torch.nn.functional.linear(part, block)

    def slices() -> None:
        for part in states.split(64):
            matrix(part)

    def by_cross_entropy() -> Tensor:
        parts = zip(states.split(64), targets.split(64), strict=True)
        return torch.cat(
            [
                -torch.nn.functional.cross_entropy(matrix(part).float(), goal, reduction="none")
                for part, goal in parts
            ]
        )

    def by_plain_loop() -> Tensor:
        logprobs = []
        for part, goal in zip(states.split(64), targets.split(64), strict=True):
            logits = matrix(part).float().log_softmax(-1)
            logprobs.append(logits.gather(-1, goal[:, None]).squeeze(-1))
        return torch.cat(logprobs)

    def by_block() -> Tensor:
        return token_scores(head, states, targets.tolist(), with_correct=False)[0]

    def with_argmax() -> Tensor:
        return token_scores(head, states, targets.tolist(), with_correct=True)[0]

    base = cpu_seconds(product, args.repetitions)
    print(f"matrix product in blocks: {base:.2f} s for {args.positions} x {args.vocabulary}")
    print(
        f"matrix product of 64 rows at a time: {cpu_seconds(slices, args.repetitions) / base:.2f}"
    )
    variants = {
        "losses in blocks": by_block,
        "with the most probable token": with_argmax,
        "cross_entropy, 64 rows at a time": by_cross_entropy,
        "plain loop, log_softmax of 64 rows at a time": by_plain_loop,
    }
    expected = by_cross_entropy()
    for name, function in variants.items():
        ratio = cpu_seconds(function, args.repetitions) / base
        difference = (function() - expected).abs().max().item()
        print(f"{name}: {ratio:.2f} times the product, largest difference {difference:.1e} nats")
        if name == "losses in blocks" and ratio > RATIO:
            raise SystemExit(f"losses take {ratio:.2f} times the matrix product, above {RATIO}")


def random_model(kind: str, dtype: str) -> Any:
    """Return a model of a shape of `MODELS` with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, max_position_embeddings=1 << 17, **MODELS[kind])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.to(getattr(torch, dtype)).eval()


def peak_bytes() -> int:
    unit = 1024
    if sys.platform == "darwin":
        unit = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@torch.no_grad()
def read_once(kind: str, dtype: str, length: int) -> dict[str, float]:
    """Score the last 2,048 tokens of a document in chunks; return memory and time.

    `hf-long` reads a document of these small shapes in one pass up to 61,000 tokens.
    """
    from leval_harness.backends.forward import Head
    from leval_harness.backends.prefill import CHUNK
    from leval_harness.backends.reading import SHARED, WINDOWED, Reader, score_passages
    from leval_harness.backends.scoring import Passage

    model = random_model(kind, dtype)
    head = Head(model)
    mode = WINDOWED if kind == "gemma3_text" else SHARED
    tokens = torch.randint(model.config.vocab_size, (length,)).tolist()
    warm_up = Passage(tokens[:1], tokens[1:64], length, with_correct=False)
    warm_up.score_alone(head)
    passage = Passage(tokens[:-CHUNK], tokens[-CHUNK:], length, with_correct=False)
    before = peak_bytes()
    start = time.process_time()
    for _ in score_passages(head, Reader(head, mode, CHUNK), [passage], CHUNK):
        pass
    return {"growth": peak_bytes() - before, "seconds": time.process_time() - start}


def memory(args: argparse.Namespace) -> None:
    """Measure the growth of memory by a read, beside the size of its KV cache."""
    from transformers import AutoConfig

    kinds = [args.model] if args.model else list(MODELS)
    for kind in kinds:
        config = AutoConfig.for_model(kind, **MODELS[kind])
        for length in args.lengths:
            kv_cache = kv_cache_bytes(config, length, getattr(torch, args.dtype).itemsize)
            results = [in_a_process(kind, args.dtype, length) for _ in range(args.repetitions)]
            beyond = [(result["growth"] - kv_cache) / GIB for result in results]
            seconds = min(result["seconds"] for result in results)
            print(
                f"{kind} {length:6,}: KV cache {kv_cache / GIB:.3f} GiB, memory beyond weights and KV "
                f"cache {', '.join(f'{value:.3f}' for value in beyond)} GiB, {seconds:.0f} CPU s",
                flush=True,
            )
            if max(beyond) > 1:
                raise SystemExit("a read takes more than 1 GiB beyond weights and KV cache")


def kv_cache_bytes(config: Any, tokens: int, bytes_per_value: int) -> int:
    """Return the bytes of keys and values; windowed layers keep a window."""
    entries = 0
    for kind in (
        getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    ):
        entries += min(tokens, config.sliding_window) if kind == "sliding_attention" else tokens
    return 2 * entries * config.num_key_value_heads * config.head_dim * bytes_per_value


def in_a_process(kind: str, dtype: str, length: int) -> dict[str, float]:
    """Return what `read_once` returns in a fresh process."""
    command = [sys.executable, __file__, "read", kind, "--dtype", dtype, "--length", str(length)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


@torch.no_grad()
def attention(args: argparse.Namespace) -> None:
    """Compare attention of a long document in chunks with one pass, for a layer of each shape."""
    from leval_harness.backends.attention import own_part, prefix_part
    from resonance_vllm.hf.partial_attention import join

    n = args.length
    for kind, sizes in MODELS.items():
        heads, kv_heads, dim = (
            sizes["num_attention_heads"], sizes["num_key_value_heads"], sizes["head_dim"],
        )  # fmt: skip
        query = torch.randn(1, heads, n, dim)
        key, value = torch.randn(2, 1, kv_heads, n, dim)

        def one_pass(query: Tensor = query, key: Tensor = key, value: Tensor = value) -> Tensor:
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )

        def in_chunks(query: Tensor = query, key: Tensor = key, value: Tensor = value) -> Tensor:
            outputs = []
            for begin in range(0, n, args.chunk):
                part = slice(begin, begin + args.chunk)
                queries = query[:, :, part]
                scale = query.shape[-1] ** -0.5
                attended = own_part(queries, key[:, :, part], value[:, :, part], None, scale)
                if begin:
                    before = prefix_part(queries, key[:, :, :begin], value[:, :, :begin], scale)
                    attended = join(attended, before)
                outputs.append(attended[0])
            return torch.cat(outputs, dim=2)

        whole = cpu_seconds(one_pass, args.repetitions)
        chunked = cpu_seconds(in_chunks, args.repetitions)
        difference = (one_pass() - in_chunks()).abs().max().item()
        print(
            f"{kind}: one pass {whole:.2f} CPU s, chunks of {args.chunk} {chunked:.2f} CPU s, "
            f"ratio {chunked / whole:.2f}, largest difference {difference:.1e}",
            flush=True,
        )


@torch.no_grad()
def rounding(args: argparse.Namespace) -> None:
    """Compare the losses of a document read in chunks with those of one pass."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from leval_harness.backends.forward import Head
    from leval_harness.backends.reading import Reader, score_passages
    from leval_harness.backends.reuse import possible_modes
    from leval_harness.backends.scoring import Passage

    text = inspect.getsource(argparse)  # prose and code of 25,000 tokens that every Python has
    tokens = AutoTokenizer.from_pretrained(args.model)(text)["input_ids"][: args.length]
    for dtype in args.dtypes:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).eval()
        head = Head(model)
        mode = next(possible_modes(model))
        whole = Passage(tokens[:1], tokens[1:], len(tokens), with_correct=False)
        chunked = Passage(tokens[:1], tokens[1:], len(tokens), with_correct=False)
        whole.score_alone(head)
        for _ in score_passages(head, Reader(head, mode, args.chunk), [chunked], args.chunk):
            pass
        difference = chunked.logprob - whole.logprob
        print(
            f"{dtype}, {mode}: of {len(tokens)} tokens in chunks of {args.chunk}, largest difference "
            f"{difference.abs().max():.1e} nats, of the mean {difference.mean().abs():.1e}",
            flush=True,
        )


def passes(args: argparse.Namespace) -> None:
    """Count the forward passes for sixteen questions about one document."""
    from lm_eval.api.instance import Instance

    from leval_harness.backends.hf_long import HFLong

    lm = HFLong(args.model, device="cpu", dtype="float32", max_length=2048)
    document = "The Danube rises in the Black Forest and ends in the Black Sea. " * 60
    options = {"until": [], "max_gen_toks": 8, "do_sample": False}
    requests = []
    for number in range(16):
        prompt = f"{document}\nQuestion {number}: where does it end?"
        requests.append(Instance("generate_until", {}, (prompt, dict(options)), number))
    _ = lm.reuse
    counted: list[int] = []
    lm.model.get_decoder().register_forward_hook(lambda *_: counted.append(1))
    seconds = cpu_seconds(lambda: lm.generate_until(requests, disable_tqdm=True), 1)
    print(f"{len(counted)} forward passes, {seconds:.1f} CPU s, mode {lm.reuse.mode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = {
        "losses": losses,
        "memory": memory,
        "attention": attention,
        "rounding": rounding,
        "passes": passes,
    }
    parser.add_argument("command", choices=(*commands, "read"))
    parser.add_argument(
        "model", nargs="?", help="checkpoint folder; of `memory` and `read` a shape of MODELS"
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32", "bfloat16"], help="of `rounding`"
    )
    parser.add_argument("--vocabulary", type=int, default=262_144)
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--positions", type=int, default=512)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16_384, 32_768, 65_536])
    parser.add_argument("--length", type=int, default=32_768)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.command == "read":
        print(json.dumps(read_once(args.model, args.dtype, args.length)))
    else:
        commands[args.command](args)


if __name__ == "__main__":
    main()
