"""MRCR: published grading and bins, files of its schema, prompts and clusters."""

import difflib
import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from mrcr_files import conversation, rows, write_files

from leval_tasks.common import data
from leval_tasks.common.errors import ContextLengthError, DataError, HubUnreachableError
from leval_tasks.common.model import find_tokenizer
from leval_tasks.mrcr.data import REVISION
from leval_tasks.mrcr.scoring import BIN_EDGES, bin_of, score
from leval_tasks.mrcr.task import MRCRTask

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def mrcr_folder(tmp_path: Path) -> Path:
    return write_files(tmp_path)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer") / "chat"
    shutil.copytree(Path(__file__).parents[1] / "golden" / "tokenizer", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


@pytest.fixture
def task_of(mrcr_folder, tokenizer_folder):
    def make(answer_tokens: int = 64, **settings) -> MRCRTask:
        run = {"needles": 2, "tokenizer": tokenizer_folder, "data_dir": str(mrcr_folder)}
        run |= {"bin_tokenizer": "model", "context_length": 2048, **settings}
        return MRCRTask(
            {
                "task": "mrcr_2needle",
                "metadata": run,
                "generation_kwargs": {"max_gen_toks": answer_tokens},
            }
        )

    return make


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("aYoThe poem.", 1.0),
        ("The poem.", 0.0),
        (" aYoThe poem.", 0.0),
        ("", 0.0),
        ("aYo", 0.0),
        ("aYoThe", 2 * 3 / (3 + 9)),
        ("aYoaYoThe poem.", 2 * 9 / (12 + 9)),
        ("aYo The poem.\n", 2 * 9 / (11 + 9)),
        ("ayoThe poem.", 0.0),
        ("aYo\u200bThe poem.", 2 * 9 / (10 + 9)),
        ("**aYo**The poem.", 0.0),
    ],
)
def test_score_needs_the_prefix_and_compares_the_rest(response, expected):
    assert score(response, "aYoThe poem.", "aYo") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("response", "expected"),
    [("xüThé 🌙", 1.0), ("xüThe\u0301 🌙", 2 * 4 / (6 + 5)), ("xu\u0308Thé 🌙", 0.0)],
)
def test_score_compares_code_points(response, expected):
    """An accent of its own is another character, as in the published grading."""
    assert score(response, "xüThé 🌙", "xü") == pytest.approx(expected)


def test_score_is_that_of_the_sequence_matcher():
    answer = "The moon is a lantern, the tapir its moth. " * 20  # long enough for its heuristics
    response = answer.replace("moth", "friend")[:700]
    expected = difflib.SequenceMatcher(None, response, answer).ratio()
    assert score("xy" + response, "xy" + answer, "xy") == expected


def test_bins_are_those_of_the_published_results():
    edges = list(BIN_EDGES)
    assert [bin_of(tokens) for tokens in edges] == [8192, *edges[1:]]
    assert [bin_of(edge + 1) for edge in edges[:-1]] == edges[1:]
    assert bin_of(4095) is None
    assert bin_of(1048577) is None


def test_prompt_is_the_chat_in_the_models_template(task_of):
    task = task_of()
    tokenizer = find_tokenizer(task._metadata)
    task.prepare(partial(tokenizer.apply_chat_template, tokenize=False))
    docs = task.test_docs()
    assert len(docs) == 4
    for doc, row in zip(docs, rows(), strict=True):
        (request,) = task.construct_requests(doc, "", metadata=(None, 0, 1))
        prompt, arguments = request.args
        assert prompt.startswith("<|user|>write a poem about ")
        assert prompt.count("<|user|>") == 5
        question = json.loads(row["prompt"])[-1]["content"]
        assert prompt.endswith(f"<|user|>{question}\n<|assistant|>")
        assert doc["prompt"]["prompt_tokens"] == len(tokenizer(prompt)["input_ids"])
        assert arguments["max_gen_toks"] == 64
        assert row["prompt"] not in str(doc), "conversations are not logged twice"
    assert task.config.metadata["prompt"]["frame"] == "chat_template"


def test_questions_share_the_beginning_of_their_conversation(task_of):
    task = task_of()
    task.prepare()
    prompts = [
        task.construct_requests(doc, "", metadata=(None, 0, 1))[0].args[0]
        for doc in task.test_docs()
    ]
    clusters = [doc["cluster"] for doc in task.test_docs()]
    assert clusters[0] == clusters[1] != clusters[2] == clusters[3]
    shared = "\n\n".join(
        f"{message['role'].title()}: {message['content']}" for message in conversation("tapirs")
    )
    assert all(prompt.startswith(shared) for prompt in prompts[:2])


def test_answers_are_scored_in_their_bin(task_of):
    task = task_of()
    task.prepare()
    first, second, *_ = task.test_docs()

    def scores_of(doc):
        scores = task.process_results(doc, [first["gold"]])
        assert set(scores) == set(task.aggregation()) == set(task.higher_is_better())
        return {name: scores[name] for name in task.metric_names() if scores[name] is not None}

    assert scores_of(first) == {"mrcr": 1.0}
    assert scores_of(second) == {"mrcr": 0.0}
    assert scores_of({**first, "bin": 8192}) == {"mrcr": 1.0, "mrcr@8192": 1.0}


