"""The Python API: run a sweep, read and compare results, inspect a method or a model.

Heavy packages (torch, pandas, matplotlib) are imported by the functions that need them, so that
importing this module stays quick.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from resonance_vllm.common.errors import RunError, UserError, check_choice

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from leval_harness.results.load import Results
    from resonance_vllm.check import CheckReport
    from resonance_vllm.core.features import RopeFeatures

PathLike = str | os.PathLike[str]
Across = Literal["methods", "models"]


class Comparison:
    """Results of one or more folders and how they compare; made by `load` and `run`.

    Args:
        results: the results that were read.
        baseline: method that the others are compared with; None for the one that the sweep names.
        across: what is compared on the same questions: the methods of each model, or the models.
        margin: smallest loss increase that matters in effective context length, in nats/token;
            smaller ones are treated as zero. None for the sweep's margin, else 0.05.

    Attributes:
        results: the results that were read.
        baseline: as above.
        across: as above.
        margin: as above.
    """

    def __init__(
        self,
        results: "Results",
        baseline: str | None = None,
        across: Across = "methods",
        margin: float | None = None,
    ) -> None:
        self.results = results
        self.baseline = baseline
        self.across: Across = across
        self.margin = margin

    @property
    def runs(self) -> "pd.DataFrame":
        """The runs, one row each; columns in `leval_harness.results.columns.RUNS`."""
        return self.results.runs

    @property
    def scores(self) -> "pd.DataFrame":
        """The numbers of the results files, one row each; columns: `results.columns.SCORES`."""
        return self.results.scores

    @property
    def samples(self) -> "pd.DataFrame":
        """The answers, one row per question and number; columns: `results.columns.SAMPLES`."""
        return self.results.samples

    @property
    def blocks(self) -> "pd.DataFrame":
        """The losses in nats/token, one row per 64 tokens; columns: `results.columns.BLOCKS`."""
        return self.results.blocks

    @property
    def excluded(self) -> Sequence[Any]:
        """Files and numbers that are in no frame, each with the reason."""
        return self.results.excluded

    @cached_property
    def compared(self) -> "pd.DataFrame":
        """Every number with its interval, rank and difference to the baseline.

        Tables, figures and the page show this frame and nothing else. Its columns are
        `leval_harness.report.compare.COMPARED` and
        `leval_harness.report.effective_context.COLUMNS`.
        """
        from leval_harness.report.effective_context import compared_frame

        return compared_frame(
            self.results, baseline=self.baseline, across=self.across, margin=self.margin
        )

    def to_pandas(self) -> "pd.DataFrame":
        """Return a copy of `compared`, which can be changed freely."""
        return self.compared.copy()

    def table(self, form: str = "md", published: bool = False) -> str:
        """Return the tables as text.

        Args:
            form: `md`, `tex` or `html` for the tables that people read; `csv` or `json` for every
                number of `compared`.
            published: whether to show the paper's published rows beside the measured ones.

        Raises:
            SettingError: there is no such format.
        """
        from leval_harness.report.formats import render
        from leval_harness.report.tables import build_tables

        return render(build_tables(self.compared, published), self.compared, form)

    def verdict(self) -> str:
        """Return the verdict on each model: a table, then a sentence per line; empty without numbers."""
        from leval_harness.report.formats import verdicts_text

        return verdicts_text(self.compared)

    def figures(self) -> list[str]:
        """Return the titles of the figures that these results have data for."""
        from leval_harness.report.figures import planned_figures

        return [figure.title for figure in planned_figures(self.compared, self.blocks)]

    def plot(self, title: str | None = None) -> "Figure":
        """Draw a figure with matplotlib.

        Args:
            title: one of `figures`; None for the first one.

        Returns:
            The figure, in inches and points as it is written for a page.

        Raises:
            UserError: there is nothing to draw.
            SettingError: no figure has this title.
        """
        from leval_harness.report.drawing import figure_style
        from leval_harness.report.figures import planned_figures

        planned = {figure.title: figure for figure in planned_figures(self.compared, self.blocks)}
        if not planned:
            raise UserError("results: nothing to draw; figures need more than one context length")
        chosen = next(iter(planned))
        if title is not None:
            chosen = check_choice("title", title, planned)
        with figure_style():
            return planned[chosen].draw()

    def page(self, folder: PathLike, title: str = "Long-context leaderboard") -> Path:
        """Write a page that opens from disk, with tables and figures.

        Args:
            folder: folder of the page; an earlier page in it is replaced.
            title: heading of the page.

        Returns:
            Path of its `index.html`.

        Raises:
            OSError: the folder cannot be written.
        """
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
        baseline: as in `Comparison`.
        across: as in `Comparison`.
        margin: as in `Comparison`, in nats/token.
        method_names: other names for methods in tables: method, run id or folder of a run -> name.

    Returns:
        The results; `to_pandas()` is the compared frame.

    Raises:
        ResultsError: a folder does not exist or holds no results.
    """
    from leval_harness.results.load import load_results

    results = load_results(*map(Path, folders), method_names=method_names)
    return Comparison(results, baseline, across, margin)


