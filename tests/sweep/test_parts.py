"""How a run is divided, and what several workers of one run make of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from leval_harness.sweep.claims import Folder
from leval_harness.sweep.heartbeat import Heartbeat
from leval_harness.sweep.parts import MOST_PARTS, MOST_REQUESTS, divide
from leval_harness.sweep.parts_of_run import PartsOfOthersError, PartsOfRun

GREEDY = {"until": ["\n"], "do_sample": False, "temperature": 0.0}


def windows(documents: int, tokens: int, of_each: int = 1) -> list[Instance]:
    """Requests for the loss of windows."""
    requests = []
    for document in range(documents):
        for _ in range(of_each):
            doc = {"document_id": f"d-{document}"}
            request = Instance("token_logprobs", doc, ("text",), len(requests), ("t", document, 1))
            request.token_parts = (None, [1], [1] * (tokens - 1))  # type: ignore[attr-defined]
            requests.append(request)
    return requests


def questions(
    documents: int, of_each: int, characters: int = 40, options: Any = GREEDY
) -> list[Instance]:
    """Requests for generated answers."""
    requests = []
    prompt = "x" * characters
    for document in range(documents):
        for _ in range(of_each):
            doc = {"document_id": f"d-{document}"}
            arguments = (prompt, dict(options))
            requests.append(
                Instance("generate_until", doc, arguments, len(requests), ("t", document, 1))
            )
    return requests


def grid(places: int, characters: int) -> list[Instance]:
    """Prompts at so many places of one haystack."""
    requests = questions(places, 1, characters)
    for request in requests:
        request.shared_text = "retrieval_niah_single"  # type: ignore[attr-defined]
    return requests


@pytest.mark.parametrize(
    ("requests", "backend", "sizes"),
    [
        (grid(45, 48_000), "hf-long", [45]),
        (grid(120, 48_000), "vllm-long", [64, 56]),
        (windows(8, 512), "hf-long", [1] * 8),
        (windows(20, 512), "hf", [2] * 10),
        (windows(20, 12_000, 3), "hf-long", [3] * 20),
        (windows(8, 512), "vllm-long", [8]),
        (windows(8, 131_072), "vllm-long", [1] * 8),
        (questions(8, 5), "hf-long", [5] * 8),
        (questions(8, 5), "vllm", [40]),
        (questions(8, 5, 400_000), "vllm-long", [5] * 8),
        (questions(3, 100), "hf", [64, 36] * 3),
        (questions(500, 1), "hf", [64] * 7 + [52]),
        (questions(500, 1), "vllm", [64] * 7 + [52]),
        (questions(8, 1, 400_000), "local-completions", [1] * 8),
        (windows(12, 131_072), "local-completions", [8, 4]),
        (windows(3, 512, 40), "local-completions", [40] * 3),
        ([], "hf", []),
    ],
)
def test_parts_follow_from_requests(
    requests: Sequence[Instance], backend: str, sizes: list[int]
) -> None:
    kinds = {request.request_type: requests for request in requests}
    parts = divide(kinds, backend)
    assert [sum(len(portion.requests) for portion in part) for part in parts] == sizes
    places = [at for part in parts for portion in part for at, _ in portion.requests]
    assert places == list(range(len(requests)))


def test_parts_are_few_enough_to_have_claims() -> None:
    parts = divide({"generate_until": questions(6500, 1, 400_000)}, "vllm")
    assert len(parts) <= MOST_PARTS
    assert max(len(portion.requests) for part in parts for portion in part) <= MOST_REQUESTS


@pytest.mark.parametrize("options", [{"do_sample": True}, {"temperature": 0.7}])
def test_sampled_answers_are_not_divided(options: dict[str, Any]) -> None:
    """What is drawn depends on all that was drawn before."""
    assert len(divide({"generate_until": questions(8, 5, options=options)}, "hf-long")) == 1


def worker(folder: Folder, part: int) -> PartsOfRun:
    claim = folder.claim("run", part)
    assert claim is not None
    heartbeat = Heartbeat(folder, folder.path / "log.txt")
    heartbeat.begin(claim)
    return PartsOfRun(heartbeat, 3, claim.attempt)


def test_parts_are_taken_by_whoever_is_free(tmp_path: Path) -> None:
    """The worker that finishes the last part has the claim on the run, and only it."""
    folder = Folder(tmp_path)
    first, second = worker(folder, 0), worker(folder, 1)
    of_first, of_second = iter(first), iter(second)
    assert (next(of_first), next(of_second)) == (0, 1)
    first.finish(0, {})
    assert next(of_first) == 2
    assert folder.state("run").free_parts() == []
    second.finish(1, {})
    with pytest.raises(PartsOfOthersError):
        next(of_second)
    first.finish(2, {})
    assert list(of_first) == []
    assert first.claim.part is None
    assert folder.claim("run") is None


def test_parts_left_by_a_dead_worker_are_computed_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    dead = worker(folder, 0)
    parts = iter(dead)
    next(parts)
    dead.finish(0, {"answers": 1})
    next(parts)
    folder.release(dead.claim.path)  # as the sweep does when its process is gone
    assert folder.state("run").free_parts() == [1, 2]
    later = worker(folder, 2)
    computed = []
    for part in later:
        computed.append(part)
        later.finish(part, {"answers": 1})
    assert computed == [2, 1]
    assert folder.counts_of_others("run", later.attempt) == [{"answers": 1}]


def test_part_beyond_the_last_is_left_for_another(tmp_path: Path) -> None:
    """Fewer parts than expected: a worker that claimed one of those goes on to one that exists."""
    folder = Folder(tmp_path)
    late = worker(folder, 7)
    assert next(iter(late)) == 0


def test_complete_run_without_owner_is_put_together(tmp_path: Path) -> None:
    """Its last worker died before it wrote the results."""
    folder = Folder(tmp_path)
    folder.begin_parts("run", 3)
    for part in range(3):
        folder.finish_part("run", part, "run.dead", {})
    assert folder.state("run").free_parts() == [0]
    last = worker(folder, 0)
    assert list(last) == []
    assert last.claim.part is None


def test_worker_that_dies_beside_others_leaves_them_the_run(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    claim = folder.claim("run", 1)
    assert claim is not None
    assert not folder.leave_to_others("run", "killed"), "nobody else computes it"
    owner = json.loads(claim.path.read_text())
    claim.path.write_text(json.dumps({**owner, "host": "elsewhere"}))
    assert folder.leave_to_others("run", "killed")
    assert folder.state("run").free_parts(8) == [], "no further worker joins"
    folder.release(claim.path)
    assert folder.state("run").free_parts(8) == list(range(8))
