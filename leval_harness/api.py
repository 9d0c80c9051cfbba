"""The Python API: run a sweep, read results, look at a method or a model.

import leval_harness as lh
compared = lh.run("quickstart")
compared.to_pandas()
"""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leval_harness.old_results.load import Results, load_results
from resonance_vllm.errors import UserError, one_of

if TYPE_CHECKING:
    from leval_harness.analysis import Analysis

PathLike = str | os.PathLike[str]
COLUMNS = {
    **dict.fromkeys(("model", "method", "task", "metric"), "object"),
    "length": "Int64",
    **dict.fromkeys(("value", "stderr", "low", "high"), "float64"),
    "interval": "object",
    **dict.fromkeys(("n", "clusters"), "Int64"),
    **dict.fromkeys(("unit", "baseline"), "object"),
    **dict.fromkeys(("difference", "diff_low", "diff_high", "p"), "float64"),
}
"""Columns of `Comparison.to_pandas` and their types."""


class Comparison:
    """Results of one or more folders, compared.

    Args:
        results: what was read.
        baseline: method that the others are compared with; None for the one that the sweep names.
    """

    def __init__(self, results: Results, baseline: str | None = None) -> None:
        self.results, self._baseline = results, baseline

    @cached_property
    def analysis(self) -> "Analysis":
        """Every score with interval, rank and paired difference, as the tables show them."""
        from leval_harness.analysis import analyse

        return analyse(self.results, self._baseline)

    def to_pandas(self) -> Any:
        """A tidy frame: one row for each model, method, task, metric and length.

        `length` is in tokens: the length in the metric's name (`loss@2048` is the metric `loss` at
        2,048), else that of the run. `value`, `stderr`, `low` and `high` (the 95 % interval) are as
        lm-eval has them: a share is from 0 to 1, `unit` says so. `interval` says how the ends were
        computed: `clustered`, `exact`, `reported` or `none`. `n` counts questions, `clusters`
        documents. `difference`, its ends and `p` are to the baseline, on common questions. What is
        not known is NaN; a run that failed has one row without a metric.
        """
        import pandas as pd

        rows = []
        for entry in self.analysis.entries:
            found, score = entry.record(), entry.score
            metric = score.metric if score.at is None else score.family
            own = {"metric": metric, "length": entry.length, "unit": score.meaning.unit}
            baseline = self.analysis.baselines.get(entry.block, "")
            rows.append({**found, **own, "baseline": baseline})
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)

    def table(self, form: str = "md") -> str:
        """The comparison tables as text: `md`, `tex`, `html`, `csv` or `json`.

        Raises:
            UserError: there is no such form.
        """
        from leval_harness.format_names import format_names
        from leval_harness.tables import build_tables, details_table, render
        from leval_harness.tables.formats import load_format

        one_of("form", form, format_names(), UserError)
        every = load_format(form).every_number
        tables = [details_table(self.analysis)] if every else build_tables(self.analysis)
        return render(tables, form)

    def verdict(self) -> str:
        """What the results say of each model, in sentences; empty without a finished number."""
        from leval_harness.analysis.verdict import verdicts

        return "\n\n".join(map(str, verdicts(self.analysis)))

    def figures(self) -> list[str]:
        """Titles of the figures that these results have data for."""
        from leval_harness.figures.write import planned_figures

        return [figure.title for figure in planned_figures(self.analysis)]

    def plot(self, title: str | None = None) -> Any:
        """A figure as a matplotlib `Figure`; None for the first of `figures`.

        Raises:
            UserError: there is nothing to draw, or no figure of this title.
        """
        from leval_harness.figures.style import method_looks
        from leval_harness.figures.write import planned_figures

        planned = {figure.title: figure for figure in planned_figures(self.analysis)}
        if not planned:
            raise UserError("results: nothing to draw; figures need more than one context length")
        chosen = next(iter(planned)) if title is None else one_of("title", title, planned)
        return planned[chosen].draw(method_looks(self.analysis.titles))

    def page(self, folder: PathLike, title: str = "Long-context leaderboard") -> Path:
        """Write a page that opens from disk; the path of its `index.html`."""
        from leval_harness.page import write_page

        return write_page(self.analysis, Path(folder), title)

    def __repr__(self) -> str:
        models = {run.model for run in self.results.runs}
        methods = {run.method for run in self.results.runs}
        return f"<Comparison: {len(models)} models, {len(methods)} methods>"

    def _repr_html_(self) -> str:
        return self.table("html")


