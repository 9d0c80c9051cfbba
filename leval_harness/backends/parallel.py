"""Several processes with a copy of the model each: every document is read by one of them.

lm-eval deals documents to processes in turn, question by question, so that each process would read
nearly every document. Here the processes put their requests together, divide them at the borders
of documents, and give the answers back to whoever asked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from leval_harness.backends.plan import common_prefix


@dataclass(frozen=True)
class Request:
    """A request on its way between processes: its arguments, and how it is called in messages."""

    args: tuple[Any, ...]
    name: str


def name_of(request: Any, index: int) -> str:
    """How lm-eval's request is called in messages: task, document and number, else its place."""
    task = getattr(request, "task_name", None)
    if task is None:
        return f"#{index}"
    return f"{task}/{getattr(request, 'doc_id', '?')}/{getattr(request, 'idx', 0)}"


def divide(prompts: Sequence[Any], parts: int) -> list[list[int]]:
    """Divide prompts (texts or token ids) among processes: indices for each, some may have none.

    Common prefixes stay together, and work is even.
    """
    order = sorted(range(len(prompts)), key=lambda index: prompts[index])
    blocks: list[tuple[int, list[int]]] = []
    for place, index in enumerate(order):
        prompt = prompts[index]
        shared = common_prefix(prompts[order[place - 1]], prompt) if place else 0
        # A new document begins where less than half of a prompt is known from the one before.
        if place == 0 or 2 * shared < len(prompt):
            blocks.append((len(prompt), [index]))
        else:
            cost, members = blocks[-1]
            blocks[-1] = (cost + len(prompt) - shared, [*members, index])
    loads = [0] * parts
    shares: list[list[int]] = [[] for _ in range(parts)]
    for cost, members in sorted(blocks, reverse=True):  # the largest first, to the least busy
        least = loads.index(min(loads))
        loads[least] += cost
        shares[least] += members
    return shares


def exchange(
    lm: Any, items: Sequence[Any], prompts: Sequence[Any], run: Callable[[list[Any]], list[Any]]
) -> list[Any]:
    """Answer this process's items with the help of all processes; each must call it.

    Args:
        lm: lm-eval's model; its `rank` and `world_size` count.
        items: They travel between processes.
        prompts: The text or token ids of each item, by which the work is divided.
        run: Answers a list of items.
    """
    if lm.world_size == 1:
        return run(list(items))
    from torch import distributed

    asked: list[Any] = [None] * lm.world_size
    distributed.all_gather_object(asked, list(zip(items, prompts, strict=True)))
    places = [(owner, place) for owner, each in enumerate(asked) for place in range(len(each))]
    flat = [asked[owner][place] for owner, place in places]
    share = divide([prompt for _, prompt in flat], lm.world_size)[lm.rank]
    answers = run([flat[index][0] for index in share])
    answered: list[Any] = [None] * lm.world_size
    own = {places[index]: answer for index, answer in zip(share, answers, strict=True)}
    distributed.all_gather_object(answered, own)
    known = {place: answer for each in answered for place, answer in each.items()}
    return [known[lm.rank, place] for place in range(len(items))]
