"""What lm-eval would run, read by its own parser from a command line with our options."""

from typing import Any
from unittest.mock import patch

from leval_harness.cli.lm_eval import own_options
from leval_harness.cli.lm_eval_run import completing


def asked(*arguments: str) -> Any:
    """Its configuration, as complete as when it loads a model."""
    from lm_eval._cli.harness import HarnessCLI
    from lm_eval.config.evaluate_config import EvaluatorConfig

    ours, rest = own_options(["run", *arguments])
    with patch("sys.argv", ["lm-eval", *rest]), completing(ours):
        return EvaluatorConfig.from_cli(HarnessCLI().parse_args())
