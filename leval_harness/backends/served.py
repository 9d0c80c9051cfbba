"""What lm-eval's models on servers take; their constructors pass over whatever they do not know."""

import inspect
from collections.abc import Iterable

from leval_border.errors import UserError, hint

_MODULES = (
    "openai_completions", "anthropic_llms", "litellm_llms", "sglang_generate_API", "gguf",
    "textsynth",
)  # fmt: skip
"""Modules of `lm_eval.models`, none of which imports torch."""

_DEAF = ("TemplateAPI", "GGUFLM", "TextSynthLM")
"""Classes whose `**kwargs` go nowhere."""


def check_served(backend: str, arguments: Iterable[str]) -> None:
    """Refuse arguments that a served model would pass over without a word.

    Raises:
        UserError: names the first, what is allowed and near matches.
    """
    known = served_arguments(backend)
    for name in arguments:
        if known is not None and name not in known:
            raise UserError(f"{name}: {backend} would pass over it{hint(name, known)}")


def served_arguments(backend: str) -> list[str] | None:
    """Arguments of a served model, of which any other would be passed over without a word.

    None for every other backend, which refuses what it does not know or hands it on, and where a
    package is missing that the model needs.
    """
    from lm_eval.api.registry import get_model
    from lm_eval.models import MODEL_MAPPING

    module, _, _ = MODEL_MAPPING.get(backend, "").partition(":")
    if module.rpartition(".")[2] not in _MODULES:
        return None
    try:
        made = [each for each in get_model(backend).__mro__ if "__init__" in vars(each)]
    except (ImportError, NameError):  # the cell says what to install
        return None
    if not any(each.__name__ in _DEAF for each in made):
        return None
    known = [
        parameter.name
        for each in made
        if each is not object
        for parameter in list(inspect.signature(each).parameters.values())
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    return list(dict.fromkeys(known))
