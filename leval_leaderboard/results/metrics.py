"""What the name of a metric says: its family, the length it was taken at, which way is better."""


def split_metric(metric: str) -> tuple[str, int | None]:
    """`token_perplexity@8192` is `token_perplexity` at 8192; None where no length is named."""
    family, _, at = metric.partition("@")
    return family, int(at) if at.isdecimal() and len(at) < 12 else None


def lower_is_better(metric: str) -> bool:
    """Whether a metric is a perplexity or a rate of bits."""
    return "perplexity" in metric or "bits_per_byte" in metric
