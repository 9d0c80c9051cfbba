"""Makes frozen numbers: `python tests/frozen/make.py PART…` writes each part beside this file.

A part is made once, by the product whose numbers it keeps; README.md says by which.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import frozen_current
import frozen_models
import frozen_numbers


def main() -> None:
    """Entry point."""
    for part in sys.argv[1:]:
        rows = {**vars(frozen_current), **vars(frozen_models)}[f"current_{part}"]()
        frozen_numbers.write(part, rows)
        file = frozen_numbers.file_of(part)
        sys.stdout.write(f"{part}: {len(rows)} rows, {file.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
