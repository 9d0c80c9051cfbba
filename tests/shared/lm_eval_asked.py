"""What lm-eval would run, read by its own parser from a command line with our options."""

from typing import Any

from leval_harness.cli.lm_eval import own_options, parsed
from leval_harness.cli.lm_eval_run import complete


def asked(*arguments: str) -> Any:
    """Its configuration, as complete as when it loads a model."""
    from lm_eval.config.evaluate_config import EvaluatorConfig

    ours, rest = own_options(["run", *arguments])
    settings = parsed(rest)
    complete(settings, ours)
    return EvaluatorConfig.from_cli(settings)
