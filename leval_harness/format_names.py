"""Names of the table formats, for the command line: nothing is imported to know them."""

from pathlib import Path

FORMATS = Path(__file__).parent / "old_tables" / "formats"


def format_names() -> list[str]:
    """One for each module in the folder of the formats, in the order of the alphabet."""
    return sorted(file.stem for file in FORMATS.glob("*.py") if not file.stem.startswith("_"))
