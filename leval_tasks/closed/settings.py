"""Settings of a closed-ended task, read from the run's metadata."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leval_border.errors import one_of
from leval_tasks.closed.budget import SIDES, UNITS
from leval_tasks.closed.definition import ClosedTask
from leval_tasks.tokens import positive_int

LEAD_INS = ("assistant", "user")
GENERATION_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@dataclass(frozen=True)
class ClosedSettings:
    """What a user may set with `--metadata` (lm-eval adds `model_args` to it).

    Attributes:
        truncation: `middle`, `right`, `left`, or `skip`, which leaves over-long documents out.
        truncation_unit: `tokens`, or `words` for L-Eval's own cut.
        num_docs: the first documents only, with all their questions.
        min_questions: with `num_docs`, take further documents until there are so many questions.
        end_of_thinking: what a reasoning model writes before its answer.
        answer_prefix: where a chat prompt has `Answer:`, `assistant` or `user`.
    """

    truncation: str
    truncation_unit: str
    num_docs: int | None
    min_questions: int | None
    end_of_thinking: str
    answer_prefix: str

    @classmethod
    def read(cls, task: ClosedTask, metadata: Mapping[str, Any]) -> "ClosedSettings":
        """Read and check them.

        Raises:
            SettingError: a value that is not allowed.
        """
        side = metadata.get("truncation")
        # lm-eval's hf backend has a boolean argument of the same name; that one is not ours
        side = task.truncation if side is None or isinstance(side, bool) else side
        thinking = metadata.get("end_of_thinking", "</think>")
        return cls(
            truncation=one_of("truncation", side, SIDES),
            truncation_unit=one_of(
                "truncation_unit", metadata.get("truncation_unit", "tokens"), UNITS
            ),
            num_docs=positive_int("num_docs", metadata.get("num_docs")),
            min_questions=positive_int("min_questions", metadata.get("min_questions")),
            end_of_thinking=str(thinking) if thinking else "",
            answer_prefix=one_of(
                "answer_prefix", metadata.get("answer_prefix", "assistant"), LEAD_INS
            ),
        )


def generation_tokens(generation_kwargs: Mapping[str, Any]) -> int:
    """Tokens to generate, under any of the names that lm-eval's backends accept.

    Raises:
        SettingError: not a positive whole number, or none is given.
    """
    for key in GENERATION_KEYS:
        tokens = positive_int(key, generation_kwargs.get(key))
        if tokens:
            return tokens
    return 512
