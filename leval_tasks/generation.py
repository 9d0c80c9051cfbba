"""lm-eval's generation arguments, as far as all its backends read them alike."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from leval_tasks.metadata import OptionalCount
from resonance_vllm.errors import SettingError, not_allowed
from resonance_vllm.settings import Settings, field_names, read

DEFAULT_TOKENS = 512


class AnswerLength(Settings):
    """Tokens to generate, under any of the names that lm-eval's backends accept."""

    max_gen_toks: OptionalCount = None
    max_new_tokens: OptionalCount = None
    max_tokens: OptionalCount = None
    max_completion_tokens: OptionalCount = None


class GenerationSettings(AnswerLength):
    """Arguments that all generating backends of lm-eval read alike; each has others of its own."""

    do_sample: bool | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    until: str | list[str] | None = None


LENGTHS = field_names(AnswerLength)


def check_generation(generation_kwargs: Mapping[str, Any], where: str = "") -> None:
    """Refuse generation settings that no backend accepts, before a model is loaded for them.

    Raises:
        SettingError: names each, its value and what is allowed.
    """
    names = field_names(GenerationSettings)
    known = {key: value for key, value in generation_kwargs.items() if key in names}
    read(GenerationSettings, known, where)


def generation_tokens(generation_kwargs: Mapping[str, Any]) -> int:
    """Tokens to generate; `DEFAULT_TOKENS` where lm-eval's generation arguments set none.

    Raises:
        SettingError: not a positive whole number, or two names with different ones.
    """
    given = read(AnswerLength, {k: v for k, v in generation_kwargs.items() if k in LENGTHS})
    (first, tokens), *others = [(k, v) for k, v in given if v] or [("", DEFAULT_TOKENS)]
    for name, other in others:
        if other != tokens:
            raise SettingError(not_allowed(name, other, f"{tokens}, as {first} is; give one"))
    return int(tokens)


def with_generation_tokens(generation_kwargs: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """The same with another length, under the one name that every backend reads first."""
    kept = {name: value for name, value in generation_kwargs.items() if name not in LENGTHS}
    return {**kept, "max_gen_toks": tokens}
