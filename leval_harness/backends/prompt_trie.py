"""The order in which prompts are read so that every shared text is read once.

Pure functions of token lists. Sorting the prompts puts those with a common prefix side by side, and
the longest common prefixes of neighbours are the inner nodes of the prompts' trie (Kasai et al.
2001 for suffix arrays; the same interval argument holds for any sorted list). A depth-first walk of
the trie needs the key/value cache of one path only.
"""

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """One point of the walk: bring the cache to a prefix, then run the prompts that end there.

    Attributes:
        start: Length of the part of the prefix that the cache already holds.
        length: Length of the prefix in tokens; `start <= length`.
        rows: Indices of the prompts whose remaining tokens `[length:]` are read here, in batches.
        members: Indices of all prompts that begin with this prefix, here or further down.
        branches: Whether several later steps start from this prefix.
    """

    start: int
    length: int
    rows: tuple[int, ...]
    members: tuple[int, ...]
    branches: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether the step starts from positions that several prompts use."""
        return self.start > 0 or (self.length > 0 and len(self.members) > 1)


@dataclass(frozen=True)
class Plan:
    """The whole walk, with its cost in tokens.

    Attributes:
        steps: In the order of execution.
        prompt_tokens: Sum of the prompts' lengths: the cost of running them one by one.
        unique_tokens: Nodes of the trie of all prompts: the least that any order computes.
        computed_tokens: The cost of this walk.
    """

    steps: tuple[Step, ...]
    prompt_tokens: int
    unique_tokens: int
    computed_tokens: int


@dataclass
class _Node:
    """An inner node: the prompts `[begin, end)` of the sorted order share `depth` tokens."""

    depth: int
    begin: int
    end: int = 0
    parent: "_Node | None" = None
    children: list["_Node"] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def saving(self) -> int:
        """Tokens saved by reading this node's own segment once for everything below it."""
        above = self.parent.depth if self.parent else 0
        return (self.depth - above) * (len(self.children) + len(self.rows) - 1)


def common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Number of leading tokens that two sequences share (binary search over slices)."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def reading_order(prompts: Sequence[Any]) -> list[int]:
    """Indices of the prompts, sorted by their tokens: common prefixes side by side."""
    return sorted(range(len(prompts)), key=lambda index: prompts[index])


def unique_tokens(prompts: Sequence[Sequence[int]], order: Sequence[int]) -> int:
    """Nodes of the trie of prompts, given their `reading_order`."""
    total = len(prompts[order[0]]) if order else 0
    for before, after in itertools.pairwise(order):
        total += len(prompts[after]) - common_prefix(prompts[before], prompts[after])
    return total


def make_plan(
    prompts: Sequence[Sequence[int]],
    *,
    reserve: int = 1,
    max_suffix: int = 1024,
    slack: float = 0.01,
) -> Plan:
    """Order prompts so that each shared prefix is computed once.

    Args:
        prompts: Token ids of each prompt.
        reserve: Tokens at the end of every prompt that are never part of a shared prefix: 1 for
            generation, which needs the logits after the last token of each row; 0 for scoring.
        max_suffix: A prompt whose own part is longer gets a step of its own, so that it is read in
            chunks instead of in a batch.
        slack: Share of the unique tokens that may be computed twice to keep batches together
            (questions about one document often share their first words).

    Raises:
        ValueError: A prompt is empty.
    """
    lists = [list(prompt) for prompt in prompts]
    if [] in lists:
        raise ValueError(f"prompt {lists.index([])} has no tokens; a request needs at least one")
    order = reading_order(lists)
    unique = unique_tokens(lists, order)
    root = _build(order, [prompt[: len(prompt) - reserve] for prompt in lists])
    _flatten(root, budget=int(slack * unique))
    steps = _walk(root, order, lists, reserve, max_suffix)
    computed = sum(
        step.length - step.start + sum(len(lists[row]) - step.length for row in step.rows)
        for step in steps
    )
    return Plan(tuple(steps), sum(map(len, lists)), unique, computed)


def _build(order: list[int], keys: list[list[int]]) -> _Node:
    """The trie's branching nodes, found with a stack over the common prefixes of neighbours."""
    root = _Node(0, 0, len(order))
    stack = [root]
    shares = [common_prefix(keys[a], keys[b]) for a, b in itertools.pairwise(order)]
    for place, (index, shared) in enumerate(zip(order, [*shares, 0], strict=False)):
        if shared > stack[-1].depth:
            stack.append(_Node(shared, place, parent=stack[-1]))
            stack[-2].children.append(stack[-1])
        stack[-1].rows.append(index)
        while shared < stack[-1].depth:
            closed = stack.pop()
            closed.end = place + 1
            if shared > stack[-1].depth:
                between = _Node(shared, closed.begin, parent=stack[-1], children=[closed])
                stack[-1].children[-1] = between
                closed.parent = between
                stack.append(between)
    return root


def _flatten(root: _Node, budget: int) -> None:
    """Dissolve the nodes that save least, while the tokens computed twice fit the budget."""
    heap: list[tuple[int, int, int, _Node]] = []
    pending = list(root.children)
    while pending:
        node = pending.pop()
        pending += node.children
        heap.append((node.saving(), -node.depth, len(heap), node))
    heapq.heapify(heap)
    while heap:
        cost, depth, tie, node = heapq.heappop(heap)
        if node.saving() != cost:  # its children have changed since it was queued
            heapq.heappush(heap, (node.saving(), depth, tie, node))
            continue
        if cost > budget:
            return
        budget -= cost
        parent = node.parent
        assert parent is not None
        parent.rows += node.rows
        parent.children.remove(node)
        for child in node.children:
            child.parent = parent
            parent.children.append(child)


def _walk(
    root: _Node, order: list[int], prompts: list[list[int]], reserve: int, max_suffix: int
) -> list[Step]:
    """Steps of the trie, depth first; a node's own rows come before its children."""
    steps: list[Step] = []
    stack = [(root, 0)]
    while stack:
        node, above = stack.pop()
        short = tuple(row for row in node.rows if len(prompts[row]) - node.depth <= max_suffix)
        long = [row for row in node.rows if len(prompts[row]) - node.depth > max_suffix]
        if short or node.depth > above:
            members = tuple(order[node.begin : node.end])
            branches = len(long) + len(node.children) > 1
            steps.append(Step(above, node.depth, short, members, branches))
        steps += [Step(node.depth, len(prompts[row]) - reserve, (row,), (row,)) for row in long]
        stack += [(child, node.depth) for child in reversed(node.children)]
    return steps


def divide(prompts: Sequence[Sequence[Any]], parts: int) -> list[list[int]]:
    """Divide prompts (texts or token ids) among processes: indices for each, possibly none.

    Prompts about one document stay together, and the work is even.
    """
    order = reading_order(prompts)
    documents: list[tuple[int, list[int]]] = []
    for place, index in enumerate(order):
        prompt = prompts[index]
        shared = common_prefix(prompts[order[place - 1]], prompt) if place else 0
        # A new document begins where less than half of a prompt is shared with the one before.
        if place == 0 or 2 * shared < len(prompt):
            documents.append((len(prompt), [index]))
        else:
            cost, members = documents[-1]
            documents[-1] = (cost + len(prompt) - shared, [*members, index])
    loads = [0] * parts
    shares: list[list[int]] = [[] for _ in range(parts)]
    for cost, members in sorted(documents, reverse=True):  # the largest first, to the least busy
        least = loads.index(min(loads))
        loads[least] += cost
        shares[least] += members
    return shares
