"""lm-eval's generation arguments, as far as all its backends read them alike."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from leval_tasks.metadata import OptionalCount
from resonance_vllm.errors import SettingError, not_allowed
from resonance_vllm.settings import Settings, field_names, read

DEFAULT_TOKENS = 512
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the number of tokens to generate, in the order in which they are read."""


class GenerationSettings(Settings):
    """Arguments that all generating backends of lm-eval read alike; each has others of its own."""

    max_gen_toks: OptionalCount = None
    max_new_tokens: OptionalCount = None
    max_tokens: OptionalCount = None
    max_completion_tokens: OptionalCount = None
    do_sample: bool | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    until: str | list[str] | None = None


def check_generation(generation_kwargs: Mapping[str, Any], where: str = "") -> GenerationSettings:
    """The settings that are known here, before a model is loaded for them.

    Raises:
        SettingError: names each that no backend accepts, its value and what is allowed.
    """
    names = field_names(GenerationSettings)
    known = {key: value for key, value in generation_kwargs.items() if key in names}
    return read(GenerationSettings, known, where)


def generation_tokens(generation_kwargs: Mapping[str, Any]) -> int:
    """Tokens to generate; `DEFAULT_TOKENS` where lm-eval's generation arguments set none.

    Raises:
        SettingError: a setting is not allowed, or two names have different numbers.
    """
    settings = check_generation(generation_kwargs)
    given = {name: getattr(settings, name) for name in LENGTHS if getattr(settings, name)}
    first = next(iter(given), "")
    for name, other in given.items():
        if other != given[first]:
            allowed = f"{given[first]}, as {first} is; give one"
            raise SettingError(not_allowed(name, other, allowed))
    return int(given.get(first, DEFAULT_TOKENS))


def with_generation_tokens(generation_kwargs: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """The same with another length, under the one name that every backend reads first."""
    kept = {name: value for name, value in generation_kwargs.items() if name not in LENGTHS}
    return {**kept, "max_gen_toks": tokens}
