"""The task class inside lm-eval's own evaluator, with a model that answers from a table."""

import json
import math
import zlib
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from leval_harness.lm_eval_samples import notes_of
from leval_tasks.closed.catalog import task_named
from leval_tasks.closed.definition import SCORES
from leval_tasks.closed.task import LEvalClosedTask
from leval_tasks.errors import ContextLengthError, TaskError
from resonance_vllm.errors import SettingError

SIX = [
    "leval_closed_coursera",
    "leval_closed_gsm",
    "leval_closed_quality",
    "leval_closed_toefl",
    "leval_closed_codeu",
    "leval_closed_sfiction",
]


class Reader(LM):
    """Answers with the reference for every question whose number is even, else with nonsense."""

    tokenizer_name = "reader"

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer
        self.prompts: list[str] = []

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        self.prompts = [str(request.args[0]) for request in requests]
        assert all(request.args[1]["until"] == [] for request in requests)
        return [self.answer(request) for request in requests]

    def loglikelihood(self, requests: Any) -> Any:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: Any) -> Any:
        raise NotImplementedError

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
def manager_of() -> Any:
    """TaskManagers share one index, which takes seconds to build."""
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
        assert all(each["right"] == 1.0 for each in logged)
        assert not any(each["unparsed"] + each["truncated"] + each["wrong"] for each in logged)
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


def test_standard_error_is_clustered_in_lm_evals_own_field(evaluate):
    def first_document(request: Any) -> str:
        return gold(request) if request.doc["document_id"] == "0" else "D?"

    results = evaluate(["leval_closed_toefl"], Reader(first_document))
    row, samples = (
        results["results"]["leval_closed_toefl"],
        results["samples"]["leval_closed_toefl"],
    )
    documents: dict[str, list[float]] = {}
    for item in samples:
        documents.setdefault(item["doc"]["cluster"], []).append(item["exact_match"])
    mean = row["exact_match,none"]
    n = len(samples)
    residuals = {key: sum(x - mean for x in scores) for key, scores in documents.items()}
    squares = sum(e**2 / (1 - len(documents[key]) / n) for key, e in residuals.items())
    expected = math.sqrt(squares) / n
    naive = math.sqrt(mean * (1 - mean) / (n - 1))
    assert row["exact_match_stderr,none"] == pytest.approx(expected)
    assert row["exact_match_stderr,none"] > 1.2 * naive


def test_gsm_and_codeu_questions_are_their_own_clusters(evaluate):
    results = evaluate(["leval_closed_gsm", "leval_closed_codeu"], Reader(gold))
    for task in ("leval_closed_gsm", "leval_closed_codeu"):
        clusters = {item["doc"]["cluster"] for item in results["samples"][task]}
        assert len(clusters) == len(results["samples"][task])


def test_num_docs_keeps_all_questions_and_min_questions_adds_documents(evaluate):
    results = evaluate(
        ["leval_closed_toefl", "leval_closed_gsm"], Reader(gold), num_docs=1, min_questions=4
    )
    toefl, gsm = (results["results"][f"leval_closed_{key}"] for key in ("toefl", "gsm"))
    assert (toefl["sample_len"], gsm["sample_len"]) == (8, 4)
    assert toefl["exact_match_stderr,none"] == "N/A"  # of one document
    assert results["configs"]["leval_closed_toefl"]["metadata"]["partial"]


def test_samples_are_small_and_in_document_order(evaluate):
    model = Reader(gold)
    results = evaluate(["leval_closed_sfiction"], model)
    samples = results["samples"]["leval_closed_sfiction"]
    document = task(name="leval_closed_sfiction").file.records[0].document
    order = [(int(s["doc"]["document_id"]), s["doc"]["question_id"]) for s in samples]
    assert order == sorted(order)
    for item in samples[:3]:
        text = json.dumps(item, ensure_ascii=False, default=str)
        probe = json.dumps(document[500:700], ensure_ascii=False)[1:-1]
        assert text.count(probe) == 1
        assert probe not in json.dumps(item["doc"], ensure_ascii=False)
        loyalty, factuality = (gold_part.lower() for gold_part in _parts(item))
        assert item["filtered_resps"] == [[loyalty, "right"], [factuality]]


def _parts(item: dict[str, Any]) -> list[str]:
    return str(item["target"]).rstrip("]").split(" [fact: ")


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
        assert notes["prompt_tokens"] == len(tokenizer(prompt)["input_ids"]) <= 1500 - 64
        assert prompt.endswith(item["doc"]["question"] + prompt.split(item["doc"]["question"])[1])
    same = [
        p for s, p in zip(samples, model.prompts, strict=True) if s["doc"]["document_id"] == "0"
    ]
    heads = {p.split(" \nQuestion: ")[0] for p in same}
    assert len(heads) == 1
    prompt_record = results["configs"]["leval_closed_quality"]["metadata"]["prompt"]
    assert (prompt_record["context_length"], prompt_record["generated_tokens"]) == (1500, 64)


def test_codeu_is_cut_from_the_left_by_default(evaluate):
    results = evaluate(["leval_closed_codeu"], Reader(gold), context_length=1500)
    prompt = results["samples"]["leval_closed_codeu"][0]["doc"]["prompt"]
    assert prompt["kept_head"] == 0
    assert prompt["kept_tail"] > 0


