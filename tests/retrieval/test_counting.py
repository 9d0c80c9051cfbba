"""Tokens of prompts counted at their seams, against those of the whole prompt."""

from random import Random

import pytest
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from leval_tasks.common.chat import count_tokens
from leval_tasks.retrieval import counting
from leval_tasks.retrieval.counting import count_prompt_tokens
from leval_tasks.retrieval.haystack import BLANK, LINE_BREAK, Haystack, tokenized
from leval_tasks.retrieval.needles import VARIANTS, draw_question, move_needle

WORDS = [
    "the",
    "a",
    "river",
    "of",
    "was",
    "walking",
    "under",
    "lights",
    "naïve",
    "日本",
    "def",
    "x_1",
]


def line_of(rng: Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(0, 14)))


LINES = [line_of(Random(number)) for number in range(400)]
TRAINING = [*LINES, *["=" * 64] * 20]


def byte_level() -> Tokenizer:
    """As Llama 3, Qwen and SmolLM2: words are divided first, nothing is added."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TRAINING, trainers.BpeTrainer(vocab_size=400, show_progress=False)
    )
    return tokenizer


def whole_text() -> Tokenizer:
    """As Gemma: one word from the first character to the last, and BOS before it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "<bos>"], show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        "<bos> $A", special_tokens=[("<bos>", 1)]
    )
    return tokenizer


def prefixed() -> Tokenizer:
    """As Llama 2 and T5: a blank is put before every text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def bracketed() -> Tokenizer:
    """As BERT: lower case, and special tokens on both sides."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


@pytest.fixture(scope="module", params=[byte_level, whole_text, prefixed, bracketed])
def tokenizer(request):
    bos = "<bos>" if request.param is whole_text else None
    return PreTrainedTokenizerFast(tokenizer_object=request.param(), bos_token=bos)


def counted_and_real(tokenizer, haystack: Haystack, variant, depth: int, before: str):
    """Tokens of a prompt around the whole haystack, counted at its seams and as a whole."""
    question = draw_question(variant, "words", "numbers", Random(depth))
    question = move_needle(question, question.values[0], depth)
    number = len(haystack.pieces)
    after = f"\nWhat is it?{question.answer_prefix}"
    parts = [before, *haystack.parts(question, number), after]
    prompt = before + haystack.with_needles(question, number) + after
    counted = count_prompt_tokens(tokenizer, haystack, prompt, parts)
    return counted, count_tokens(tokenizer, [prompt])[0]


@pytest.mark.parametrize("joiner", [LINE_BREAK, BLANK])
def test_count_at_seams_is_that_of_the_prompt(tokenizer, joiner, monkeypatch):
    haystack = Haystack(LINES, joiner, tokenized(tokenizer, joiner.join(LINES)))
    monkeypatch.setattr(counting, "count_tokens", None)  # nothing is tokenized as a whole
    for variant in (VARIANTS["single"], VARIANTS["multiquery"]):
        for depth in (0, 50, 100):
            for before in ("Read this.\n", "<bos>Read this. "):
                counted, real = counted_and_real(tokenizer, haystack, variant, depth, before)
                assert counted == real


@pytest.mark.parametrize("extra", range(2))
def test_count_without_agreement_is_of_the_whole_prompt(tokenizer, extra):
    """In a row of equal characters, the tokens depend on where it begins."""
    rows = ["=" * (7000 + extra), *LINES[:9], "=" * (7000 - extra)]
    haystack = Haystack(rows, LINE_BREAK, tokenized(tokenizer, LINE_BREAK.join(rows)))
    for depth in (0, 50, 100):
        counted, real = counted_and_real(tokenizer, haystack, VARIANTS["single"], depth, "Read:")
        assert counted == real
