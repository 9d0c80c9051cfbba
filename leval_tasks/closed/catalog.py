"""The closed-ended tasks: an entry each, in the order of the tables' columns."""

from leval_tasks.closed.definition import ClosedTask, PublishedFile
from leval_tasks.closed.rules import LastNumber, Letters, PrintedOutput, TopicName, TrueTwice
from resonance_vllm.errors import one_of

ONE_LETTER = (
    "Now you are given a very long document. Please follow the instruction based on this "
    "document. For multi-choice questions, there is only a sinlge correct option. Please only "
    "provide the letter corresponding to the answer (like A or B) when answering. For other "
    "questions, please directly give the concise and accurate answer. "
)
"""L-Eval's system prompt of questions with one right letter."""


def real_world_question(instruction: str) -> str:
    """SFiction's instruction turned to the real world; kept where it lacks the usual sentence."""
    return instruction.replace(
        "based on the world described in the document.",
        "based on the real-world knowledge and facts up until your last training",
    )


ENTRIES = (
    ClosedTask(
        key="coursera",
        title="Coursera",
        file=PublishedFile(
            "coursera.jsonl",
            sha256="03ef77fcbd191545ee9f750487d1e6b209352e6440cadc6671f0c9f4fcb753a5",
            first_references="5b59e9063885bb0f",
        ),
        system_prompt=(
            "Now you are given a very long document. Please follow the instruction based on this "
            "document. For multi-choice questions, there could be a sinlge correct option or "
            "multiple correct options. Please only provide the letter corresponding to the answer "
            "(like A or AB) when answering. "
        ),
        rule=Letters(several=True),
        references=r"[A-D](,? ?[A-D]){0,3}[.)]?(\s|$)",
    ),
    ClosedTask(  # sixteen worked examples as the document
        key="gsm",
        title="GSM",
        file=PublishedFile(
            "gsm100.jsonl",
            sha256="768d7b1d52be9406994b098fdfb9c2fd055bf2eb3d79748b42a9e55ddcc81f2a",
            first_references="3bac4686134ccd38",
        ),
        system_prompt=(
            "Given several question answer pairs, you need to follow a similar format to answer "
            "the last question. Make sure the response is end with The answer is _ . "
        ),
        form="steps",
        rule=LastNumber(),
        references=r"\s*[-$]?\d[\d,.]*\s*$|(?s:.*)The answer is \S*\d",
        own_clusters=True,
    ),
    ClosedTask(
        key="quality",
        title="QuALITY",
        file=PublishedFile(
            "quality.jsonl",
            sha256="e12593a3da249dc1f769d10e07da896a524917f278900a6f6ef42e7fd4daa67b",
        ),
        system_prompt=ONE_LETTER,
        rule=Letters(several=False),
        references=r"\(?[A-D][.)]?(\s|$)",
    ),
    ClosedTask(
        key="toefl",
        title="TOEFL",
        file=PublishedFile(
            "tpo.jsonl",
            sha256="7596d085ddc8e11418d53e956b492f9cba7087c2fc1b516508a26257eed1a57e",
            first_references="823ef486bca1b79e",
        ),
        system_prompt=ONE_LETTER,
        rule=Letters(several=False),
        references=r"\(?[A-D][.)]?\s*$",
    ),
    ClosedTask(  # a code base with a few calls at its end
        key="codeu",
        title="CodeU",
        file=PublishedFile("codeU.jsonl"),
        system_prompt=(
            "Now you are given a code base consisting of a large amount of functions and the "
            "corresponding comments. In the end, I will call some functions defined in the code "
            "base. Please carefully read these codes and comments and answer the question."
        ),
        form="steps",
        rule=PrintedOutput(),
        references=r"(?!\([A-D]\) |[A-D]{1,4}$|(?i:true|false)\s*\[fact:)",
        truncation="left",
        own_clusters=True,
    ),
    ClosedTask(  # is a statement true in the story, and is it true in our world?
        key="sfiction",
        title="SFiction",
        file=PublishedFile(
            "sci_fi.jsonl",
            sha256="eb704ffaacb8c84df4b9d70a8557066de25798b9af1332fd1f2dee77a8112d06",
        ),
        system_prompt=(
            "Now you are given a scientific fiction. I will ask you some questions and the answer "
            'should be "True" or "False". Notice that you should answer the question based on the '
            "evidence in the document instead of your background knowledge."
        ),
        second_question=real_world_question,
        rule=TrueTwice(),
        references=r"(?i:true|false)\s*\[fact:",
    ),
    ClosedTask(  # which topic of a long conversation came first, second, third?
        key="topic_retrieval",
        title="TopicRet",
        file=PublishedFile(
            "topic_retrieval_longchat.jsonl",
            sha256="c048104b31ad60d460bcd474bad41603b42418a4e3e32cd955d752d1bf11e11f",
            first_references="7f82d042c362354e",
        ),
        system_prompt=(
            "Below is a record of our previous conversation on many different topics. You are the "
            "ASSISTANT, and I am the USER. At the beginning of each topic, the USER will say 'I "
            "would like to discuss the topic of <TOPIC>'. Memorize each <TOPIC>. At the end of the "
            "record, I will ask you to retrieve the first/second/third topic names. Now the record "
            "start. "
        ),
        form="record",
        rule=TopicName(),
        in_group=False,
        references=r"(?!\([A-D]\) |(?i:true|false)\s*\[fact:)\W*\w*[a-z]{2}",
    ),
)

TASKS = {task.name: task for task in ENTRIES}
"""Every task by its name in lm-eval."""

GROUP = "leval_closed"
"""The paper's Avg.: the unweighted mean of the tasks that count in it."""


def task_named(name: str, field: str = "task") -> ClosedTask:
    """A task by its name in lm-eval or its key, as the user wrote it in a field.

    The prefix `leval_` of prediction files is accepted too.

    Raises:
        SettingError: an unknown name, with the nearest one.
    """
    tasks = {task.key: task for task in ENTRIES}
    if (key := name.removeprefix("leval_")) in tasks:
        return tasks[key]
    known = TASKS if name.startswith("leval_") else tasks
    return known[one_of(field, name, known)]
