"""The texts of effective-context tasks: sums over blocks, and the losses of tokens beside them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from leval_harness.layout import LOSSES_OF
from leval_harness.old_results.fields import ResultsError, read_bytes
from leval_harness.old_results.load import Results
from leval_harness.old_results.run_record import Run
from leval_harness.old_results.sample_lines import parsed_lines
from leval_harness.old_results.scores import Score
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


def read_texts(results: Results, scores: Iterable[Score], gaps: list[str]) -> dict[str, ReadText]:
    """The texts behind some scores, by name; of one that was read twice the longer read.

    `gaps` gets what is missing: a file that cannot be read, was altered or does not fit the others,
    or samples that were not logged.
    """
    found: dict[str, ReadText] = {}
    for index, task in dict.fromkeys((score.run, score.task) for score in scores):
        run, samples = results.runs[index], results.samples.get((index, task))
        try:
            texts = list(_texts(run, task, samples.path)) if samples else []
        except ResultsError as error:
            gaps.append(f"Not counted: {error}")
            continue
        if not texts:
            gaps.append(f"Not counted: {run.method}: {task}, whose samples were not logged")
        for text in texts:
            if text.name not in found or found[text.name].end < text.end:
                found[text.name] = text
    return found


def _texts(run: Run, task: str, samples: Path) -> Iterator[ReadText]:
    """The texts in the samples of a task, with the losses that the run kept of them."""
    for sample in filter(None, parsed_lines(samples)):
        if (blocks := sample.blocks) is None:
            continue
        document, digest = (str(sample.document.get(n)) for n in ("document_id", "tokens_sha256"))
        losses = _losses(run, task, document, int(blocks[:, 1].sum()))
        yield ReadText(f"{task} {document}", digest, blocks, losses)


def _losses(run: Run, task: str, document: str, tokens: int) -> dict[str, Floats]:
    """Read -> nats of each token `[tokens]`, as far as the run kept them."""
    losses = {}
    for read in (FULL, SHORT, TRAINED):
        file = LOSSES_OF.format(task=task, document=document, read=read)
        if Path(file).name != file or not (run.folder / file).is_file():
            continue
        path = run.file(file)
        try:
            found = np.load(BytesIO(read_bytes(path)), allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ResultsError(f"{path}: not readable ({error})") from error
        if found.shape != (tokens,) or found.dtype != np.float32:
            raise ResultsError(
                f"{path}: {found.dtype} of shape {found.shape}; expected float32 of ({tokens},)"
            )
        losses[read] = found.astype(np.float64)
    return losses
