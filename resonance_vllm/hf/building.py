"""Building models and rotary modules of transformers without weights."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.modeling_utils import local_torch_dtype

from resonance_vllm.common.errors import RopeConfigError

CODE_ERRORS = (
    AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What model code raises on settings that it does not know."""


@contextlib.contextmanager
def code_errors_of(model_class: type) -> Iterator[None]:
    """Raise errors of a class's code as a RopeConfigError that names the class."""
    try:
        yield
    except CODE_ERRORS as error:
        raise RopeConfigError(
            f"rope_type: the code of {model_class.__name__} fails with these settings: "
            f"{type(error).__name__}: {error}"
        ) from error


def build_rotary_module(rotary_class: Any, config: Any) -> Any:
    """Build a rotary module from a config, on the CPU and in float32.

    Raises:
        RopeConfigError: Its code fails with the settings.
    """
    with (
        code_errors_of(rotary_class),
        torch.device("cpu"),
        local_torch_dtype(torch.float32),
        torch.no_grad(),
    ):
        return rotary_class(config)


def build_on_meta(config: Any) -> Any:
    """Build the model of a config on the meta device.

    Where its other parts need a package that is not installed, only its text model is built.

    Raises:
        ImportError: The text model needs a package that is not installed.
        RopeConfigError: transformers has no model class for the config.
    """
    text = config.get_text_config(decoder=True)
    with torch.device("meta"):
        try:
            return model_class(config)(config)
        except ImportError:
            if text is config:
                raise
            return model_class(text)(text)


def model_class(config: Any) -> Any:
    """Return the class that a checkpoint names, else the one that transformers has for its config.

    Raises:
        RopeConfigError: There is none.
    """
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, str(name)):
            return getattr(transformers, name)
    for name in ("_FOR_CAUSAL_LM", "_FOR_IMAGE_TEXT_TO_TEXT", "_FOR_MASKED_LM", ""):
        mapping = getattr(transformers, f"MODEL{name}_MAPPING")
        candidate = mapping.get(type(config), None)
        if candidate is None:
            continue
        # The list of image-text models may name the class of a text model, which takes its own
        # config and not the whole.
        if candidate.config_class is None or isinstance(config, candidate.config_class):
            return candidate
    # A text part that no list has (Step 3.5): its class is beside the others of its family.
    modeling = type(config).__module__.replace("configuration_", "modeling_")
    for candidate in vars(importlib.import_module(modeling)).values():
        is_class = isinstance(candidate, type)
        if is_class and getattr(candidate, "config_class", None) is type(config):
            return candidate
    raise RopeConfigError(f"transformers has no model class for {type(config).__name__}")
