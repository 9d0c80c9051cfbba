"""The bundled sample: documents and questions made by a generator, in L-Eval's record layout.

It lets a newcomer see every closed-ended task run without any download. It is not a benchmark:
every result made with it says "sample". The texts are true by construction: the generator draws
the facts first and writes both the text and the answers from them.
"""

import random

from leval_border.errors import one_of
from leval_tasks.sample import people, reasoning, topics

_WRITERS = {
    "coursera.jsonl": people.coursera,
    "gsm100.jsonl": reasoning.arithmetic,
    "quality.jsonl": people.quality,
    "tpo.jsonl": people.toefl,
    "codeU.jsonl": reasoning.code,
    "sci_fi.jsonl": people.fiction,
    "topic_retrieval_longchat.jsonl": topics.conversations,
}
FILES = tuple(_WRITERS)


def documents(name: str) -> list[dict[str, object]]:
    """The sample's records for one of L-Eval's files.

    Args:
        name: one of `FILES`, L-Eval's own file names.

    Returns:
        Records with `instructions` and `outputs` (parallel lists of str), `input` (the document),
        `evaluation` ("exam") and `source` ("sample"). The same on every machine and in every
        process.

    Raises:
        SettingError: a name that is not in `FILES`.
    """
    write = _WRITERS[one_of("file of the sample", name, FILES)]
    return [
        {
            "instructions": questions,
            "outputs": answers,
            "input": text,
            "evaluation": "exam",
            "source": "sample",
        }
        for questions, answers, text in write(random.Random(f"sample/{name}"))
    ]
