"""Makes frozen numbers, or prints what differs from them.

`python tests/frozen/make.py PART…` writes each part beside this file; a part is made once, by the
product whose numbers it keeps (README.md says by which). With `--compare` nothing is written, and
every difference is printed, those that README.md allows too.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import frozen_current
import frozen_models
import frozen_numbers

CURRENT = {**vars(frozen_current), **vars(frozen_models)}


def main() -> None:
    """Entry point."""
    parts = [each for each in sys.argv[1:] if each != "--compare"]
    for part in parts:
        rows = CURRENT[f"current_{part}"]()
        if "--compare" in sys.argv:
            found = [*frozen_numbers.differences(part, rows), ""]
            sys.stdout.write("\n".join(found) + f"{part}: {len(found) - 1} differences\n")
            continue
        frozen_numbers.write(part, rows)
        size = frozen_numbers.file_of(part).stat().st_size
        sys.stdout.write(f"{part}: {len(rows)} rows, {size:,} bytes\n")


if __name__ == "__main__":
    main()
