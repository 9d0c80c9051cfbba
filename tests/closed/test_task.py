"""The task class inside lm-eval's own evaluator, with a model that answers from a table."""

import json
import math
import zlib
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.tasks import TaskManager

from leval_harness.results.lm_eval_samples import notes_of
from leval_tasks.closed.catalog import ENTRIES, SCORES, marks_in, task_named
from leval_tasks.closed.thinking import THINKING
from leval_tasks.common.data import SAMPLE
from leval_tasks.common.errors import ContextLengthError
from leval_tasks.statistics.by_document import clustered_stderr

SIX = [task.name for task in ENTRIES if task.in_group]


class Reader(LM):
    """Answers a request as it is told."""

    tokenizer_name = "reader"
    loglikelihood = loglikelihood_rolling = None

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        self.prompts, self.kwargs = zip(*(request.args for request in requests), strict=True)
        return [self.answer(request) for request in requests]

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool = True) -> str:
        return "".join(f"<|{m['role']}|>{m['content']}" for m in messages) + "<|assistant|>"

    def chat_template(self, chat_template: Any = False) -> str:
        return "template"


def gold(request: Any) -> str:
    """The reference in the form of a response."""
    answer = str(request.doc["gold"])
    if " [fact: " in answer:
        loyalty, fact = answer.rstrip("]").split(" [fact: ")
        return fact if request.idx else loyalty
    return answer


def uneven(request: Any) -> str:
    """Right in another share of each document's questions."""
    name = f"{request.doc['document_id']} {request.doc['question_id']}"
    return gold(request) if zlib.crc32(name.encode()) % 3 else "?"


@pytest.fixture(scope="module")
def manager_of(few_lm_eval_tasks_of_file: None) -> Any:
    """TaskManagers share one index."""
    made = TaskManager()

    def with_metadata(metadata: dict[str, Any]) -> TaskManager:
        made._factory._meta = metadata
        return made

    return with_metadata