def test_skip_leaves_documents_out_of_the_denominator(evaluate, tmp_path):
    rows = [
        {"instructions": ["Q?", "R?"], "outputs": ["A", "B"], "input": text, "evaluation": "exam"}
        for text in ("word " * 100, "word " * 3000, "word " * 200)
    ]
    (tmp_path / "tpo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"data_dir": str(tmp_path), "own_data": True, "truncation": "skip"}
    results = evaluate(["leval_closed_toefl"], Reader(gold), context_length=1000, **settings)
    samples = results["samples"]["leval_closed_toefl"]
    assert [s["doc"]["document_id"] for s in samples] == ["0", "0", "2", "2"]
    assert results["configs"]["leval_closed_toefl"]["metadata"]["skipped_documents"] == 1
    assert results["n-samples"]["leval_closed_toefl"]["effective"] == 4
    assert not any(notes_of(each)["truncated"] for each in samples)
    with pytest.raises(ContextLengthError, match="every document is longer"):
        evaluate(["leval_closed_toefl"], Reader(gold), context_length=250, **settings)


def test_chat_template_of_the_backend(evaluate):
    model = Reader(gold)
    results = evaluate(["leval_closed_toefl"], model, chat=True)
    assert all(p.startswith("<|system|>Now you are given a very long") for p in model.prompts)
    assert all(p.endswith("<|assistant|>Answer:") for p in model.prompts)
    record = results["configs"]["leval_closed_toefl"]["metadata"]["prompt"]
    assert record["system_role"] == "system"
    assert record["answer_prefix"] == "assistant"
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
        assert {notes_of(each)["thinking_removed"] for each in samples} == {expected}


def test_thinking_cut_before_its_end_is_counted(evaluate):
    def thinks(request: Any) -> str:
        odd = request.doc["question_id"] % 2
        return f"A? B? C? {gold(request)}" if odd else f"So.</think>{gold(request)}"

    class Thinker(Reader):
        def apply_chat_template(self, messages: Any, add_generation_prompt: bool = True) -> str:
            return super().apply_chat_template(messages) + "<think>\n"

    result = evaluate(["leval_closed_toefl"], Thinker(thinks), chat=True)
    samples = result["samples"]["leval_closed_toefl"]
    unfinished = [notes_of(each)["thinking_unfinished"] for each in samples]
    assert unfinished == [each["doc"]["question_id"] % 2 for each in samples]
    assert [each["exact_match"] for each in samples] == [1 - each for each in unfinished]
    described = result["configs"]["leval_closed_toefl"]["metadata"]["prompt"]
    assert described["opens_thinking"] is True
    removed = evaluate(
        ["leval_closed_toefl"], Thinker(thinks), chat=True, think_end_token="</think>"
    )  # by the backend: an answer without a mark says nothing then
    samples = removed["samples"]["leval_closed_toefl"]
    assert not any(notes_of(each)["thinking_unfinished"] for each in samples)


@pytest.mark.parametrize(
    ("limit", "positions", "score"),
    [(1, (1.0, "N/A", "N/A"), 1.0), (2, (1.0, 1.0, "N/A"), 1.0), (4, (1.0, 1.0, 0.0), 2 / 3)],
)
def test_a_position_without_questions_has_no_number(evaluate, limit, positions, score):
    def not_the_third(request: Any) -> str:
        return "?" if request.doc["question_id"] == 2 else gold(request)

    options = {"limit": limit}
    results = evaluate(["leval_closed_topic_retrieval"], Reader(not_the_third), options=options)
    row = results["results"]["leval_closed_topic_retrieval"]
    assert (row["first,none"], row["second,none"], row["third,none"]) == positions
    assert row["exact_match,none"] == pytest.approx(score)
    assert row["exact_match_strict,none"] == pytest.approx(score)


@pytest.mark.parametrize("name", ["max_gen_toks", "max_new_tokens", "max_completion_tokens"])
def test_every_name_of_the_length_of_answers_counts(evaluate, name):
    class Noting(Reader):
        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            self.kwargs = [request.args[1] for request in requests]
            return super().generate_until(requests, disable_tqdm)

    model = Noting(gold)
    results = evaluate(
        ["leval_closed_toefl"], model, options={"gen_kwargs": f"{name}=32"}, num_docs=1
    )
    lengths = [{k: v for k, v in each.items() if "max_" in k} for each in model.kwargs]
    assert lengths == [{"max_gen_toks": 32}] * len(lengths)
    config = results["configs"]["leval_closed_toefl"]
    assert config["metadata"]["prompt"]["generated_tokens"] == 32
    assert config["generation_kwargs"]["max_gen_toks"] == 32


def test_two_lengths_of_answers_are_refused(evaluate):
    options = {"gen_kwargs": "max_gen_toks=16,max_new_tokens=32"}
    with pytest.raises(SettingError, match="max_new_tokens: 32 is not allowed; allowed: 16"):
        evaluate(["leval_closed_toefl"], Reader(gold), options=options, num_docs=1)


def test_answers_alone_are_kept_and_no_score_is_made_of_them(evaluate, tmp_path):
    from lm_eval.loggers import EvaluationTracker

    from leval_harness.results import load_results

    tracker = EvaluationTracker(output_path=str(tmp_path))
    options = {"predict_only": True, "evaluation_tracker": tracker}
    results = evaluate(["leval_closed_toefl"], Reader(gold), options=options, num_docs=1)
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    tracker.save_results_samples(
        task_name="leval_closed_toefl", samples=samples["leval_closed_toefl"]
    )
    scores = load_results(tmp_path).scores
    assert scores["status"].tolist() == ["unscored"]
    assert scores["value"].isna().all()


def task(name: str = "leval_closed_toefl", **metadata: Any) -> LEvalClosedTask:
    return LEvalClosedTask({"task": name, "metadata": {"data_dir": "sample", **metadata}})


def test_no_tokenizer_and_too_small_a_context(smollm2):
    with pytest.raises(TaskError, match="none is known to the task"):
        task().build_all_requests(limit=None)
    with pytest.raises(ContextLengthError, match="instructions and question alone take"):
        task(pretrained=str(smollm2), context_length=600).build_all_requests(limit=None)