def load(*folders: PathLike, baseline: str | None = None) -> Comparison:
    """Read results of sweeps or of lm-eval.

    Args:
        folders: one or more results folders.
        baseline: method that the others are compared with; None for the one that the sweep names.

    Raises:
        ResultsError: no such folder, or nothing in it.
    """
    return Comparison(load_results(*map(Path, folders)), baseline)


def run(
    config: PathLike | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    out: PathLike = "results",
) -> Comparison:
    """Run a sweep, or what is missing of it, and read what came out.

    Args:
        config: a YAML file, the name of a shipped sweep, or the settings themselves.
        overrides: `key=value`, as with `leval-harness sweep --set`.
        out: folder in which the sweep gets a folder of its name.

    Raises:
        ConfigError: names every setting that is wrong, its value and what is allowed.
        UserError: no cell could be computed; cells that failed beside others are rows without
            numbers.
    """
    from leval_harness.sweep import runner
    from leval_harness.sweep.cells import plan
    from leval_harness.sweep.config import parse_config
    from leval_harness.sweep.config_files import load_config, override
    from leval_harness.sweep.executors import LocalExecutor
    from leval_harness.sweep.progress import display

    if isinstance(config, Mapping):
        content: Any = {"name": "run", **config}
        for text in overrides:
            content = override(content, text)
        loaded = parse_config(content)
    else:
        loaded = load_config(os.fspath(config), overrides)
    cells, folder = plan(loaded), Path(out) / loaded.name
    with runner.sweep_lock(folder):
        stock = runner.take_stock(folder, cells)
        with display(stock.pending, len(stock.finished), folder) as progress:
            executor = LocalExecutor(loaded.jobs)
            outcomes = runner.run_pending(stock, folder, "leval_harness.run", executor, progress)
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if failed and not stock.finished and len(failed) == len(outcomes):
        raise UserError(f"no cell could be computed; the first: {failed[0].reason}")
    return load(folder)


def rope(
    rope_type: str,
    *,
    head_dim: int = 128,
    original: int = 4096,
    factor: float = 8.0,
    seq_len: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """What a RoPE method does to every feature, without a model.

    Args:
        rope_type: for example `yarn` or `resonance_yarn`.
        head_dim: rotated dimensions.
        original: trained length L in tokens.
        factor: context extension s.
        seq_len: current length in tokens, for `dynamic` and `longrope`; None for L.
        settings: further keys of the method; `rope_theta` is 10,000 unless given.

    Returns:
        `inv_freq` (radians a token), `wavelengths` (tokens), `attention_factor`,
        `critical_dimension`, `feature_gap`, `collision`: lists in float64, one number a feature.

    Raises:
        RopeConfigError: names the setting and what is allowed.
    """
    from resonance_vllm.core.features import describe
    from resonance_vllm.core.spec import RopeSpec, RopeType

    keys = RopeType.read(rope_type).method.key_names()
    own = {"factor": factor, "original_max_position_embeddings": original}
    taken = {key: value for key, value in own.items() if key in keys}
    spec = RopeSpec.from_dict({"rope_type": rope_type, "rope_theta": 10_000.0, **taken, **settings})
    return describe(spec, head_dim, original, factor, seq_len)


def check(
    model: PathLike, rope: str | Mapping[str, Any] | None = None, context_length: int | None = None
) -> dict[str, Any]:
    """What a model runs with on transformers and on vLLM, as `leval-harness check --json`.

    Args:
        model: checkpoint folder or name on the hub; no weights are loaded.
        rope: `TYPE:key=value,...` or a dictionary; None for the checkpoint as shipped.
        context_length: longest sequence in tokens.

    Raises:
        SettingError: the model or the method cannot be read.
    """
    from resonance_vllm.check import report
    from resonance_vllm.config import ModelPositions
    from resonance_vllm.core.spec import RopeRequest

    positions = ModelPositions.of_checkpoint(os.fspath(model))
    if rope is None:
        return report(os.fspath(model), positions, None, context_length)
    read = RopeRequest.parse if isinstance(rope, str) else RopeRequest.from_dict
    request = positions.complete(read(rope))  # type: ignore[arg-type]
    return report(os.fspath(model), positions, request, context_length)
