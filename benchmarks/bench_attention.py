"""Is an exact attention faster on CPUs than torch's flash kernel? Online softmax, two products.

A blocked attention with float32 accumulation, its blocks made to fit the cache: batched products
`q k'` in float32 and `p v` in float32 or bfloat16, against torch's kernel on bfloat16. CPU seconds,
so that other work on the machine does not count.

    python benchmarks/bench_attention.py [--keys 8192] [--queries 2048]
"""

import argparse
import time

import torch

KV_HEADS, GROUPS, DIM = 3, 3, 64  # SmolLM2-135M


def blocked(query, key, value, scale, rows, columns):
    """`[heads, n, dim]`, all keys seen; float32 throughout unless `value` is bfloat16."""
    heads, n, dim = query.shape
    query, key = query.float() * scale, key.float().transpose(1, 2).contiguous()
    out = torch.empty(heads, n, dim)
    for first in range(0, n, rows):
        part = query[:, first : first + rows]
        total, top = torch.zeros(part.shape[:2]), torch.full(part.shape[:2], -float("inf"))
        sums = torch.zeros(part.shape)
        for start in range(0, key.shape[2], columns):
            scores = torch.bmm(part, key[:, :, start : start + columns])
            new = torch.maximum(top, scores.amax(-1))
            scores.sub_(new[..., None]).exp_()
            old = (top - new).exp_()
            total.mul_(old).add_(scores.sum(-1))
            piece = value[:, start : start + columns]
            sums.mul_(old[..., None]).add_(torch.bmm(scores.to(piece.dtype), piece))
            top = new
        out[:, first : first + rows] = sums / total[..., None]
    return out


def seconds(run):
    """The shortest of three, CPU time."""
    times = []
    for _ in range(3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=8192)
    parser.add_argument("--queries", type=int, default=2048)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    query = 3 * torch.randn(KV_HEADS, GROUPS * args.queries, DIM).bfloat16()
    key, value = (torch.randn(KV_HEADS, args.keys, DIM).bfloat16() for _ in range(2))
    scale = DIM**-0.5

    def kernel():
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query[None], key[None], value[None], 0.0, False, scale=scale
        )

    base = seconds(kernel)
    work = 4 * query.shape[0] * query.shape[1] * args.keys * DIM
    print(f"torch's kernel: {base:.3f} s, {work / base / 1e9:.0f} GFLOPS")
    for name, given in (("float32", value.float()), ("bfloat16", value)):
        for rows in (128, 384):
            took = seconds(lambda: blocked(query, key, given, scale, rows, 512))  # noqa: B023
            print(f"p v in {name}, blocks of {rows} x 512: {base / took:.2f} x the speed")


if __name__ == "__main__":
    main()
