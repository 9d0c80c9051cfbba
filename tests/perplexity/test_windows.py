"""Window arithmetic on whole numbers: nothing scored twice, nothing left out, nothing too long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_tasks.perplexity.windows import Window, document_tokens, make_windows
from resonance_vllm.errors import SettingError


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
def test_every_token_is_scored_once_with_a_context_in_a_window_that_is_not_too_long(case):
    n, length, stride, bos = case
    parts = [tokens_of(window) for window in make_windows(n, length, stride, "sliding", bos)]
    assert [token for _, scored in parts for token in scored] == list(range(0 if bos else 1, n))
    assert all(context and scored for context, scored in parts)
    assert all(len(context) + len(scored) <= length for context, scored in parts)


@given(moving_case())
def test_sliding_keeps_the_context_that_the_stride_leaves(case):
    n, length, stride, bos = case
    w = document_tokens(length, bos)
    windows = make_windows(n, length, stride, "sliding", bos)
    for number, window in enumerate(windows):
        assert window.start == number * stride
        if number:
            assert window.score_start - window.start == w - stride
    for window in windows[1:-1]:
        assert window.scored == stride


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


@pytest.mark.parametrize(("bos", "first", "end"), [(True, 0, 7), (False, 1, 8)])
def test_truncate_is_one_full_window(bos, first, end):
    (window,) = make_windows(100, 8, 3, "truncate", bos)
    assert (window.start, window.score_start, window.end) == (0, first, end)
    assert window.end - window.start + window.bos == 8


def test_a_document_that_does_not_fill_the_window_is_refused():
    assert make_windows(7, 8, 3, "truncate", bos=True)
    with pytest.raises(SettingError, match="6 tokens does not fill a window of 8 positions"):
        make_windows(6, 8, 3, "truncate", bos=True)


@pytest.mark.parametrize(
    ("length", "stride", "mode", "bos", "message"),
    [
        (8, 8, "sliding", True, "stride: 8 is not allowed; allowed: 1 to 7, the tokens"),
        (8, 8, "sliding", False, "stride: 8 is not allowed; allowed: 1 to 7, the tokens"),
        (8, 0, "sliding", True, "stride: 0 is not allowed; allowed: 1 to"),
        (1, 1, "truncate", True, "context_length: 1 is not allowed; allowed: at least 2"),
    ],
)
def test_settings_that_do_not_fit(length, stride, mode, bos, message):
    with pytest.raises(SettingError, match=message):
        make_windows(100, length, stride, mode, bos)
