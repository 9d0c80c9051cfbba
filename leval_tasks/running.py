"""The model that answers: lm-eval gives a task the run's settings, but not the model.

It is in the evaluator's own frame while it has the task build requests, and is looked up there.
"""

import sys
from typing import Any


def running_model() -> Any | None:
    """The model of the lm-eval evaluation that is building requests, or None outside of one."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_globals.get("__name__") == "lm_eval.evaluator" and "lm" in frame.f_locals:
            model = frame.f_locals["lm"]
            # --use_cache wraps the model
            return model.lm if type(model).__name__ == "CachingLM" else model
    return None
