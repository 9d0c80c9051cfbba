"""What is said of lines of effective context: verdicts, comparisons and what they rest on."""

from collections.abc import Sequence

from leval_harness.analysis.effective_context import Against, EffectiveLine
from leval_harness.analysis.labels import length_label
from leval_tasks.statistics.effective_context import Bin, Length


def length_text(length: Length) -> str:
    """`12K`, `between 8K and 10K`, `below 8K`, `at least 8K`, or `inconclusive`."""
    shown, refused = length_label(length.shown), length_label(length.refused)
    nothing = length.shown == length.start
    if length.verdict == "shown":
        return shown
    if length.verdict == "undecided":
        return "inconclusive" if nothing else f"at least {shown}"
    return f"below {refused}" if nothing else f"between {shown} and {refused}"


def sentence(line: EffectiveLine) -> str:
    """The verdict on a model and method, for these texts."""
    kept, benefits = line.these.no_degradation, line.these.benefits
    shown = length_label(kept.shown)
    if kept.verdict == "shown":
        text = f"no degradation up to {shown}, the longest position measured"
    elif kept.verdict == "undecided":
        text = (
            f"no degradation up to {shown}, not decided beyond"
            if kept.shown > kept.start
            else "whether longer context degrades is not decided"
        )
    elif kept.shown == kept.start:
        text = f"degradation by {length_label(kept.refused)}"
    else:
        text = f"no degradation up to {shown}, degradation by {length_label(kept.refused)}"
    if kept.refused is not None and line.break_at is not None:
        first = line.break_at <= line.window
        text += ", from the first position on" if first else f", it breaks near {line.break_at:,}"
    if benefits.shown > benefits.start:
        text += f"; benefits from context up to {length_label(benefits.shown)}"
    else:
        text += "; no benefit from context is shown"
    return f"{line.method}: {text} ({line.agree[0]} of {line.agree[1]} texts agree)"


def verdicts(lines: Sequence[EffectiveLine]) -> list[str]:
    """Every sentence of some lines: what each method does, against what, and on which yardstick."""
    compared = (
        against_sentence(line.method, each)
        for line in lines
        for each in (line.against, line.resonance)
        if each
    )
    return [*map(sentence, lines), *compared, *dict.fromkeys(map(yardstick, lines))]


def _stretches(bins: Sequence[Bin]) -> list[list[Bin]]:
    """Bins in order; those that touch stand together."""
    stretches: list[list[Bin]] = []
    for each in bins:
        if stretches and stretches[-1][-1].end == each.start:
            stretches[-1].append(each)
        else:
            stretches.append([each])
    return stretches


def _amount(bins: Sequence[Bin]) -> str:
    """Where some bins that touch are, the gains there, and the interval that holds all of theirs.

    `2,816–5,632 (-0.032 to -0.019 in 2 bins, interval -0.043 to -0.004)`.
    """
    gains = dict.fromkeys(f"{each(bin.gain for bin in bins):+.3f}" for each in (min, max))
    text = " to ".join(gains) + (f" in {len(bins)} bins" if len(bins) > 1 else "")
    low = [each.low for each in bins if each.low is not None]
    high = [each.high for each in bins if each.high is not None]
    if len(low) == len(high) == len(bins):
        text += f", interval {min(low):+.3f} to {max(high):+.3f}"
    return f"{bins[0].start:,}–{bins[-1].end:,} ({text})"


def against_sentence(method: str, against: Against) -> str:
    """At which positions a method is better or worse than another one, and by how much."""
    parts = []
    for verdict in ("better", "worse"):
        pairs = zip(against.bins, against.verdicts, strict=True)
        if found := [each for each, is_so in pairs if is_so == verdict]:
            parts.append(f"{verdict} at {', '.join(map(_amount, _stretches(found)))}")
    everywhere = ", ".join(map(_amount, _stretches(against.bins)))
    said = "; ".join(parts) or f"no difference is shown at {everywhere}"
    return f"{method} against {against.baseline}, by position (nats/token): {said}"


def like_text(line: EffectiveLine, length: Length | None) -> str:
    """The same for texts like these; `inconclusive` where texts are too few."""
    if length is None or length.verdict == "undecided":
        return f"inconclusive (n = {line.texts})"
    return length_text(length)


def yardstick(line: EffectiveLine) -> str:
    """What the full read was compared with, in words."""
    how = "the checkpoint's own RoPE" if line.shared else "the same method"
    second = f", past {length_label(line.trained)} also windows of that length"
    return (
        f"Compared with windows of {length_label(line.window)} under {how}"
        f"{second if line.trained else '; no second window at the trained length'}; a difference "
        f"below {line.margin:g} nats a token is none"
    )
