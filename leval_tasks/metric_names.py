"""Names of metrics that hold at one length or between two: `nll@8192`, `nll@0-4096`."""

SIGN = "@"

NOT_AVAILABLE = "N/A"
"""What lm-eval writes in place of a figure."""


def compose(family: str, *lengths: int) -> str:
    """`family@length`, or `family@start-end` for a metric between two lengths."""
    return family + SIGN + "-".join(map(str, lengths))


def split(metric: str) -> tuple[str, int | None]:
    """Family of a metric and the one length that it holds at.

    Returns:
        `("token_perplexity", 8192)`; None for the length of a metric that has none, or two.
    """
    family, _, length = metric.partition(SIGN)
    return family, int(length) if length.isdecimal() and len(length) < 12 else None
