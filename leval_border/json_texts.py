"""JSON from users and other programs; every error is one sentence."""

import json
from typing import Any

from leval_border.errors import SettingError, said_by_parser, shown


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a key that is written twice is an error."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {shown(name)} is written twice")
        found[name] = value
    return found


def parse_json(text: str | bytes, where: str, error: type[ValueError] = SettingError) -> Any:
    """The value that a JSON document stands for; `where` is the file or option it comes from.

    Raises:
        ValueError: as `error`: no JSON, a key written twice, nested deeper than Python follows, or
            a number longer than it reads.
    """
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise error(f"{where}: not JSON (nested too deep)") from None
    except ValueError as wrong:
        raise error(f"{where}: not JSON ({said_by_parser(wrong)})") from None
