"""The texts of effective-context tasks: sums over blocks, and the losses of tokens beside them."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from leval_harness.layout import losses_file
from leval_harness.results.fields import ResultsError, read_bytes
from leval_harness.results.run_record import Run
from leval_harness.results.sample_lines import Sample, parsed_lines
from leval_tasks.effective_context.reads import COLUMNS, FULL, SHORT, TRAINED
from leval_tasks.statistics.clustered import Floats


@dataclass(frozen=True, slots=True)
class ReadText:
    """One text that a run read.

    Attributes:
        name: the task and the document.
        digest: of its tokens.
        blocks: `[B, 6]`, the `COLUMNS` of each block; NaN where a read is missing. `[0, 6]` where
            the run read windows alone and kept no full read.
        losses: read -> nats of each token past the first short window, `[T]`; empty where the run
            kept none.
    """

    name: str
    digest: str
    blocks: Floats
    losses: dict[str, Floats]

    @property
    def start(self) -> int:
        """Position of the first token that is scored."""
        return int(self.blocks[0, 0])

    @property
    def end(self) -> int:
        """Tokens of the text, BOS counted."""
        return int(self.blocks[-1, :2].sum())

    def column(self, name: str) -> Floats:
        """One of `COLUMNS`, `[B]`."""
        values: Floats = self.blocks[:, COLUMNS.index(name)]
        return values


def read_texts(run: Run, task: str, samples: Path) -> list[ReadText]:
    """The texts in the samples of a task, with the losses that the run kept of them.

    Raises:
        ResultsError: a file cannot be read, was altered, or does not fit the others.
    """
    texts = []
    for sample in filter(None, parsed_lines(samples)):
        blocks = _blocks(sample)
        if blocks is None:
            continue
        name, losses = str(sample.document.get("document_id")), {}
        for read in (FULL, SHORT, TRAINED):
            file = losses_file(task, name, read)
            if Path(file).name == file and (run.folder / file).is_file():
                losses[read] = _losses(run, file, int(blocks[:, 1].sum()))
        digest = str(sample.document.get("tokens_sha256"))
        texts.append(ReadText(f"{task} {name}", digest, blocks, losses))
    return texts


def _blocks(sample: Sample) -> Floats | None:
    """The blocks of a sample, None where it has none or they are damaged.

    lm-eval logs the numbers as text; one that is missing is `None`.
    """
    described = sample.row.get("filtered_resps")
    rows: Any = described[0] if isinstance(described, list) and described else None
    try:
        numbers = [[np.nan if str(n) == "None" else float(str(n)) for n in row] for row in rows]
        blocks = np.array(numbers).reshape(-1, len(COLUMNS))
    except (TypeError, ValueError):
        return None
    usable = blocks.size and np.isfinite(blocks[:, :2]).all() and (blocks[:, 1] > 0).all()
    return blocks if usable else None


def _losses(run: Run, file: str, tokens: int) -> Floats:
    path = run.file(file)
    try:
        losses = np.load(BytesIO(read_bytes(path)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ResultsError(f"{path}: not readable ({error})") from error
    if losses.shape != (tokens,) or losses.dtype != np.float32:
        raise ResultsError(
            f"{path}: {losses.dtype} of shape {losses.shape}; expected float32 of ({tokens},)"
        )
    return np.asarray(losses, np.float64)
