"""The bundled sample: documents and questions made by a generator, in L-Eval's record layout.

It lets a newcomer see every closed-ended task run without any download. It is not a benchmark:
every result made with it says "sample". The texts are true by construction: the generator draws
the facts first and writes both the text and the answers from them.
"""

from __future__ import annotations

import difflib
import hashlib
import random

from leval_tasks.sample import choice, codeu, fiction, gsm, world

FILES = (
    "coursera.jsonl",
    "gsm100.jsonl",
    "quality.jsonl",
    "tpo.jsonl",
    "codeU.jsonl",
    "sci_fi.jsonl",
)
SEED = 20240610
_DOCUMENTS = {"coursera.jsonl": 4, "quality.jsonl": 3, "tpo.jsonl": 3, "sci_fi.jsonl": 3}
_PLACES = {
    "coursera.jsonl": ["Harrow Fen", "Mossgate Mill", "the Tallow Guild", "Saltmarsh College"],
    "quality.jsonl": ["Corbel House", "the Hermitage", "Lantern Hill"],
    "tpo.jsonl": ["Pinewater Station", "the Orrery Institute", "Whitcombe Farm"],
    "sci_fi.jsonl": ["Halcyon", "Meridian", "Anabasis"],
}


def documents(task_file: str) -> list[dict[str, object]]:
    """The sample's records for one of L-Eval's files.

    Args:
        task_file: one of `FILES`, L-Eval's own file names.

    Returns:
        Records with `instructions` and `outputs` (parallel lists of str), `input` (the document),
        `evaluation` ("exam") and `source` ("sample"). The same on every machine and in every
        process.

    Raises:
        ValueError: a name that is not in `FILES`.
    """
    return generate(task_file, SEED)


def generate(task_file: str, seed: int) -> list[dict[str, object]]:
    """`documents` for any seed: other people, facts, numbers and functions."""
    if task_file not in FILES:
        near = difflib.get_close_matches(task_file, FILES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"task_file {task_file!r} is not in the sample; it has {', '.join(FILES)}.{hint}"
        )
    rng = _generator(f"{seed}/{task_file}")
    if task_file == "codeU.jsonl":
        records = codeu.documents(rng)
    elif task_file == "gsm100.jsonl":
        records = gsm.documents(_people(seed)["gsm100.jsonl"][0], rng)
    else:
        write = {
            "coursera.jsonl": choice.coursera,
            "quality.jsonl": choice.quality,
            "tpo.jsonl": choice.toefl,
            "sci_fi.jsonl": fiction.documents,
        }[task_file]
        records = write(_people(seed)[task_file], _PLACES[task_file], rng)
    return [{**record, "evaluation": "exam", "source": "sample"} for record in records]


def _people(seed: int) -> dict[str, list[list[str]]]:
    """The names of every document; no name belongs to two documents."""
    names = iter(world.names(_generator(f"{seed}/names")))
    people = {
        file: [[next(names) for _ in range(world.PEOPLE_PER_DOCUMENT)] for _ in range(n)]
        for file, n in _DOCUMENTS.items()
    }
    return {**people, "gsm100.jsonl": [[next(names) for _ in range(gsm.SHOTS + gsm.ROWS)]]}


def _generator(name: str) -> random.Random:
    """A generator whose numbers depend on the text alone, on no hash seed or platform."""
    digest = hashlib.sha256(name.encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))
