"""Budgets are counted exactly: every length equals that of tokenising the whole prompt."""

import functools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from leval_tasks import data
from leval_tasks.closed import fitting
from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.definition import ClosedTask
from leval_tasks.closed.prompts import Prompt, PromptWriter
from leval_tasks.errors import ContextLengthError


def plain(question: str, task: ClosedTask = TASKS["leval_closed_toefl"]) -> list[Prompt]:
    return PromptWriter("llama2").prompts(task, question)


def records(name: str) -> tuple[data.DocumentRecord, ...]:
    return data.parse((data.SAMPLE / name).read_bytes(), name)


@functools.cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE (GPT-2's way), or BPE over whole text with a blank mark (Llama 2's way)."""
    text = [row.document for name in ("tpo.jsonl", "sci_fi.jsonl") for row in records(name)]
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    if kind == "byte-level":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        alphabet = []
        text = [line for document in text for line in document.split("\n")]
    made.train_from_iterator(
        text,
        trainers.BpeTrainer(
            vocab_size=900,
            special_tokens=["<unk>", "<s>"],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", unk_token="<unk>")


KINDS = ("byte-level", "whole-text")
PIECES = [
    "\n\n",
    "  ",
    " the",
    "café ",
    "日本語",
    "🙂🙂",
    "...",
    "=====",
    "12345 ",
    "don't ",
    "\t",
    "A.",
    " A",
]


@st.composite
def texts(draw):
    rng = random.Random(draw(st.integers(0, 10**6)))
    base = records("tpo.jsonl")[rng.randrange(3)].document
    parts = []
    for _ in range(draw(st.integers(1, 40))):
        start = rng.randrange(len(base) - 400)
        parts.append(base[start : start + rng.randrange(1, 400)])
        parts.append(rng.choice(PIECES) * rng.randrange(1, 6))
    return "".join(parts)


@pytest.mark.parametrize("kind", KINDS)
@given(
    text=texts(),
    cut=st.floats(0.02, 1),
    side=st.sampled_from(["middle", "right", "left"]),
    before=st.sampled_from(["", "Document is as follows. ", "[INST]\n"]),
    questions=st.permutations(["Who?", " \nQuestion: what", "\n\n", "s. ing", ""]),
)
def test_counted_length_is_the_real_length(kind, text, cut, side, before, questions):
    own = tokenizer(kind)
    document = fitting.TokenizedDocument(text, own)
    shared = before + document.kept(document.keep(max(1, int(len(document) * cut)), side))
    whole = [shared + question for question in questions]
    expected = [len(own(each, add_special_tokens=False)["input_ids"]) for each in whole]
    assert fitting.count_tokens(own, shared, questions) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts(), room=st.integers(60, 2000), side=st.sampled_from(["middle", "right", "left"]))
def test_prompts_never_exceed_the_room_and_waste_little(kind, text, room, side):
    asked = [plain(question)[0] for question in ("Who?", "What did Ann say? " * 3)]
    document = fitting.TokenizedDocument(text, tokenizer(kind))
    longest = max(len(tokenizer(kind)(p.before + p.after)["input_ids"]) for p in asked)
    try:
        cut, lengths = fitting.fit(document, asked, room, side=side)
    except ContextLengthError:
        assert longest >= room - 2
    else:
        real = [len(tokenizer(kind)(p.text(document.kept(cut)))["input_ids"]) for p in asked]
        assert lengths == real
        assert max(real) <= room
        if cut.truncated:
            assert max(real) >= room - 16  # merges at the cut may cost a few tokens
            assert cut.head + cut.tail < len(document)


def test_further_questions_do_not_tokenise_the_document_again(monkeypatch):
    lengths = []
    real = fitting.token_offsets

    def spy(own, text):
        lengths.append(len(text))
        return real(own, text)

    monkeypatch.setattr(fitting, "token_offsets", spy)
    row = records("tpo.jsonl")[0]
    asked = [plain(q)[0] for q in row.instructions]
    document = fitting.TokenizedDocument(row.document, tokenizer("byte-level"))
    for side in ("middle", "right", "left"):
        lengths.clear()
        _, few = fitting.fit(document, asked[:2], len(document) // 2, side=side)
        tokenised = sum(length > len(row.document) // 3 for length in lengths)
        lengths.clear()
        _, many = fitting.fit(
            document, [*asked[:2], *asked[:2] * 40], len(document) // 2, side=side
        )
        assert sum(length > len(row.document) // 3 for length in lengths) == tokenised
        assert many == few * 41


def test_sides():
    document = fitting.TokenizedDocument("one two three four five six", tokenizer("byte-level"))
    n = len(document)
    assert document.keep(n, "middle") == fitting.Cut(((0, 27),), n, 0, truncated=False)
    assert document.kept(document.keep(3, "right")) == document.text[: document.ends[2]]
    assert document.kept(document.keep(3, "left")) == document.text[document.starts[-3] :]
    middle = document.keep(3, "middle")
    assert (middle.head, middle.tail) == (2, 1)


def test_skip_leaves_out_instead_of_cutting():
    document = fitting.TokenizedDocument(records("tpo.jsonl")[0].document, tokenizer("byte-level"))
    asked = [*plain("Who?")]
    assert fitting.fit(document, asked, 500, side="skip")[0] is None
    assert fitting.fit(document, asked, 10**6, side="skip")[0] is not None


def test_a_prompt_with_its_own_bos_gets_no_second_one():
    own = tokenizer("byte-level")
    assert fitting.special_tokens(own, "text", None) == 1
    assert fitting.special_tokens(own, "<s>text", None) == 0
    assert fitting.special_tokens(own, "text", False) == 0


def test_context_too_small_names_the_numbers():
    document = fitting.TokenizedDocument("word " * 3000, tokenizer("byte-level"))
    asked = [*plain("Who?")]
    with pytest.raises(ContextLengthError, match=r"take \d+ tokens and 40 are left"):
        fitting.fit(document, asked, 40, side="right")


def test_real_documents_with_the_real_tokenizer(real_data, smollm2):
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(smollm2)
    source = data.resolve_source({"data_dir": str(real_data / "leval" / "closed")})
    for name, side, room in (
        ("quality.jsonl", "middle", 3000),
        ("sci_fi.jsonl", "right", 4000),
        ("topic_retrieval_longchat.jsonl", "left", 5000),
    ):
        task = next(task for task in TASKS.values() if task.file.name == name)
        record = data.load(source, task).records[0]
        asked = [plain(question, task)[0] for question in record.instructions]
        document = fitting.TokenizedDocument(record.document, own)
        cut, lengths = fitting.fit(document, asked, room, side=side)
        kept = document.kept(cut)
        assert [len(own(p.text(kept))["input_ids"]) for p in asked] == lengths
        assert room - 4 <= max(lengths) <= room
