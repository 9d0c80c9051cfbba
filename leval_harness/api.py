"""The Python API: run a sweep, read results, style at a method or a model."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from resonance_vllm.common.errors import RunError, UserError, one_of

if TYPE_CHECKING:
    import pandas as pd

    from leval_harness.results.load import Results

PathLike = str | os.PathLike[str]
Across = Literal["methods", "models"]


class Comparison:
    """Results of one or more folders, compared.

    Args:
        results: what was read.
        baseline: method to compare with; None for the one that the sweep names.
        across: what is compared on the same questions: the methods of each model, or models.
        margin: effective context length: a smaller loss counts as none, nats/token; None for the
            sweep's, else 0.05.

    Attributes:
        runs: a row for each run; see `leval_harness.results.load.RUNS`.
        scores: a row for each number of a results file; see `leval_harness.results.load.SCORES`.
        samples: a row for each question and number; see `leval_harness.results.load.SAMPLES`.
        blocks: a row for 64 tokens of a text that was read; see `leval_harness.results.load.BLOCKS`.
        excluded: files and numbers that were found and are in no frame, each with its reason.
    """

    def __init__(
        self,
        results: "Results",
        baseline: str | None = None,
        across: Across = "methods",
        margin: float | None = None,
    ) -> None:
        self.results, self.excluded = results, results.excluded
        self.runs, self.scores = results.runs, results.scores
        self.samples, self.blocks = results.samples, results.blocks
        self._how: dict[str, Any] = {"baseline": baseline, "across": across, "margin": margin}

    @cached_property
    def compared(self) -> "pd.DataFrame":
        """Every number with its interval, rank and difference: what tables and figures show.

        Columns: `leval_harness.report.compare.COMPARED` and `leval_harness.report.effective_context.COLUMNS`.
        """
        from leval_harness.report.effective_context import compared_frame

        return compared_frame(self.results, **self._how)

    def to_pandas(self) -> "pd.DataFrame":
        """A copy of `compared`."""
        return self.compared.copy()

    def table(self, form: str = "md", published: bool = False) -> str:
        """The tables as text: `md`, `tex`, `html`; `csv` and `json` are every number.

        Args:
            form: the format.
            published: show the paper's rows beside ours.
        """
        from leval_harness.report.formats import render
        from leval_harness.report.tables import build_tables

        return render(build_tables(self.compared, published), self.compared, form)

    def verdict(self) -> str:
        """What the results say of each model, a sentence a line; empty without a number."""
        from leval_harness.report.verdict import lines, verdict

        return lines(verdict(self.compared))

    def figures(self) -> list[str]:
        """Titles of the figures that these results have data for."""
        from leval_harness.report.figures import planned_figures

        return [figure.title for figure in planned_figures(self.compared)]

    def plot(self, title: str | None = None) -> Any:
        """A figure as a matplotlib `Figure`; None for the first of `figures`.

        Raises:
            UserError: there is nothing to draw, or no figure of this title.
        """
        from leval_harness.report.drawing import figure_style
        from leval_harness.report.figures import planned_figures

        planned = {figure.title: figure for figure in planned_figures(self.compared)}
        if not planned:
            raise UserError("results: nothing to draw; figures need more than one context length")
        chosen = next(iter(planned)) if title is None else one_of("title", title, planned)
        with figure_style():
            return planned[chosen].draw()

    def page(self, folder: PathLike, title: str = "Long-context leaderboard") -> Path:
        """Write a page that opens from disk; the path of its `index.html`."""
        from leval_harness.report.page import write_page

        return write_page(self.results, self.compared, Path(folder), title)

    def __repr__(self) -> str:
        count = self.runs[["model", "method"]].nunique()
        return f"<Comparison: {count['model']} models, {count['method']} methods>"

    def _repr_html_(self) -> str:
        return self.table("html")


def load(
    *folders: PathLike,
    baseline: str | None = None,
    across: Across = "methods",
    margin: float | None = None,
    method_names: Mapping[str, str] | None = None,
) -> Comparison:
    """Read results of sweeps or of lm-eval.

    Args:
        folders: one or more results folders.
        baseline: see `Comparison`.
        across: see `Comparison`.
        margin: see `Comparison`.
        method_names: method, id or folder of a run -> the name that its method gets.

    Raises:
        ResultsError: no such folder, or nothing in it.
    """
    from leval_harness.results.load import load_results

    results = load_results(*map(Path, folders), method_names=method_names)
    return Comparison(results, baseline, across, margin)


def compare(loaded: Comparison, baseline: str | None = None) -> "pd.DataFrame":
    """The compared frame of what was loaded, against another baseline; see `Comparison`."""
    if baseline is None:
        return loaded.to_pandas()
    from leval_harness.report.effective_context import compared_frame

    return compared_frame(loaded.results, **loaded._how | {"baseline": baseline})


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
        UserError: no run could be computed; runs that failed beside others are rows without
            numbers.
    """
    from leval_harness.sweep.config import load_config
    from leval_harness.sweep.plan import plan
    from leval_harness.sweep.run import run_sweep

    if isinstance(config, Mapping):
        loaded = load_config({"name": "run", **config}, overrides)
    else:
        loaded = load_config(os.fspath(config), overrides)
    folder = Path(out) / loaded.name
    states = run_sweep(loaded, plan(loaded), folder, "leval_harness.run").values()
    if not any(state.done for state in states):
        reason = next((state.failure for state in states if state.failure), "")
        raise RunError(f"no run could be computed; the first: {reason}")
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
        original: native context length L in tokens.
        factor: context extension s.
        seq_len: current length in tokens, for `dynamic` and `longrope`; None for L.
        settings: further keys of the method; `rope_theta` is 10,000 unless given.

    Returns:
        `inv_freq` (radians a token), `wavelengths` (tokens), `attention_factor`,
        `critical_dimension`, `feature_gap`: lists in float64, one number a feature.

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
        rope: `TYPE:key=value,...` or a dictionary; None for the checkpoint unmodified.
        context_length: longest sequence in tokens.

    Raises:
        SettingError: the model or the method cannot be read.
    """
    from resonance_vllm.check import report
    from resonance_vllm.checkpoint.config import ModelPositions
    from resonance_vllm.core.spec import RopeRequest

    positions = ModelPositions.of_checkpoint(os.fspath(model))
    if rope is None:
        return report(os.fspath(model), positions, None, context_length)
    read = RopeRequest.parse if isinstance(rope, str) else RopeRequest.from_dict
    request = positions.complete(read(rope))  # type: ignore[arg-type]
    return report(os.fspath(model), positions, request, context_length)
