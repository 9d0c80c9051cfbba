import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_harness.backends.prompt_trie import common_prefix, make_plan

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)
PROMPTS = st.lists(TOKENS, min_size=1, max_size=12)


def trie_nodes(prompts):
    return len({tuple(p[:n]) for p in prompts for n in range(1, len(p) + 1)})


def execute(plan, prompts):
    """Tokens computed and answers asked, by really keeping one path."""
    path, computed, asked, longest = [], 0, [], 0
    for step in plan.steps:
        source = prompts[step.members[0]]
        assert path[: step.start] == source[: step.start], "the cache holds what the step expects"
        del path[step.start :]
        path += source[step.start : step.length]
        computed += step.length - step.start
        longest = max(longest, len(path))
        for row in step.rows:
            assert prompts[row][: step.length] == path
            computed += len(prompts[row]) - step.length
            asked.append(row)
        for member in step.members:
            assert prompts[member][: step.length] == path
    return computed, asked, longest


@given(PROMPTS, st.integers(0, 1), st.sampled_from([1, 4, 100]), st.sampled_from([0.0, 0.3]))
def test_every_prompt_is_asked_once_on_its_own_prefix(prompts, reserve, max_suffix, slack):
    plan = make_plan(prompts, reserve=reserve, max_suffix=max_suffix, slack=slack)
    computed, asked, longest = execute(plan, prompts)
    assert sorted(asked) == list(range(len(prompts)))
    assert computed == plan.computed_tokens
    assert plan.unique_tokens == trie_nodes(prompts)
    assert plan.prompt_tokens == sum(map(len, prompts))
    assert longest <= max(map(len, prompts)), "one path bounds the cache"
    for step in plan.steps:
        assert all(len(prompts[row]) - step.length >= reserve for row in step.rows)


@given(PROMPTS)
def test_without_slack_or_reserve_each_node_is_computed_once(prompts):
    plan = make_plan(prompts, reserve=0, slack=0.0)
    assert plan.computed_tokens == trie_nodes(prompts)


@given(PROMPTS, st.floats(0, 1))
def test_slack_bounds_what_is_computed_twice(prompts, slack):
    plan = make_plan(prompts, reserve=0, slack=slack)
    assert plan.computed_tokens <= trie_nodes(prompts) * (1 + slack)


@given(TOKENS, TOKENS)
def test_common_prefix_counts_equal_leading_tokens(a, b):
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    assert common_prefix(a, b) == (min(len(a), len(b)) if expected is None else expected)


def test_questions_of_a_document_form_one_batch_though_they_begin_alike():
    document = list(range(1000, 2000))
    prompts = [[*document, 7, 8, n] for n in range(4)] + [[*document, 9, n] for n in range(4)]
    plan = make_plan(prompts)
    assert [len(step.rows) for step in plan.steps] == [8]


def test_a_long_own_part_is_read_in_chunks_not_in_a_batch():
    shared = list(range(50))
    prompts = [[*shared, 60], [*shared, *range(100, 200)]]
    plan = make_plan(prompts, max_suffix=10, slack=0.0)
    assert [(step.length, step.rows) for step in plan.steps] == [(50, (0,)), (149, (1,))]


def test_deeply_nested_prompts_need_no_recursion():
    prompts = [[1] * n for n in range(1, 3000)]
    assert make_plan(prompts, reserve=0, slack=0.0).computed_tokens == 2999


def test_an_empty_prompt_is_refused_by_number():
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        make_plan([[1], []])


@pytest.mark.parametrize("task", ["coursera", "gsm100", "quality", "sci_fi", "tpo"])
def test_whole_tasks_are_read_almost_once(real_data, task):
    lines = (real_data / "leval" / "closed" / f"{task}.jsonl").read_text(encoding="utf-8")
    prompts, words = [], {}
    for record in map(json.loads, lines.splitlines()):
        document = record["input"].split()
        for question in record["instructions"]:
            text = ["Document", "is", *document, "Question:", *question.split(), "Answer:"]
            prompts.append([words.setdefault(word, len(words)) for word in text])
    plan = make_plan(prompts)
    assert plan.computed_tokens <= 1.02 * plan.unique_tokens
    assert plan.prompt_tokens / plan.computed_tokens > 8
