"""Window arithmetic on whole numbers: nothing scored twice, nothing left out, nothing too long."""

from hypothesis import given
from hypothesis import strategies as st

from leval_tasks.perplexity.task import Window, make_windows


def tokens_of(window: Window) -> tuple[list[int], list[int]]:
    """Context and scored tokens of a document whose tokens are 0, 1, 2, …; BOS is -1."""
    context = [-1] * window.bos + list(range(window.start, window.score_start))
    return context, list(range(window.score_start, window.end))


@st.composite
def moving_case(draw: st.DrawFn) -> tuple[int, int, int, bool]:
    bos = draw(st.booleans())
    length = draw(st.integers(2 if bos else 3, 40))
    stride = draw(st.integers(1, length - 1))
    return draw(st.integers(0, 200)), length, stride, bos


@given(moving_case())
def test_windows_score_every_token_once(case):
    n, length, stride, bos = case
    windows = make_windows(n, length, stride, "sliding", bos)
    parts = [tokens_of(window) for window in windows]
    assert [token for _, scored in parts for token in scored] == list(range(0 if bos else 1, n))
    assert all(context and scored for context, scored in parts)
    assert all(len(context) + len(scored) <= length for context, scored in parts)
    for number, window in enumerate(windows):  # the stride leaves that much context
        assert window.start == number * stride
        assert not number or window.score_start - window.start == length - bos - stride
    assert make_windows(n, length, stride, "truncate", bos) == windows[:1]


def test_sliding_as_the_papers_scripts_do_it():
    # 10 tokens, window of 5 with BOS, stride 2, by hand
    windows = make_windows(10, 5, 2, "sliding", bos=True)
    assert [tokens_of(window) for window in windows] == [
        ([-1], [0, 1, 2, 3]),
        ([-1, 2, 3], [4, 5]),
        ([-1, 4, 5], [6, 7]),
        ([-1, 6, 7], [8, 9]),
    ]


def test_sliding_without_bos_does_not_score_the_first_token():
    windows = make_windows(7, 4, 2, "sliding", bos=False)
    assert [tokens_of(window) for window in windows] == [
        ([0], [1, 2, 3]),
        ([2, 3], [4, 5]),
        ([4, 5], [6]),
    ]
