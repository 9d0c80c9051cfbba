"""Frames of effective context from blocks of real reads, without files."""

import json
from pathlib import Path

import pandas as pd

from leval_harness.report.effective_context import effective_rows

BLOCKS = pd.read_csv(Path(__file__).with_name("quickstart_blocks.csv"))
"""SmolLM2-135M on three pieces of the Python language reference: sums of clipped gains, nats."""

ROPES = {
    "rope": {"rope_type": "default", "rope_theta": 1e5},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e5, "factor": 2},
    "resonance_yarn": {"rope_type": "resonance_yarn", "rope_theta": 1e5, "factor": 2},
}
COMMAND = "leval-harness sweep quickstart --out results --set models.m.dtype=float32 --set seed=1"


def frames(gains, documents=3, trained=8192, block="SmolLM2-135M", blocks=BLOCKS, **more):
    """What `effective_rows` takes; `gains` of each method are a column of `blocks`, or computed."""
    chosen = blocks[blocks["text"].isin(list(blocks["text"].unique())[:documents])]
    task = "effective_context_pydocs"
    about = {
        "task": task, "name": "loss", "metric": "loss", "status": "done", "block": block,
        "model": block, "baseline": "rope", "margin": None, "sample": False, "group": False,
        "claimed_length": trained, "command": COMMAND, "num_docs": documents, "seconds": 60.0,
        "created": "2026-01-01T00:00:00+00:00", "kind": "loss", "difference": None,
        "length": 11264, **more,
    }  # fmt: skip
    compared = pd.DataFrame(
        [
            {**about, "run": run, "label": name, "method": name, "rope": json.dumps(ROPES[name])}
            for run, name in enumerate(gains)
        ]
    )
    parts = []
    for run, values in enumerate(gains.values()):
        gain = chosen[values] if isinstance(values, str) else values(chosen)
        parts.append(
            chosen[["text", "start"]].assign(
                run=run, task=task, digest=chosen["text"], tokens=64, full=192 - gain,
                reference=192.0, gain=gain,
            )
        )  # fmt: skip
    return compared, pd.concat(parts, ignore_index=True)


def compared_of(gains, margin=None, **how):
    """The compared frame of such reads, with the rows of effective context."""
    compared, blocks = frames(gains, **how)
    rows = effective_rows(compared, blocks, margin).assign(sample=False, group=False)
    return pd.concat([compared, rows], ignore_index=True)
