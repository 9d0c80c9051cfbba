"""Answers of a server: as greedy, and cut at the same places, as those of a loaded model.

vLLM and SGLang take what a request leaves open from the generation_config.json of their checkpoint,
so that a `repetition_penalty` there would change greedy answers on a server and nowhere else. A value
in the request decides instead. A request to such a server therefore states the neutral values, unless
`gen_kwargs` has others. Other servers may refuse fields that the OpenAI API lacks; they get none.
"""

import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from resonance_vllm.common.files import read_json_object

logger = logging.getLogger(__name__)

NEUTRAL: Mapping[str, Any] = MappingProxyType(
    {
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
    }
)
"""What vLLM and SGLang read from generation_config.json and lm-eval's requests leave open, with the
values that leave the model's own probabilities alone."""
FILTERS = ("top_p", "top_k", "min_p")
"""Settings of `NEUTRAL` that change no greedy answer."""
READ_THE_FILE = ("vllm", "sglang")
"""Engines that apply generation_config.json, as `owned_by` of `/v1/models` calls them."""
IGNORE_THE_FILE = ("llamacpp", "openai", "openai-internal", "system")
"""Engines and services that do not."""
ROUTES = ("/chat/completions", "/completions")
"""Ends of the addresses whose requests follow the OpenAI API."""
TIMEOUT = 10.0
"""Seconds for the server's list of models."""


def match_loaded_models(lm: Any) -> None:
    """Let a client of a server ask for the answers that a loaded model would give.

    Requests to vLLM and SGLang get the neutral generation settings. If the client removes the
    thinking (`think_end_token`), stop strings count after the thinking alone.

    What was done is recorded as other backends record it: `telemetry()` and `get_model_info()` of
    the client return `neutralized`, the settings of the served checkpoint that do not apply, as far
    as its generation_config.json is on this machine, and `neutral_values_sent`.

    Args:
        lm: lm-eval's model, changed in place; models other than clients of OpenAI's API stay as
            they are, and a second call changes nothing.
    """
    address = models_address(getattr(lm, "base_url", None))
    if address is None or not hasattr(lm, "_create_payload") or "telemetry" in vars(lm):
        return
    served = _served_model(lm, address)
    engine = str(served.get("owned_by", "")).lower()
    values = dict(NEUTRAL) if engine in READ_THE_FILE else {}
    record = {"neutralized": _settings_of_file(served, values), "neutral_values_sent": values}
    lm.telemetry = lambda: dict(record)
    lm.get_model_info = lambda: dict(record)
    _state_in_payloads(lm, values, is_unknown=engine not in (*READ_THE_FILE, *IGNORE_THE_FILE))
    if getattr(lm, "think_end_token", None):
        _stop_after_thinking(lm)


def models_address(base_url: Any) -> str | None:
    """Return where a server lists its models; None for an address of another protocol."""
    parts = urlsplit(str(base_url or ""))
    path = parts.path.rstrip("/")
    for route in ROUTES:
        if path.endswith(route):
            return urlunsplit(parts._replace(path=f"{path.removesuffix(route)}/models"))
    return None


def _served_model(lm: Any, address: str) -> Mapping[str, Any]:
    """Return the server's entry for the client's model; empty if the server has none."""
    import requests

    try:
        answer = requests.get(
            address, headers=lm.header, verify=lm.verify_certificate, timeout=TIMEOUT
        )
        entries = answer.json()["data"]
        by_name = {entry["id"]: entry for entry in entries}
    except (requests.RequestException, ValueError, KeyError, TypeError):
        return {}  # no list, or none that can be read; a key that is missing is lm-eval's to report
    return dict(by_name.get(lm.model) or next(iter(by_name.values()), {}))


def _settings_of_file(served: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a served checkpoint that the sent values replace and answers depend on.

    vLLM names the checkpoint's folder, which is on this machine if the server is.
    """
    file = Path(str(served.get("root") or "")) / "generation_config.json"
    settings = read_json_object(file) or {}
    return {
        name: settings[name]
        for name, neutral in values.items()
        if name not in FILTERS and settings.get(name) not in (None, neutral)
    }


def _state_in_payloads(lm: Any, values: Mapping[str, Any], *, is_unknown: bool) -> None:
    """Add values to each request for an answer that has none of that name.

    Args:
        lm: the client.
        values: by name.
        is_unknown: whether nobody knows which engine runs; said with the first request.
    """
    create_payload = lm._create_payload
    is_to_say = is_unknown

    def with_values(*args: Any, generate: bool = False, **options: Any) -> Any:
        nonlocal is_to_say
        payload = create_payload(*args, generate=generate, **options)
        if not generate:
            return payload
        if is_to_say:
            is_to_say = False
            logger.warning(
                "The server does not say that vLLM or SGLang runs it, so requests leave its own "
                "generation settings as they are. If it applies a checkpoint's "
                "generation_config.json, a repetition_penalty there changes greedy answers; "
                "--gen_kwargs repetition_penalty=1.0 (in a sweep gen_kwargs) prevents it."
            )
        return {**values, **payload}

    lm._create_payload = with_values


def _stop_after_thinking(lm: Any) -> None:
    """Cut answers at their stop strings here, after the thinking, instead of on the server.

    Each request of lm-eval's client is sent and parsed in one context, also among concurrent ones:
    what its payload notes there is what its answer is cut at.
    """
    from lm_eval.models.utils import postprocess_generated_text

    create_payload = lm._create_payload
    parse_generations = lm.parse_generations
    stops: ContextVar[Sequence[str]] = ContextVar("stops", default=())

    def without_stop(*args: Any, generate: bool = False, **options: Any) -> Any:
        payload = create_payload(*args, generate=generate, **options)
        if generate:
            stops.set(())
            if lm.think_end_token:
                stops.set(payload.pop("stop", None) or ())
        return payload

    def parse_and_cut(*args: Any, **options: Any) -> list[Any]:
        return [
            postprocess_generated_text(answer, list(stops.get()), None) if answer else answer
            for answer in parse_generations(*args, **options)
        ]

    lm._create_payload = without_stop
    lm.parse_generations = parse_and_cut
