"""A small tokenizer, and a task of the needle grid whose prompts are built without a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leval_tasks.retrieval.task import NeedleTask


@pytest.fixture(scope="session")
def tokenizer_folder() -> str:
    return str(Path(__file__).parents[1] / "golden" / "tokenizer")


@pytest.fixture
def needle_task(tokenizer_folder) -> Callable[..., NeedleTask]:
    """Make a task, and fit its haystack into its lengths."""

    def make(variant: str = "single", answer_tokens: int = 16, **settings: Any) -> NeedleTask:
        metadata = {"variant": variant, "tokenizer": tokenizer_folder, **settings}
        task = NeedleTask(
            {
                "task": f"retrieval_niah_{variant}",
                "metadata": {"context_length": [512, 1024], "num_samples": 2, **metadata},
                "generation_kwargs": {"max_gen_toks": answer_tokens},
            }
        )
        task.prepare()
        return task

    return make