def compare(loaded: Comparison, baseline: str | None = None) -> "pd.DataFrame":
    """Return the compared frame of loaded results, if wanted against another baseline.

    Args:
        loaded: what `load` or `run` returned.
        baseline: method that the others are compared with; None for that of `loaded`.

    Returns:
        The frame of `Comparison.to_pandas`: one row per number, with interval, rank and difference
        to the baseline (method minus baseline).

    Raises:
        ResultsError: no run has this method.
    """
    if baseline is None:
        return loaded.to_pandas()
    return Comparison(loaded.results, baseline, loaded.across, loaded.margin).to_pandas()


def run(
    config: PathLike | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    out: PathLike = "results",
) -> Comparison:
    """Run a sweep, or the runs of it that have no result yet, and read the results.

    Args:
        config: a YAML file, the name of a sweep that this package ships, or the settings as a
            dictionary.
        overrides: `key=value` texts, as with `leval-harness sweep --set`.
        out: folder in which the sweep gets a folder of its name.

    Returns:
        The results. Runs that failed beside others are rows without numbers.

    Raises:
        ConfigError: a setting is wrong; every wrong one is named with its value and what is
            allowed.
        RunError: no run could be computed.
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
        failures = [state.failure for state in states if state.failure]
        reason = failures[0] if failures else "no reason was recorded"
        raise RunError(f"no run could be computed; the first one failed: {reason}")
    return load(folder)


def rope(
    rope_type: str,
    *,
    head_dim: int = 128,
    original: int = 4096,
    factor: float = 8.0,
    seq_len: int | None = None,
    **settings: Any,
) -> "RopeFeatures":
    """Compute what a RoPE method does to each feature, without a model.

    Args:
        rope_type: name of the method, for example `yarn` or `resonance_yarn`.
        head_dim: number of rotated dimensions of a head; two make a feature.
        original: original context length L, in tokens.
        factor: factor s by which the context is extended.
        seq_len: current sequence length in tokens, for `dynamic` and `longrope`; None for L.
        settings: further settings of the method; `rope_theta` is 10,000 unless it is set.

    Returns:
        `inv_freq` (radians per token), `wavelengths` (tokens) and `feature_gap` (0 to 2), one
        number per feature in float64; `attention_factor` and `critical_dimension`.

    Raises:
        RopeConfigError: a setting is wrong; the message names it and what is allowed.
    """
    from resonance_vllm.core.features import rope_features
    from resonance_vllm.core.spec import RopeSpec, RopeType

    common = {"factor": factor, "original_max_position_embeddings": original}
    keys = RopeType.parse(rope_type).method.key_names()
    # not every method reads both: `default` reads neither
    read = {key: value for key, value in common.items() if key in keys}
    spec = RopeSpec.from_dict({"rope_type": rope_type, "rope_theta": 10_000.0, **read, **settings})
    return rope_features(spec, head_dim, original, factor, seq_len)


def check(
    model: PathLike, rope: str | Mapping[str, Any] | None = None, context_length: int | None = None
) -> "CheckReport":
    """Build a model's rotary modules on transformers and vLLM without weights, and report them.

    Args:
        model: checkpoint folder or name on the hub.
        rope: RoPE method as `TYPE:key=value,...` or as a dictionary; None for the unmodified
            checkpoint.
        context_length: longest sequence that will be used, in tokens; None for the limit of the
            settings.

    Returns:
        What `transformers` and `vllm` build: each has its rotary modules and the length limit, or
        the reason why it refuses or is not installed. `notes` are sentences on the lengths.

    Raises:
        SettingError: the checkpoint or the method cannot be read.
    """
    from resonance_vllm.check import report
    from resonance_vllm.checkpoint.positions import PositionConfig
    from resonance_vllm.core.spec import RopeRequest

    path = os.fspath(model)
    positions = PositionConfig.from_checkpoint(path)
    spec = None
    if isinstance(rope, str):
        spec = positions.complete(RopeRequest.parse(rope))
    elif rope is not None:
        spec = positions.complete(RopeRequest.from_dict(rope))
    return report(path, positions, spec, context_length)
