"""The trained models, and documents of their kind."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

MODELS = Path(__file__).parent / "models"


@pytest.fixture(scope="session")
def copying_model() -> Callable[[str], Path]:
    """Folder of a model that `train_tiny.py` made."""
    return lambda name: MODELS / name


@pytest.fixture(scope="session")
def copying_documents(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A JSONL file of 64 documents of 127 words that no training step has seen."""
    made = runpy.run_path(str(MODELS.with_name("train_tiny.py")))

    def write(name: str) -> Path:
        period = {"yarn": 60, "window": 32}[name]
        path = tmp_path_factory.mktemp("documents") / f"{name}.jsonl"
        rows = made["documents"](64, period, 10**6)[:, 1:] - len(made["SPECIAL"])
        documents = [" ".join(f"w{word}" for word in row) for row in rows.tolist()]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        return path

    return write


@pytest.fixture(autouse=True)
def _few_lm_eval_tasks(few_lm_eval_tasks: None) -> None:
    """lm-eval reads few of its own tasks here."""
