"""The texts of effective-context tasks: sums over blocks, and the losses of tokens beside them."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from leval_harness.layout import losses_file
from leval_harness.results.fields import ResultsError, finite, read_bytes, refused
from leval_harness.results.run_record import Run
from leval_harness.results.sample_lines import Row, document_of, parsed_lines
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
    for row in parsed_lines(samples):
        blocks = _blocks(row) if row else None
        if row is None or blocks is None:
            continue
        document = document_of(row)
        name, losses = str(document.get("document_id")), {}
        for read in (FULL, SHORT, TRAINED):
            file = losses_file(task, name, read)
            if Path(file).name == file and (run.folder / file).is_file():
                losses[read] = _losses(run, file, int(blocks[:, 1].sum()))
        digest = str(document.get("tokens_sha256"))
        texts.append(ReadText(f"{task} {name}", digest, blocks, losses))
    return texts


def _blocks(row: Row) -> Floats | None:
    """The blocks of a sample, None where it has none or they are damaged."""
    described = row.get("filtered_resps")
    rows: Any = described[0] if isinstance(described, list) and described else None
    if not isinstance(rows, list) or not rows:
        return None
    if any(not isinstance(each, list) or len(each) != len(COLUMNS) for each in rows):
        return None
    blocks = np.array([[_number(value) for value in each] for each in rows])
    usable = np.isfinite(blocks[:, :2]).all() and (blocks[:, 1] > 0).all()
    return blocks if usable else None


def _number(value: object) -> float:
    """A number that lm-eval logged as text; NaN for `None`."""
    try:
        number = finite(float(str(value)))
    except ValueError:
        number = None
    return np.nan if number is None else number


def _losses(run: Run, file: str, tokens: int) -> Floats:
    if why := refused(run.folder, file):
        raise ResultsError(f"{run.folder / file}: {why}")
    run.check_unaltered(run.folder / file)
    try:
        losses = np.load(BytesIO(read_bytes(run.folder / file)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ResultsError(f"{run.folder / file}: not readable ({error})") from error
    if losses.shape != (tokens,) or losses.dtype != np.float32:
        raise ResultsError(
            f"{run.folder / file}: {losses.dtype} of shape {losses.shape}; expected float32 of "
            f"({tokens},)"
        )
    return np.asarray(losses, np.float64)
