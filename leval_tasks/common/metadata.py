"""The settings of this package's tasks in lm-eval's `--metadata`: one model per family, and its reader.

lm-eval merges `--model_args` into the metadata, and other tasks have keys of their own there. So
unknown keys pass, unless they are a misspelt setting.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from resonance_vllm.common.errors import SettingError, UserError, invalid_value_message
from resonance_vllm.common.settings import Settings, field_names, parse_settings

Frame = Literal["llama2", "plain", "chat_template"]
FRAMES: tuple[str, ...] = get_args(Frame)
Mode = Literal["sliding", "truncate"]
Subtask = Literal["recursive", "cot", "semi_recursive"]
SUBTASKS: tuple[str, ...] = get_args(Subtask)
Natural = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
OptionalCount = Count | None


def _listed(value: object) -> object:
    """Return a list as a tuple, and a single value as a tuple of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _lengths(value: object) -> object:
    """Return one length or a list of lengths as a tuple; None for an empty list."""
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        return (value,)
    return tuple(value) or None


Length = Annotated[int, Field(ge=2)]  # one token is scored
Lengths = Annotated[
    tuple[Length, ...] | None,
    BeforeValidator(_lengths),
    AfterValidator(lambda lengths: lengths and tuple(sorted({*lengths}))),
]


class TaskSettings(Settings):
    """Settings of a family of tasks."""

    def recorded(self) -> dict[str, Any]:
        """Return the settings that decide numbers, for the results; others have `exclude=True`."""
        return self.model_dump(mode="json")


class BackendSettings(TaskSettings):
    """The longest sequence that a backend takes, in tokens, as the run sets it."""

    max_length: OptionalCount = None
    max_model_len: OptionalCount = None

    @property
    def length(self) -> int | None:
        """Return the one that is set."""
        return self.max_length or self.max_model_len


class ContextSettings(BackendSettings):
    """The length of context that the run sets: tokens of prompt and answer together."""

    context_length: OptionalCount = None


class ClosedSettings(TaskSettings):
    """Settings of a closed-ended task; docs/reference/tasks.md explains each."""

    data_dir: str | None = Field(default=None, exclude=True)
    truncation: Literal["middle", "right", "left", "skip"] | None = None
    num_docs: OptionalCount = None
    min_questions: OptionalCount = None
    end_of_thinking: str = "</think>"
    answer_prefix: Literal["assistant", "user"] = "assistant"
    frame: Frame | None = None

    @field_validator("truncation", mode="before")
    @classmethod
    def _not_the_argument_of_hf(cls, value: object) -> object:
        """Ignore a boolean, which is an argument of lm-eval's hf backend of the same name."""
        return None if isinstance(value, bool) else value


def asked_without_template(model: str) -> str:
    """Return the warning about an instruct model that is prompted without its chat template."""
    return (
        f"{model} has a chat template and is asked without it; give --apply_chat_template (in a "
        "sweep, of the model: apply_chat_template: true), or frame: llama2 or plain to keep it so"
    )


class TextSettings(TaskSettings):
    """Settings of the tasks that read running text.

    Attributes:
        data_dir: folder of the corpora's files.
        file: JSON-lines file of a task for documents of one's own.
        context_length: positions of a window, BOS included; several lengths make a curve.
        num_docs: number of documents.
        seed: of the draw of documents.
    """

    data_dir: str | None = Field(default=None, exclude=True)
    file: str | None = Field(default=None, exclude=True)
    context_length: Lengths = None
    num_docs: Count = 50
    seed: Natural = 0


class PerplexitySettings(TextSettings):
    """Settings of a perplexity task.

    Attributes:
        mode: which windows are read, see `make_windows`.
        stride: tokens by which sliding windows move.
        max_tokens: tokens to which documents are cut.
        max_characters: characters to which documents are cut, so that models with other tokenizers
            score the same text.
    """

    mode: Mode = "sliding"
    stride: Count = 256
    max_tokens: OptionalCount = None
    max_characters: OptionalCount = None


class EffectiveContextSettings(TextSettings):
    """Settings of an effective-context task.

    `window` is positions of the reference's windows, None for the native context length. The
    `reads`
    `full` and `reference` leave the other to another run of a sweep.
    """

    num_docs: Count = 8
    window: OptionalCount = None
    reads: Literal["all", "full", "reference"] = Field(default="all", exclude=True)


