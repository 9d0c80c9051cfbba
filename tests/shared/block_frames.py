"""Frames of effective context from blocks of real reads, without files."""

import json
from pathlib import Path

import pandas as pd

from leval_harness.report.effective_context import effective_rows

BLOCKS = pd.read_csv(Path(__file__).with_name("quickstart_blocks.csv"))
"""SmolLM2-135M on three pieces of the Python language reference: sums of clipped differences, nats."""

ROPES = {
    "rope": {"rope_type": "default", "rope_theta": 1e5},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e5, "factor": 2},
    "dynamic": {"rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": 8192},
    "resonance_yarn": {"rope_type": "resonance_yarn", "rope_theta": 1e5, "factor": 2},
}
COMMAND = "leval-harness sweep quickstart --out results --set models.m.dtype=float32 --set seed=1"


def frames(
    differences, documents=3, trained=8192, block="SmolLM2-135M", blocks=BLOCKS, ropes=ROPES, **more
):
    """What `effective_rows` takes; `differences` of each method are a column of `blocks`, or computed."""
    ropes = {**ROPES, **ropes}
    chosen = blocks[blocks["document"].isin(list(blocks["document"].unique())[:documents])]
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
            {**about, "run": run, "label": name, "method": name, "rope": json.dumps(ropes[name])}
            for run, name in enumerate(differences)
        ]
    )
    parts = []
    for run, values in enumerate(differences.values()):
        difference = chosen[values] if isinstance(values, str) else values(chosen)
        parts.append(
            chosen[["document", "start"]].assign(
                run=run, task=task, digest=chosen["document"], tokens=64, full=192 + difference,
                reference=192.0, difference=difference,
            )
        )  # fmt: skip
    return compared, pd.concat(parts, ignore_index=True)


def compared_of(differences, margin=None, **how):
    """The compared frame of such reads, with the rows of effective context."""
    compared, blocks = frames(differences, **how)
    rows = effective_rows(compared, blocks, margin).assign(sample=False, group=False, note="")
    return pd.concat([compared, rows], ignore_index=True)
