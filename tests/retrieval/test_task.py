"""The needle grid as a task: lengths, places, shared beginnings, scores and refusals."""

import json
from itertools import pairwise

import pytest

from leval_tasks.common.errors import ContextLengthError, DataError
from leval_tasks.retrieval.needles import VARIANTS
from resonance_vllm.common.errors import SettingError


def prompts_of(task) -> dict[str, str]:
    """Prompt of each sample, by its place and number."""
    return {
        doc["cluster"]: task.construct_requests(doc, "", metadata=(None, 0, 1))[0].args[0]
        for doc in task.test_docs()
    }


@pytest.mark.parametrize("haystack", ["pysource", "pydocs", "noise", "needles"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_prompts_fill_their_lengths(needle_task, variant, haystack):
    task = needle_task(variant, haystack=haystack)
    assert len(task.test_docs()) == 2 * 3 * 2
    encode = task._tokenizer
    for doc, prompt in zip(task.test_docs(), prompts_of(task).values(), strict=True):
        tokens = len(encode(prompt)["input_ids"])
        assert doc["prompt"]["prompt_tokens"] == tokens
        assert doc["length"] - 160 < tokens <= doc["length"] - 16
        assert prompt.count(f"is: {doc['gold']}.") == 1
        assert doc["gold"] in doc["values"]
        share = prompt.index(doc["gold"]) / len(prompt)
        assert abs(share - doc["depth"] / 100) < 0.35


def test_prompts_begin_alike_up_to_the_needle(needle_task):
    """Of two lengths the longer one goes on where the shorter one ends; samples differ by needles."""
    prompts = prompts_of(needle_task())
    for depth in (0, 50, 100):
        for first, second in pairwise(
            f"{length}-{depth}-{n}" for length in (512, 1024) for n in (0, 1)
        ):
            shared = 0
            while prompts[first][shared] == prompts[second][shared]:
                shared += 1
            needle = min(prompts[key].index("One of the special") for key in (first, second))
            assert shared >= needle
    short = prompts["512-0-0"].partition("\nWhat is")[0]
    assert prompts["1024-0-0"].startswith(short)


def test_seed_draws_other_needles(needle_task):
    golds = {seed: [doc["gold"] for doc in needle_task(seed=seed).test_docs()] for seed in (0, 1)}
    assert golds[0] == [doc["gold"] for doc in needle_task().test_docs()]
    assert not set(golds[0]) & set(golds[1])


def test_answers_become_places_and_intervals(needle_task):
    task = needle_task("multivalue", depths=[0, 100])
    values = {}
    for doc in task.test_docs():
        answer = ", ".join(doc["values"])
        if (doc["length"], doc["depth"]) == (1024, 0):
            answer = answer.replace(doc["gold"], "")
        for name, score in task.process_results(doc, [answer]).items():
            values.setdefault(name, []).append(score)
    functions = task.aggregation()
    figures = {name: functions[name](scores) for name, scores in values.items()}
    assert {len(scores) for scores in values.values()} == {8}, "lm-eval counts those of the last"
    errors = {name: figures.pop(f"{name}_stderr") for name in task.metric_names()}
    assert errors["accuracy@1024"] == pytest.approx((1 / 3) ** 0.5 / 2)
    assert errors["accuracy@512"] == "N/A", "all are equal"
    assert figures == {
        "accuracy@512": 1.0, "depth_0@512": 1.0, "depth_100@512": 1.0, "ruler_score@512": 1.0,
        "accuracy@1024": 0.5, "depth_0@1024": 0.0, "depth_100@1024": 1.0, "ruler_score@1024": 0.875,
    }  # fmt: skip
    assert set(figures) == set(task.metric_names())
    assert set(functions) == set(task.higher_is_better())
    metadata = json.loads(json.dumps(task.config.metadata))
    assert metadata["places"]["1024"]["0"] == pytest.approx(
        {"right": 0, "asked": 2, "low": 0.0, "high": 0.84189}, abs=1e-5
    )
    assert metadata["settings"]["seed"] == 0


def test_own_file_and_corpus_are_the_haystack(needle_task, tmp_path):
    rows = [{"text": f"Fact {n} is known. " * 200} for n in range(5)]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "essays.jsonl").write_bytes(file.read_bytes())
    of_file = needle_task(file=str(file))
    of_corpus = needle_task(haystack="essays", data_dir=str(tmp_path))
    assert prompts_of(of_file) == prompts_of(of_corpus)
    assert "Fact 0 is known." in prompts_of(of_file)["512-0-0"]
    assert list(of_file.config.metadata["data"]["files"]) == ["mine.jsonl"]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"context_length": 64}, ContextLengthError, "context_length: 64 is too small for"),
        ({"haystack": "essays", "data_dir": "sample"}, DataError, "has no essays.jsonl"),
        ({"haystack": "pydocs", "context_length": 10**7}, DataError, "haystack: pydocs has"),
        ({"haystack": "noise", "file": "a.jsonl"}, SettingError, "give either file or haystack"),
        ({"depths": [0, 101]}, SettingError, "depths.1: Input should be less than or equal to 100"),
        ({"depths": []}, SettingError, "depths: "),
        ({"value_type": "number"}, SettingError, "value_type: Input should be 'numbers'"),
        ({"num_sample": 3}, SettingError, "num_sample: unknown setting; did you mean"),
    ],
)
def test_what_cannot_be_made_is_refused(needle_task, settings, error, message):
    with pytest.raises(error) as refused:
        needle_task(**settings)
    assert message in str(refused.value)
