"""What lm-eval would run, read by its own parser from a command line with our options."""

import argparse
from typing import Any

from leval_harness.cli.lm_eval import lm_eval, parsed
from leval_harness.cli.lm_eval_run import complete


def settings_of(*arguments: str) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Settings as lm-eval's parser reads them, completed, and everything that decides what runs."""
    ours = lm_eval.make_context("lm-eval", ["run", *arguments]).params
    settings = parsed(ours.pop("arguments"))
    return settings, complete(settings, ours)


def asked(*arguments: str) -> Any:
    """Its configuration, as complete as when it loads a model."""
    from lm_eval.config.evaluate_config import EvaluatorConfig

    return EvaluatorConfig.from_cli(settings_of(*arguments)[0])