@pytest.fixture
def evaluate(manager_of: Any, smollm2: Path) -> Any:
    def run(
        tasks: list[str],
        model: LM,
        chat: bool = False,
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        metadata = {"pretrained": str(smollm2), "data_dir": "sample", **settings}
        return simple_evaluate(
            model=model,
            tasks=tasks,
            task_manager=manager_of(metadata),
            apply_chat_template=chat,
            **{"gen_kwargs": "max_gen_toks=64", "bootstrap_iters": 0, **(options or {})},
        )

    return run


def test_group_over_the_sample(evaluate):
    results = evaluate(["leval_closed"], Reader(gold))
    for task in SIX:
        row = results["results"][task]
        figures = {key.partition(",")[0] for key in row if "," in key and "_stderr" not in key}
        assert figures == {*SCORES, *task_named(task).rule.parts}, "lm-eval's table shows scores"
        assert row["exact_match,none"] == 1.0, task
        assert row["exact_match_strict,none"] == 1.0
        logged = [notes_of(sample) for sample in results["samples"][task]]
        assert not any(each["unparsed"] + each["truncated"] for each in logged)
        marks = [marks_in(sample["filtered_resps"]) for sample in results["samples"][task]]
        assert all((each["right"], each["wrong"]) == (1.0, 0.0) for each in marks)
        assert row["exact_match_stderr,none"] == "N/A"  # all alike: unknown, not zero
        config = results["configs"][task]["metadata"]
        assert config["data"]["sample"]
        assert len(next(iter(config["data"]["files"].values()))) == 64
        assert results["versions"][task] == 1
    group = results["groups"]["leval_closed"]
    assert (group["exact_match,none"], group["exact_match_stderr,none"]) == (1.0, "N/A")


def test_group_is_the_unweighted_mean_with_its_standard_error(evaluate):
    results = evaluate(["leval_closed"], Reader(uneven))
    rows = [results["results"][task] for task in SIX]
    group = results["groups"]["leval_closed"]
    scores = [row["exact_match,none"] for row in rows]
    errors = [row["exact_match_stderr,none"] for row in rows]
    assert group["exact_match,none"] == pytest.approx(sum(scores) / 6)
    assert group["exact_match_stderr,none"] == pytest.approx(math.hypot(*errors) / 6)


def test_standard_errors_are_clustered_in_lm_evals_own_field(evaluate):
    names = ("leval_closed_toefl", "leval_closed_gsm", "leval_closed_codeu")
    results = evaluate([*names], Reader(uneven))
    for name, alone in zip(names, (False, True, True), strict=True):
        samples = results["samples"][name]
        items = [(each["doc"]["cluster"], each["exact_match"]) for each in samples]
        assert (len({cluster for cluster, _ in items}) == len(items)) == alone
        error = results["results"][name]["exact_match_stderr,none"]
        assert error == pytest.approx(clustered_stderr(items))


def test_num_docs_and_min_questions(evaluate):
    results = evaluate(
        ["leval_closed_toefl", "leval_closed_gsm"], Reader(gold), num_docs=1, min_questions=4
    )
    toefl, gsm = (results["results"][f"leval_closed_{key}"] for key in ("toefl", "gsm"))
    assert (toefl["sample_len"], gsm["sample_len"]) == (8, 4)
    assert toefl["exact_match_stderr,none"] == "N/A"  # of one document
    assert results["configs"]["leval_closed_toefl"]["metadata"]["partial"]


def test_samples_are_small_and_in_document_order(evaluate):
    results = evaluate(["leval_closed_sfiction"], Reader(gold))
    samples = results["samples"]["leval_closed_sfiction"]
    document = json.loads((SAMPLE / "sci_fi.jsonl").open().readline())["input"]
    order = [(int(s["doc"]["document_id"]), s["doc"]["question_id"]) for s in samples]
    assert order == sorted(order)
    for item in samples[:3]:
        text = json.dumps(item, ensure_ascii=False, default=str)
        probe = json.dumps(document[500:700], ensure_ascii=False)[1:-1]
        assert text.count(probe) == 1
        assert probe not in json.dumps(item["doc"], ensure_ascii=False)
        loyalty, factuality = item["target"].lower().rstrip("]").split(" [fact: ")
        assert item["filtered_resps"] == [[loyalty, "right"], [factuality]]


def test_cut_documents_are_told_and_share_their_prefix(evaluate, smollm2):
    from transformers import AutoTokenizer

    model = Reader(gold)
    results = evaluate(["leval_closed_quality"], model, context_length=1500, truncation="middle")
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    samples = results["samples"]["leval_closed_quality"]
    for item, prompt in zip(samples, model.prompts, strict=True):
        notes = notes_of(item)
        assert notes["truncated"] == 1.0
        assert notes["kept_tokens"] < notes["document_tokens"]
        tokens = item["doc"]["prompt"]["prompt_tokens"]
        assert tokens == len(tokenizer(prompt)["input_ids"]) <= 1500 - 64
    heads = {
        (item["doc"]["document_id"], prompt.split(" \nQuestion: ")[0])
        for item, prompt in zip(samples, model.prompts, strict=True)
    }
    assert len(heads) == len({document for document, _ in heads})
    prompt_record = results["configs"]["leval_closed_quality"]["metadata"]["prompt"]
    assert (prompt_record["context_length"], prompt_record["generated_tokens"]) == (1500, 64)


def test_skipped_documents_are_not_counted(evaluate, tmp_path):
    rows = [
        {"instructions": ["Q?", "R?"], "outputs": ["A", "B"], "input": text, "evaluation": "exam"}
        for text in ("word " * 100, "word " * 3000, "word " * 200)
    ]
    (tmp_path / "tpo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"data_dir": str(tmp_path), "truncation": "skip"}
    results = evaluate(["leval_closed_toefl"], Reader(gold), context_length=1000, **settings)
    samples = results["samples"]["leval_closed_toefl"]
    assert [s["doc"]["document_id"] for s in samples] == ["0", "0", "2", "2"]
    assert results["configs"]["leval_closed_toefl"]["metadata"]["skipped_documents"] == 1
    assert results["n-samples"]["leval_closed_toefl"]["effective"] == 4
    assert not any(notes_of(each)["truncated"] for each in samples)
    with pytest.raises(ContextLengthError, match="every document is longer"):
        evaluate(["leval_closed_toefl"], Reader(gold), context_length=250, **settings)


def test_chat_template_and_answer_length_reach_backend(evaluate):
    model = Reader(gold)
    options = {"gen_kwargs": "max_new_tokens=32"}  # one of lm-eval's names for it
    results = evaluate(["leval_closed_toefl"], model, chat=True, options=options)
    assert all(p.startswith("<|system|>Now you are given a very long") for p in model.prompts)
    assert all(p.endswith("<|assistant|>Answer:") for p in model.prompts)
    greedy = {"until": [], "do_sample": False, "temperature": 0.0, "max_gen_toks": 32}
    assert all(each == greedy for each in model.kwargs)
    record = results["configs"]["leval_closed_toefl"]["metadata"]["prompt"]
    assert (record["frame"], record["generated_tokens"]) == ("chat_template", 32)
    assert results["results"]["leval_closed_toefl"]["exact_match,none"] == 1.0


def test_thinking_is_removed_and_recorded(evaluate):
    def thinks(request: Any) -> str:
        return f"<think>A? B? C. D.</think>\n{gold(request)}"

    removed = evaluate(["leval_closed_toefl"], Reader(thinks))
    kept = evaluate(["leval_closed_toefl"], Reader(thinks), end_of_thinking="")
    for results, expected in ((removed, 1.0), (kept, 0.0)):
        score = results["results"]["leval_closed_toefl"]["exact_match,none"]
        assert (score == 1.0) == (expected == 1.0)
        samples = results["samples"]["leval_closed_toefl"]
        marks = [marks_in(each["filtered_resps"]) for each in samples]
        assert {each["thinking_removed"] for each in marks} == {expected}


class Thinker(Reader):
    """A model whose template opens its thinking, and which may remove it as lm-eval's models do."""

    def __init__(self, answer: Any, think_end_token: str | int | None, begin: str) -> None:
        super().__init__(answer)
        self.think_end_token, self.begin = think_end_token, begin

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool = True) -> str:
        return f"{super().apply_chat_template(messages)}{self.begin}\n"

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        self.removed = self.think_end_token
        responses = super().generate_until(requests)
        mark = self.think_end_token
        if mark == 2:  # SmolLM2's <|im_end|>, which decoding drops
            return [response.rpartition("<|im_end|>")[2].lstrip() for response in responses]
        stops = [options["until"] for options in self.kwargs]
        return [
            postprocess_generated_text(response, until, mark)
            for response, until in zip(responses, stops, strict=True)
        ]


def cut_in_odd_questions(end: str) -> Any:
    """Thoughts of 24 tokens at least, cut by the limit in every other question."""

    def answer(request: Any) -> str:
        thought = f"A? B? C? {gold(request)}" * 12
        cut = request.doc["question_id"] % 2
        return thought if cut else f"So.\n\nYes.{end}{gold(request)}"

    return answer


@pytest.mark.parametrize(
    ("end", "think_end_token", "settings", "options"),
    [
        ("</think>", None, {}, {}),
        ("</think>", "</think>", {}, {}),
        ("[/THINK]", None, {"end_of_thinking": "[/THINK]"}, {}),
        ("[/THINK]", "[/THINK]", {}, {}),
        ("</thought>", "</thought>", {}, {}),
        ("<|END_THINKING|>", "<|END_THINKING|>", {}, {}),
        # the backend removes it: the task's own mark is given, stop strings are, or decoding drops
        # it
        ("</think>", "</think>", {"end_of_thinking": "</think>"}, {}),
        ("</think>", "</think>", {}, {"until": ["\n\n"]}),
        ("<|im_end|>", 2, {}, {}),
    ],
)
def test_thinking_cut_is_no_answer(evaluate, end, think_end_token, settings, options):
    """Whoever removes the thinking, and by whatever mark."""
    begin = THINKING.get(end, "<think>")
    model = Thinker(cut_in_odd_questions(end), think_end_token, begin)
    results = evaluate(
        ["leval_closed_toefl"], model, chat=True,
        options={"gen_kwargs": {"max_gen_toks": 24, **options}}, **settings,
    )  # fmt: skip
    samples = results["samples"]["leval_closed_toefl"]
    unfinished = [notes_of(sample)["thinking_unfinished"] for sample in samples]
    assert unfinished == [sample["doc"]["question_id"] % 2 for sample in samples]
    assert [sample["exact_match"] for sample in samples] == [1 - cut for cut in unfinished]
    assert [notes_of(sample)["unparsed"] for sample in samples] == unfinished
    described = results["configs"]["leval_closed_toefl"]["metadata"]["prompt"]
    assert described["opens_thinking"] is True
    assert model.think_end_token == think_end_token, "other tasks need it"


@pytest.mark.parametrize(
    ("limit", "positions", "score"), [(1, (1.0, "N/A", "N/A"), 1.0), (4, (1.0, 1.0, 0.0), 0.75)]
)
def test_a_position_without_questions_has_no_number(evaluate, limit, positions, score):
    def not_the_third(request: Any) -> str:
        return "?" if request.doc["question_id"] == 2 else gold(request)

    options = {"limit": limit}
    results = evaluate(["leval_closed_topic_retrieval"], Reader(not_the_third), options=options)
    row = results["results"]["leval_closed_topic_retrieval"]
    assert (row["first,none"], row["second,none"], row["third,none"]) == positions
    assert row["exact_match,none"] == row["exact_match_strict,none"] == score
