"""Lines of a samples file: the object of each is one question under one filter.

Anything may be missing in it, or of another type.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leval_harness.old_results.fields import ResultsError, finite, open_regular
from leval_tasks.closed.definition import MARKS, marks_in
from leval_tasks.effective_context.reads import COLUMNS
from leval_tasks.statistics.clustered import Floats
from resonance_vllm.errors import SettingError
from resonance_vllm.files import parse_json

DESCRIBING = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics",
    "doc_hash", "prompt_hash", "target_hash",
}  # fmt: skip
"""What lm-eval logs of a sample beside its metrics."""

LONGEST_LINE = 64 * 2**20

NOTES = (
    *MARKS, "reached_limit", "truncated", "prompt_tokens", "document_tokens", "kept_tokens",
)  # fmt: skip
"""How a question was asked and answered, which is no score."""

DEPTHS = 10
"""Parts of a prompt that the picture of depth distinguishes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One question under one filter; `row` is the object as it is written."""

    row: Mapping[str, Any]

    @property
    def document(self) -> dict[str, Any]:
        """What it holds of its document and question."""
        doc = self.row.get("doc")
        return doc if isinstance(doc, dict) else {}

    @property
    def prompt(self) -> dict[str, Any]:
        """How a closed-ended task of ours made the prompt: tokens of the document, kept ones."""
        prompt = self.document.get("prompt")
        return prompt if isinstance(prompt, dict) else {}

    @property
    def key(self) -> tuple[str, str, str]:
        """`(question, document, cluster)`; a plain lm-eval sample is its own document."""
        doc = self.document
        document = doc.get("document_id")
        if "cluster" not in doc or type(document) not in (str, int):
            names = (self.row.get(name) for name in ("doc_id", "doc_hash", "prompt_hash"))
            number = f"{next((name for name in names if name is not None), None)}"
            return number, number, number
        question = doc.get("question_id")
        key = f"{document}" if question is None else f"{document}#{question}"
        return key, f"{document}", f"{doc['cluster']}"

    @property
    def hash(self) -> str:
        """Hash of what was asked: lm-eval's of prompt and target, else one of all that is logged.

        The question's name is part of it where a sample has one, else the document's hash.
        """
        row = self.row
        prompt, target = row.get("prompt_hash"), row.get("target_hash")
        if isinstance(prompt, str) and isinstance(target, str):
            key, document, _ = self.key
            own = key if document != f"{row.get('doc_id')}" else f"{row.get('doc_hash')}"
            return f"{own} {prompt} {target}"
        parts = [row.get(name) for name in ("doc", "target", "arguments")]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    @property
    def asked(self) -> tuple[object, object]:
        """The question and its expected answer; RULER's question is the last line of its prompt."""
        doc = self.document
        outputs = doc.get("outputs")
        if "max_length" in doc and isinstance(outputs, list):
            before, _, last = str(doc.get("input", "")).rstrip().rpartition("\n")
            return last if before else None, ", ".join(map(str, outputs))
        choices, gold = doc.get("choices"), doc.get("gold", self.row.get("target"))
        at = int(gold) if isinstance(gold, str) and gold.isdecimal() and len(gold) < 4 else gold
        if isinstance(choices, list) and isinstance(at, int) and 0 <= at < len(choices):
            gold = choices[at]
        return doc.get("question"), gold

    @property
    def responses(self) -> list[str]:
        """The model's texts for each request, all that were sampled where a task repeats it."""
        texts: list[str] = []
        for repeats in self._listed("resps"):
            each = repeats if isinstance(repeats, list) and repeats else [repeats]
            # a likelihood stands with its greedy flag
            each = [text[0] if isinstance(text, list) and text else text for text in each]
            if not all(isinstance(text, str) for text in each):
                return []
            texts += each
        return texts

    @property
    def choices(self) -> list[tuple[str, float]]:
        """The continuations of a prompt with their log-likelihoods; empty where there are none.

        Continuations without any prompt, which `acc_mutual_info` asks for beside those with it, are
        left out. Where the prompts differ and not the continuations (Winogrande), a choice begins
        where its prompt differs.
        """
        requests, found = self.row.get("arguments"), []
        prompts: list[str] = []
        if not isinstance(requests, Mapping):
            return []
        for request, repeats in zip(requests.values(), self._listed("resps"), strict=False):
            text = request.get("arg_1") if isinstance(request, Mapping) else None
            try:
                likelihood, _ = repeats[0]
                number = finite(float(likelihood))
            except (TypeError, ValueError, LookupError):
                return []
            if not isinstance(text, str) or number is None:
                return []
            found.append((text.strip(), number))
            prompts.append(str(request.get("arg_0") or ""))
        if any(prompts):
            found = [each for each, prompt in zip(found, prompts, strict=True) if prompt]
            prompts = list(filter(None, prompts))
        if len({text for text, _ in found}) == 1 < len(set(prompts)):
            columns = enumerate(zip(*prompts, strict=False))
            shortest = min(map(len, prompts))
            differs = next((at for at, letters in columns if len({*letters}) > 1), shortest)
            start = prompts[0].rfind(" ", 0, differs) + 1
            pairs = zip(prompts, found, strict=True)
            return [(f"{prompt[start:]} {text}", number) for prompt, (text, number) in pairs]
        return found

    @property
    def answers(self) -> list[Any]:
        """What was read from each response; of closed-ended tasks of ours without the marks."""
        read = self.row.get("filtered_resps")
        items = read if isinstance(read, list) else [read]
        if marks_in(read):
            items = [each[0] if isinstance(each, list) and each else None for each in items]
        return items

    @property
    def notes(self) -> dict[str, float]:
        """Those of `NOTES` that are known.

        A closed-ended task of ours describes its prompt in the document and its answer in
        `filtered_resps`. What a sweep wrote into the sample itself comes before both.
        """
        row, found = self.row, dict(self.prompt)
        kept = [finite(found.get(name)) for name in ("kept_head", "kept_tail")]
        if None not in kept:
            found["kept_tokens"] = sum(each for each in kept if each)
        if isinstance(found.get("truncated"), bool):
            found["truncated"] = float(found["truncated"])
        found |= marks_in(row.get("filtered_resps")) | {n: row[n] for n in NOTES if n in row}
        numbers = {name: finite(found.get(name)) for name in NOTES}
        return {name: number for name, number in numbers.items() if number is not None}

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that it logs."""
        names = self.row.get("metrics", [name for name in self.row if name not in DESCRIBING])
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    def ratio(self, metric: str) -> tuple[float, float] | None:
        """A metric as numerator and denominator, which is 1 for a number; None where it is none."""
        value = self.row.get(metric)
        if (number := finite(value)) is not None:
            return number, 1.0
        if not isinstance(value, list) or len(value) != 2:
            return None
        top, bottom = map(finite, value)
        return None if top is None or bottom is None or bottom <= 0 else (top, bottom)

    @property
    def needles(self) -> list[tuple[int, bool]]:
        """The part of the prompt that each of RULER's needles lies in, and whether it was found.

        A needle is an expected answer, at the place where the prompt has it. It is found where a
        response holds it, as RULER scores. The first part is 0 of `DEPTHS`.
        """
        prompt, wanted = self.document.get("input"), self.document.get("outputs")
        if not isinstance(prompt, str) or not isinstance(wanted, list):
            return []
        response = " ".join(self.responses).lower()
        return [
            (min(int(at / len(prompt) * DEPTHS), DEPTHS - 1), needle.lower() in response)
            for needle in wanted
            if isinstance(needle, str) and needle and (at := prompt.find(needle)) >= 0
        ]

    @property
    def blocks(self) -> Floats | None:
        """`COLUMNS` of each block of a text `[B, 6]`, of effective-context tasks.

        NaN where a read is missing; None where a sample has no blocks or they are damaged. lm-eval
        logs the numbers as text, a missing one as `None`.
        """
        described = self._listed("filtered_resps")
        rows: Any = described[0] if described else None
        try:
            numbers = [[np.nan if str(n) == "None" else float(str(n)) for n in row] for row in rows]
            blocks = np.array(numbers).reshape(-1, len(COLUMNS))
        except (TypeError, ValueError):
            return None
        usable = blocks.size and np.isfinite(blocks[:, :2]).all() and (blocks[:, 1] > 0).all()
        return blocks if usable else None

    def _listed(self, name: str) -> list[Any]:
        value = self.row.get(name)
        return value if isinstance(value, list) else []


def parsed_lines(path: Path) -> Iterator[Sample | None]:
    """The samples of a JSONL file, None for a line that is none; blank lines are skipped.

    Raises:
        ResultsError: the file cannot be read.
    """
    with open_regular(path) as handle:
        try:
            while line := handle.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    raise ResultsError(f"{path}: a line is longer than {LONGEST_LINE >> 20} MiB")
                if line.strip():
                    try:
                        row = parse_json(line, "a sample")
                    except SettingError:
                        row = None
                    yield Sample(row) if isinstance(row, dict) else None
        except OSError as error:
            raise ResultsError(f"{path}: not readable ({error})") from error


def of_first_filter(path: Path) -> Iterator[Sample]:
    """The samples of a file; where several filters were logged, those of the first one."""
    chosen: object = None
    for sample in filter(None, parsed_lines(path)):
        chosen = sample.row.get("filter") if chosen is None else chosen
        if sample.row.get("filter") == chosen:
            yield sample