def test_conversations_that_do_not_fit_are_left_out(task_of):
    lengths = {doc["n_chars"]: None for doc in task_of().test_docs()}
    assert len(lengths) == 2
    task = task_of(num_samples=3)
    assert len(task.test_docs()) == 3
    with pytest.raises(ContextLengthError, match="no conversation of mrcr_2needle fits into 80"):
        task_of(context_length=80, answer_tokens=16).prepare()
    tokenizer = find_tokenizer(task._metadata)
    longest = 0
    for row in rows():
        texts = [message["content"] for message in json.loads(row["prompt"])]
        tokens = tokenizer(texts, add_special_tokens=False)["input_ids"]
        longest = max(longest, sum(map(len, tokens)))
    task = task_of(context_length=longest + 16, answer_tokens=16)
    assert len(task.test_docs()) == 4, "without the template all fit"
    task.prepare(partial(tokenizer.apply_chat_template, tokenize=False))
    assert len(task.test_docs()) < 4, "with it the longest do not"


def test_missing_files_are_named_with_what_to_do(task_of, mrcr_folder, monkeypatch, tmp_path):
    with pytest.raises(DataError, match=r"\(data_dir\) has no 4needle_0.parquet") as missing:
        task_of(needles=4)
    assert "hf download openai/mrcr --repo-type dataset --revision f4c69fae" in str(missing.value)
    flat = tmp_path / "flat"
    shutil.copytree(mrcr_folder / "2needle", flat)
    assert len(task_of(data_dir=str(flat)).test_docs()) == 4
    (flat / "2needle_1.parquet").write_text("no parquet")
    with pytest.raises(DataError, match=r"2needle_1\.parquet is not a file of openai/mrcr"):
        task_of(data_dir=str(flat)).test_docs()
    monkeypatch.setattr(data, "why_hub_is_unreachable", lambda: "no route to host")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(HubUnreachableError, match=r"cannot be fetched \(no route to host\)"):
        task_of(data_dir=None)


def test_files_are_read_as_parquet_and_as_json_lines(task_of, tmp_path):
    docs = {}
    for form in ("parquet", "jsonl"):
        task = task_of(data_dir=str(write_files(tmp_path / form, form)))
        docs[form] = task.test_docs()
        assert list(task.config.metadata["data"]["files"]) == [
            f"2needle_{part}.{form}" for part in (0, 1)
        ]
    assert docs["parquet"] == docs["jsonl"]
    assert [doc["gold"] for doc in docs["jsonl"]] == [row["answer"] for row in rows()]
    broken = tmp_path / "jsonl" / "mrcr" / "2needle" / "2needle_1.jsonl"
    broken.write_text('{"prompt": "[]"}\n')
    with pytest.raises(
        DataError, match=r"2needle_1\.jsonl is not a file of openai/mrcr: .*n_chars"
    ):
        task_of(data_dir=str(broken.parent)).test_docs()


def test_hub_files_are_read_at_their_revision_without_network(
    task_of, mrcr_folder, monkeypatch, tmp_path
):
    cache = tmp_path / "cache"
    snapshot = cache / "datasets--openai--mrcr" / "snapshots" / REVISION
    shutil.copytree(mrcr_folder / "2needle", snapshot / "2needle")
    monkeypatch.setattr(data, "why_hub_is_unreachable", lambda: "no route to host")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.delenv("LEVAL_DATA_DIR", raising=False)
    task = task_of(data_dir=None)
    assert task.test_docs() == task_of().test_docs()
    assert task.config.metadata["data"]["revision"] == REVISION
    (snapshot / "2needle" / "2needle_1.parquet").unlink()
    with pytest.raises(HubUnreachableError, match="2needle_1"):
        task_of(data_dir=None)


def test_bins_are_by_the_tokens_of_the_encoding(task_of, monkeypatch, tmp_path):
    """An encoding whose tokens are bytes stands for the published one."""
    import tiktoken

    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", {"o200k_base": encoding}.__getitem__)
    row = rows()[0]
    content = "".join(message["content"] for message in json.loads(row["prompt"]))
    without = len(content.encode()) + len(row["answer"].encode())
    file = tmp_path / "edges" / "2needle_0.jsonl"
    file.parent.mkdir()
    with file.open("w") as lines:
        for length in (8192, 8193, 16384):
            messages = json.loads(row["prompt"])
            messages[0]["content"] += "<|endoftext|>" + "x" * (length - without - 13)
            lines.write(json.dumps(row | {"prompt": json.dumps(messages)}) + "\n")
    settings = {"data_dir": str(file.parent), "bin_tokenizer": "o200k_base"}
    docs = task_of(context_length=100_000, **settings).test_docs()
    assert [doc["bin"] for doc in docs] == [8192, 16384, 16384]


def test_bins_without_the_published_encoding_are_refused(task_of, monkeypatch):
    import tiktoken

    def unreachable(name):
        raise OSError(f"no {name} here")

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)
    with pytest.raises(DataError, match=r"bin_tokenizer: model.*no o200k_base here"):
        task_of(bin_tokenizer="o200k_base").test_docs()
