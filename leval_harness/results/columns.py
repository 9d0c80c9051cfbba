"""The columns of the four frames: types and meanings, declared once."""

from typing import NamedTuple

TEXT, WHOLE, NUMBER, YES_OR_NO, OBJECT = "text", "Int64", "float64", "boolean", "object"
"""Types of columns. Missing values: NaN in text and numbers, NA in whole numbers and booleans."""


class Column(NamedTuple):
    """A column of a frame.

    Attributes:
        type: `text`, or a pandas dtype.
        description: meaning and unit.
    """

    type: str
    description: str


RUNS = {
    "run": Column("int64", "number of the row; joins the frames"),
    "id": Column(TEXT, "id of the run of a sweep, or name of the results file"),
    "sweep": Column(TEXT, "folder of the sweep, or of the results file"),
    "place": Column("int64", "position in the sweep's config"),
    "folder": Column(OBJECT, "path of the run's folder"),
    "files": Column(OBJECT, "paths of lm-eval's results files"),
    "status": Column(TEXT, "`done`, `failed`, `unfinished` or `malformed`"),
    "note": Column(TEXT, "reason of the status"),
    "model": Column(TEXT, "name of the model in tables"),
    "checkpoint": Column(TEXT, "path, hub name or address of the model"),
    "method": Column(TEXT, "name of the RoPE method in tables"),
    "rope": Column(TEXT, "RoPE settings as JSON; missing for an unmodified checkpoint"),
    "context_length": Column(WHOLE, "tokens"),
    "tasks": Column(OBJECT, "names of the tasks"),
    "backend": Column(TEXT, "lm-eval's name of the backend"),
    "dtype": Column(TEXT, "of the model's weights"),
    "limit": Column(NUMBER, "questions of each task, or their share below 1"),
    "num_docs": Column(WHOLE, "documents of each task"),
    "gen_kwargs": Column(TEXT, "settings of generation as JSON"),
    "chat_template": Column(TEXT, "hash of the chat template"),
    "seed": Column(WHOLE, "of the evaluation"),
    "baseline": Column(TEXT, "method that the sweep names as baseline"),
    "margin": Column(NUMBER, "nats/token that the sweep treats as zero"),
    "command": Column(TEXT, "command line of the run"),
    "created": Column(TEXT, "ISO 8601, UTC"),
    "seconds": Column(NUMBER, "of the whole run"),
    "versions": Column(OBJECT, "package -> version"),
    "peak_memory_bytes": Column(NUMBER, "of the whole run"),
    "tokens_prefilled": Column(NUMBER, "of the whole run"),
    "tokens_generated": Column(NUMBER, "of the whole run"),
    "precision": Column(TEXT, "of the rotation"),
    "replaced": Column(TEXT, "the shipped RoPE scaling that the method replaced, as JSON"),
    "arguments": Column(TEXT, "other arguments of the model that can change a number, as JSON"),
    "hardware": Column(TEXT, "GPUs, or processor and cores, in words"),
}
"""A row for each run of a sweep, or for each results file that lm-eval wrote alone."""

SCORES = {
    "run": Column("int64", "number of the run"),
    "task": Column(TEXT, "name of the task or group"),
    "name": Column(TEXT, "the metric as lm-eval writes it; missing in the row of a run without any"),
    "metric": Column(TEXT, "the metric without a length: `loss@2048` is `loss`, RULER's `4096` `score`"),
    "filter": Column(TEXT, "what extracted the answers"),
    "length": Column(WHOLE, "tokens: in the metric's name, else of the prompts, else of the run"),
    "value": Column(NUMBER, "as in the file; a share is from 0 to 1"),
    "stderr": Column(NUMBER, "standard error as in the file"),
    "higher_is_better": Column(YES_OR_NO, "as the file says, else as is known; missing if neither"),
    "status": Column(TEXT, "`done`, `not finite` (NaN, infinity), `not available` (N/A), `unscored` "
                     "(answers kept alone), or that of a run without numbers"),
    "note": Column(TEXT, "reason of the status"),
    "asked": Column(WHOLE, "questions"),
    "partial": Column(YES_OR_NO, "some questions were excluded"),
    "chance": Column(NUMBER, "expected value of a guess"),
    "source": Column(TEXT, "where the documents are from: of a user's, the path of their file"),
    "alias": Column(TEXT, "name of the task with the file that it read in place of published documents"),
    "sample": Column(YES_OR_NO, "the bundled sample was read"),
    "data": Column(TEXT, "fingerprint of the documents' files"),
    "shots": Column(WHOLE, "examples in the prompt"),
    "claimed_length": Column(WHOLE, "native context length of the unmodified checkpoint, tokens"),
    "aggregation": Column(TEXT, "how questions make the number: `mean`, `ratio`, `perplexity` (exp of a "
                          "ratio), `bits` (a ratio over ln 2), `own` (the task's own)"),
    "group": Column(YES_OR_NO, "a number of several tasks"),
    "generates": Column(YES_OR_NO, "the task generates answers; missing where the file does not say"),
}  # fmt: skip
"""A row for each number of a results file; a column `setting NAME` for each setting of a task."""

SAMPLES = {
    "run": Column("int64", "number of the run"),
    "task": Column(TEXT, "name of the task"),
    "filter": Column(TEXT, "what extracted the answer"),
    "question": Column(TEXT, "name of the question, the same for all models"),
    "prompt": Column(TEXT, "hash of the prompt"),
    "document": Column(TEXT, "questions on one document are not independent"),
    "metric": Column(TEXT, "a score or loss, or a note: `unparsed`, `truncated`, `reached_limit`, "
                     "`thinking_unfinished` (0 or 1), `kept_tokens`, `document_tokens`"),
    "num": Column(NUMBER, "numerator: the score, or the loss in nats"),
    "den": Column(NUMBER, "denominator: 1, or the tokens, words or bytes of a loss"),
}  # fmt: skip
"""A row for each question and number."""

BLOCKS = {
    "run": Column("int64", "number of the run"),
    "task": Column(TEXT, "name of the task"),
    "document": Column(TEXT, "name of the document"),
    "digest": Column(TEXT, "hash of the document's tokens"),
    "start": Column("int64", "position of the block's first token, BOS counted"),
    "tokens": Column("int64", "tokens in the block"),
    "full": Column(NUMBER, "sum of their losses, read after all tokens before them, nats"),
    "reference": Column(NUMBER, "the same of the unmodified model in windows of its native context "
                        "length, nats; missing without a reference"),
    "difference": Column(NUMBER, "sum of full - reference, each token clipped to 1 nat either way; "
                         "positive where the method is worse"),
}  # fmt: skip
"""A row for each 64 tokens of a document that effective-context tasks read."""