def scored_from(window: int, longest: int) -> int:
    """Return the first scored position: a quarter of the reference's window, or of a shorter document."""
    return max(min(window, longest) // 4, 2)


Depths = Annotated[
    tuple[Annotated[int, Field(ge=0, le=100)], ...],
    BeforeValidator(_listed),
    Field(min_length=1),
    AfterValidator(lambda depths: tuple(sorted({*depths}))),
]
"""Depths of needles in a haystack, percent."""


class RetrievalSettings(TaskSettings):
    """Settings of a needle grid.

    Attributes:
        data_dir: folder of the corpora's files.
        file: documents of one's own as the haystack.
        context_length: tokens of prompt and answer together; several lengths make the grid.
        haystack: `pysource`, `pydocs`, `noise`, `needles`, or a corpus in `data_dir`.
        depths: places of the needle in the haystack, percent of its lines or sentences.
        num_samples: prompts per place, a place being a length and a depth.
        key_type: what needles are named by.
        value_type: what is to be retrieved.
        seed: of keys, values, and the places of further needles.
    """

    data_dir: str | None = Field(default=None, exclude=True)
    file: str | None = Field(default=None, exclude=True)
    context_length: Lengths = None
    haystack: str = "pysource"
    depths: Depths = (0, 50, 100)
    num_samples: Count = 8
    key_type: Literal["words", "uuids"] = "words"
    value_type: Literal["numbers", "words", "uuids"] = "numbers"
    seed: Natural = 0


class MRCRSettings(TaskSettings):
    """Settings of an MRCR task.

    Attributes:
        data_dir: folder of the published files.
        num_samples: conversations of each bin; None for all that fit.
        bin_tokenizer: by whose tokens conversations are binned: those of the published results,
            or the model's own.
    """

    data_dir: str | None = Field(default=None, exclude=True)
    num_samples: OptionalCount = None
    bin_tokenizer: Literal["o200k_base", "model"] = "o200k_base"


class PosGenSettings(TaskSettings):
    """Settings of a PosGen data set.

    Attributes:
        subtask: the rule of the sums.
        modulus: size `m` of the number vocabulary 0..m-1.
        far: `j`, how many far tokens each sum takes.
        near: `k`, how many of the tokens just before.
        train_length: numbers in a training sequence (`L`).
        length: numbers in a validation or test sequence (`L'`).
        train: sequences of this split, as `validation` and `test`.
        seed_policy: `random` draws distinct tuples over all splits, as in the paper's text;
            `cycled` repeats the sorted tuples of distinct numbers, as the authors' code does, so
            that every test sequence begins like a training sequence.
        seed: of the random draw; `cycled` does not use it.
    """

    subtask: Subtask
    modulus: int = Field(default=17, ge=2)
    far: Count = 1
    near: Count = 3
    train_length: Count = 64
    length: Count = 256
    train: Count = 10_000
    validation: Count = 1_000
    test: Count = 1_000
    seed_policy: Literal["random", "cycled"] = "random"
    seed: Natural = 0

    @model_validator(mode="after")
    def _lengths_in_order(self) -> "PosGenSettings":
        if not self.seed_tokens < self.train_length <= self.length:
            allowed = f"above the {self.seed_tokens} seed tokens, at most length={self.length}"
            raise UserError(invalid_value_message("train_length", self.train_length, allowed))
        return self

    @property
    def seed_tokens(self) -> int:
        """Return the number of tokens at the head of a sequence that no rule determines: `j + k`."""
        return self.far + self.near


Family = TypeVar("Family", bound=TaskSettings)
FAMILIES = (ContextSettings, ClosedSettings, PerplexitySettings, EffectiveContextSettings,
            RetrievalSettings, MRCRSettings, PosGenSettings)  # fmt: skip
_KEYS = {name for family in FAMILIES for name in field_names(family)}
_LONG_KEYS = sorted(name for name in _KEYS if len(name) > 4)  # short words are near to others
NEAR = 0.85
"""Similarity (`difflib`) from which on a key is taken for a misspelt one."""


def read_metadata(family: type[Family], metadata: Mapping[str, Any]) -> Family:
    """Return the settings of one family of tasks from lm-eval's metadata.

    Raises:
        SettingError: a value that is not allowed, or a misspelt setting.
    """
    refuse_near_misses(metadata)
    return parse_settings(
        family, {key: metadata[key] for key in field_names(family) if key in metadata}
    )


def refuse_near_misses(metadata: Mapping[str, Any]) -> None:
    """Refuse keys that are almost a setting of this package; every other key passes.

    Raises:
        SettingError: names the key and the setting that is meant.
    """
    for key in [key for key in metadata if isinstance(key, str) and key not in _KEYS]:
        written = key.casefold().replace("-", "_")
        for name in difflib.get_close_matches(written, _LONG_KEYS, n=1, cutoff=NEAR):
            raise SettingError(f"{key}: unknown setting; did you mean {name!r}?")
