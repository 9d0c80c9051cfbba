"""lm-eval tasks `posgen_*`: teacher-forced accuracy past the training length.

The model reads each true sequence once, and its most likely token at every position is compared
with the true next one. The backend `hf-long` answers such requests, `teacher_forced`.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.config.task import TaskConfig

from leval_tasks.common.lm_task import PlainTask
from leval_tasks.common.metadata import PosGenSettings, refuse_near_misses
from leval_tasks.common.metrics import directions, stderr_of_mean, with_stderr
from leval_tasks.common.model import find_limit, find_tokenizer, running_model
from leval_tasks.posgen.sequences import modulus_of, position_ranges, splits
from resonance_vllm.common.errors import SettingError, invalid_value_message
from resonance_vllm.common.files import read_json_object
from resonance_vllm.common.settings import field_names, parse_settings

REQUEST = "teacher_forced"


class TokenRequest(Instance):
    """An instance whose logged argument is readable text and whose model input is token ids."""

    def __init__(self, token_ids: list[int], text: str, **kwargs: Any) -> None:
        super().__init__(request_type=REQUEST, arguments=(text,), **kwargs)
        self.token_ids = token_ids

    @property
    def args(self) -> tuple[list[int]]:
        """Return the backend's input."""
        return (self.token_ids,)


def accuracies(correct: list[bool], settings: PosGenSettings) -> dict[str, float]:
    """Return the metrics of one sequence, fractions by the names of `position_ranges`.

    `correct` says whether each of the numbers 1..length-1 (or 0..length-1) was predicted.
    """
    offset = settings.length - len(correct)
    return {
        name: sum(correct[start - offset : end - offset]) / (end - start)
        for name, (start, end) in position_ranges(settings).items()
    }


class PosGenTask(PlainTask):
    """One PosGen sub-task on the test split.

    Settings come from the task's metadata (`--metadata`, `model_args`), else from the checkpoint's
    config.json (`posgen`, written by training), else they are the paper's.
    """

    VERSION = 1

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._run = dict(config.get("metadata") or {})
        subtask = str(config["task"]).removeprefix("posgen_")
        tokenizer = find_tokenizer(self._run)
        self.settings = read_settings(subtask, self._run, modulus_of(tokenizer))
        bos = tokenizer.bos_token_id
        self._prefix = tokenizer.eos_token_id if bos is None else bos
        about = {
            "version": self.VERSION,
            "data": {"source": "generated", "sample": False},
            "settings": self.settings.recorded(),
        }
        self._configure(TaskConfig(task=str(config["task"]), num_fewshot=0, metadata=about))
        self._sequences = splits(self.settings).test

    def test_docs(self) -> list[dict[str, Any]]:
        """Return one document per sequence: its number, and the numbers as text."""
        return [
            {"document_id": f"test-{i}", "sequence": " ".join(map(str, row))}
            for i, row in enumerate(self._sequences.tolist())
        ]

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:
        """Return the sequence as text."""
        return str(doc["sequence"])

    def build_all_requests(self, **kwargs: Any) -> None:
        """Build the requests as lm-eval does, for a backend with a result for each position."""
        model = running_model()
        if model is not None and not hasattr(model, REQUEST):
            raise SettingError(
                f"model: the backend {type(model).__name__} gives no result for each position, "
                "which PosGen needs; use --model hf-long (with `leval-harness lm-eval`)"
            )
        # of prefix and numbers, the last number is predicted, not read
        find_limit(self._run).check(self.settings.length, "length")
        super().build_all_requests(**kwargs)

    def construct_requests(self, doc: Mapping[str, Any], ctx: str, **kwargs: Any) -> TokenRequest:
        """Return a request for one forward pass over the sequence."""
        text = self.doc_to_text(doc)
        ids = [self._prefix, *map(int, text.split())]
        return TokenRequest(ids, text, doc=doc, idx=0, metadata=kwargs["metadata"])

    def process_results(
        self, doc: Mapping[str, Any], results: list[tuple[list[bool], list[float]]]
    ) -> dict[str, Any]:
        """Return the accuracies of one sequence."""
        correct, _ = results[0]
        return with_stderr(accuracies(correct, self.settings))

    def aggregation(self) -> dict[str, Callable[..., float | str]]:
        """Return the mean over sequences; they are equally long, so it is the mean over tokens."""

        def stderr(shares: Iterable[float]) -> float | str:
            return stderr_of_mean(enumerate(shares))

        functions: dict[str, Callable[..., float | str]] = {}
        for name in position_ranges(self.settings):
            functions[name] = mean
            functions[f"{name}_stderr"] = stderr
        return functions

    def higher_is_better(self) -> dict[str, bool]:
        """Return the direction of each metric."""
        return directions(self.aggregation())


def read_settings(subtask: str, metadata: Mapping[str, Any], modulus: int) -> PosGenSettings:
    """Return the settings of a task: the run's, else those that the checkpoint was trained with.

    `modulus` is how many numbers the tokenizer knows.

    Raises:
        SettingError: a value that is not allowed, or a misspelt setting.
    """
    refuse_near_misses(metadata)
    config = Path(str(metadata.get("pretrained", ""))) / "config.json"
    trained = (read_json_object(config) or {}).get("posgen") or {"modulus": modulus}
    of_run = {key: value for key, value in metadata.items() if value is not None}
    names = field_names(PosGenSettings)
    given = {key: value for key, value in {**trained, **of_run}.items() if key in names}
    settings = parse_settings(PosGenSettings, {**given, "subtask": subtask})
    if settings.modulus > modulus:
        known = f"up to the {modulus} numbers that the tokenizer knows"
        raise SettingError(invalid_value_message("modulus", settings.modulus, known))
    return settings
