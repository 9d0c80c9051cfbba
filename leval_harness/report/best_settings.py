"""Which RoPE setting for which length: by loss, by retrieval, and how vLLM serves it."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from leval_harness.report.effective_context import TASK
from leval_harness.report.effective_summary import ModelSummary, bins_of, method_pairs, summary
from leval_harness.report.labels import is_across_models
from leval_harness.report.number_text import (
    NOTHING,
    Estimate,
    digits_of,
    joined_names,
    tokens_text,
)
from leval_harness.report.retrieval import ACCURACY, is_needle_grid
from leval_harness.report.table import Table
from resonance_vllm.common.errors import UserError

MOST_NAMES = 3
"""Equally good settings that a cell names; of more the first ones."""


@dataclass(frozen=True)
class Setting:
    """What is best at one length.

    Attributes:
        length: tokens.
        by_loss: methods that the verdict recommends; empty where no loss was measured.
        by_retrieval: methods with the highest accuracy; empty where no needles were hidden.
        loss_text: the methods by loss, with the difference of the first.
        retrieval_text: the methods by retrieval, with the accuracy.
    """

    length: int
    by_loss: tuple[str, ...]
    by_retrieval: tuple[str, ...]
    loss_text: str
    retrieval_text: str

    @property
    def chosen(self) -> str:
        """Return a method that is best by both where there is one, else by loss."""
        both = [name for name in self.by_loss if name in self.by_retrieval]
        return next(iter([*both, *self.by_loss, *self.by_retrieval]), "")


def best_settings_tables(compared: pd.DataFrame) -> Iterator[Table]:
    """Yield the best setting at each length, for each model with several methods.

    Args:
        compared: the compared frame.
    """
    for block, part in compared.groupby("block", sort=False):
        if is_across_models(part):
            continue  # settings of different models are not alternatives
        settings = best_settings(str(block), part)
        if len(settings) < 2:
            continue  # one setting at all lengths: the verdict says it
        rows = {
            "By loss": [setting.loss_text for setting in settings],
            "By retrieval": [setting.retrieval_text for setting in settings],
            "vLLM": [_command(part, setting) for setting in settings],
        }
        cells = pd.DataFrame(
            rows, pd.Index([tokens_text(s.length) for s in settings], name="Up to")
        )
        is_empty = cells.eq(NOTHING).all()
        yield Table.plain(
            f"Best setting by length, {block}",
            cells.loc[:, ~is_empty],
            "By loss: the methods that the verdict recommends, with the difference of the first from "
            "the baseline in nats/token and its 99.5% interval. By retrieval: the highest accuracy, %, "
            "with its 95% interval where samples were logged.",
            "A vLLM server has one setting: restart it, or serve two, for another length. Where the "
            "config nests its language model, `leval-harness check --rope` shows the overrides.",
        )


def best_settings(block: str, part: pd.DataFrame) -> list[Setting]:
    """Return the best settings of one model by ascending length; empty with a single method.

    Args:
        block: title of the model.
        part: its rows of the compared frame.
    """
    rows = part[part["task"] == TASK]
    answer = summary(block, rows)
    accuracies = part[is_needle_grid(part) & part["metric"].eq(ACCURACY) & part["value"].notna()]
    if accuracies["label"].nunique() < 2:
        accuracies = accuracies[:0]
    lengths = {int(length) for length in accuracies["length"]}
    if answer is not None:
        lengths |= {recommended.end for recommended in answer.recommended}
    settings = []
    for length in sorted(lengths):
        by_loss: tuple[str, ...] = ()
        loss_text = NOTHING
        if answer is not None:
            by_loss = _recommended_at(answer, length)
            loss_text = _loss_text(answer, rows, by_loss, length)
        at_length = accuracies[accuracies["length"] == length]
        best = at_length[at_length["value"] == at_length["value"].max()]
        by_retrieval = tuple(dict.fromkeys(best["label"].astype(str)))
        settings.append(
            Setting(length, by_loss, by_retrieval, loss_text, _retrieval_text(best, by_retrieval))
        )
    return settings


def _recommended_at(answer: ModelSummary, length: int) -> tuple[str, ...]:
    """Return the methods that are recommended up to a length; empty beyond what was measured."""
    for recommended in answer.recommended:
        if length <= recommended.end:
            return recommended.methods
    return ()


def _loss_text(
    answer: ModelSummary, rows: pd.DataFrame, methods: Sequence[str], length: int
) -> str:
    """Return methods with the first one's difference from the baseline in the bin of a length."""
    if not methods:
        return NOTHING
    pairs = bins_of(method_pairs(rows))
    is_first = pairs["label"].eq(methods[0]) & pairs["baseline"].eq(answer.baseline)
    at_length = pairs[is_first & (pairs["start"] < length) & (pairs["end"] >= length)]
    names = _names(methods)
    if at_length.empty:
        return names
    estimate = Estimate.of_row(at_length.iloc[0])
    return f"{names}: {estimate.text(digits_of([estimate]))}"


def _retrieval_text(best: pd.DataFrame, methods: Sequence[str]) -> str:
    """Return the methods with the highest accuracy, and that accuracy in percent."""
    if best.empty:
        return NOTHING
    first = best.iloc[0]
    text = f"{_names(methods)}: {100 * first['value']:.1f}"
    if pd.notna(first["low"]) and pd.notna(first["high"]):
        text += f" ({100 * first['low']:.1f} to {100 * first['high']:.1f})"
    return text


def _names(methods: Sequence[str]) -> str:
    """Return equally good methods; of many the first few, and how many others."""
    if len(methods) <= MOST_NAMES:
        return joined_names(methods, "or")
    return f"{', '.join(methods[:MOST_NAMES])} or {len(methods) - MOST_NAMES} others"


def _command(part: pd.DataFrame, setting: Setting) -> str:
    """Return the command that serves the chosen method with vLLM; a dash where it is unknown."""
    if "checkpoint" not in part:
        return NOTHING
    runs = part[part["label"].eq(setting.chosen) & part["checkpoint"].notna()]
    if runs.empty:
        return NOTHING
    run = runs.iloc[0]
    words = ["vllm", "serve", str(run["checkpoint"]), "--max-model-len", str(setting.length)]
    if isinstance(run["rope"], str) and json.loads(run["rope"]).get("rope_type") != "default":
        overrides = _overrides(json.loads(run["rope"]), run.get("claimed_length"), setting.length)
        if overrides is None:
            return NOTHING
        words += ["--hf-overrides", json.dumps(overrides)]
    return shlex.join(words)


def _overrides(
    rope: Mapping[str, Any], native_length: float | None, length: int
) -> dict[str, Any] | None:
    """Return vLLM's `hf_overrides` for the settings of a run, as `check` prints them.

    Args:
        rope: settings of the run.
        native_length: of the model in tokens; missing where it is not known.
        length: longest sequence that is served.

    Returns:
        The overrides, for a config that nests no language model; None where the settings are not
        complete or vLLM cannot run them.
    """
    # the mathematics of RoPE are needed for this column alone
    from resonance_vllm.checkpoint.overrides import vllm_hf_overrides
    from resonance_vllm.checkpoint.positions import PositionConfig, complete_rope

    config: dict[str, Any] = {"max_position_embeddings": length}
    if native_length is not None and pd.notna(native_length):
        config["max_position_embeddings"] = int(native_length)
    model = PositionConfig.from_dict(config)
    try:
        return vllm_hf_overrides(complete_rope(rope, model), model, length)
    except UserError:
        return None
