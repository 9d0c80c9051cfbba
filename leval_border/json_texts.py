"""JSON that users and other programs write: what is wrong is one sentence, whatever it is."""

import json
from typing import Any

from leval_border.errors import SettingError


def parse_json(text: str | bytes, where: str, error: type[ValueError] = SettingError) -> Any:
    """The value that a JSON document stands for; `where` is the file or option it comes from.

    Raises:
        ValueError: as `error`: no JSON, nested deeper than Python follows, or a number longer than
            it reads.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise error(f"{where}: not JSON (nested too deep)") from None
    except ValueError as wrong:
        raise error(f"{where}: not JSON ({wrong})") from None
