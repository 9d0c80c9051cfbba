"""The verdict on effective context length: a table and sentences, read off the same intervals."""

import numpy as np
import pandas as pd
import pytest
from block_frames import BLOCKS, COMMAND, compared_of, frames

from leval_harness.report.effective_context import effective_rows
from leval_harness.report.formats import verdict_markdown, verdict_text
from leval_harness.report.identical import acts_beyond
from leval_harness.report.verdict import verdicts

REAL = {"rope": "rope", "yarn": "yarn"}


def verdict_of(differences=REAL, margin=None, **how):
    (verdict,) = verdicts(compared_of(differences, margin, **how))
    return verdict


def resonance(added):
    """Real reads, and Resonance YaRN with `added` to each sum of 64 tokens of YaRN."""
    if not callable(added):
        return {**REAL, "resonance_yarn": lambda blocks: blocks["yarn"] + added}
    return {**REAL, "resonance_yarn": lambda blocks: blocks["yarn"] + added(blocks)}


def constant(value, start=0):
    return lambda blocks: 64 * np.where(blocks["start"] >= start, value, 0.0)


def noise(seed=0, size=8.0, mean=0.0):
    """Sums that scatter more than they differ from zero."""
    return lambda blocks: np.random.default_rng(seed).normal(mean, size, len(blocks))


def test_verdict_text_of_three_methods():
    assert (
        verdict_text(verdict_of(resonance(0.18)))
        == """\
SmolLM2-135M, native context length 8,192 tokens; 3 documents of 11,264 tokens

method            effective context length        cost within 8,192        against rope, 9,728–11,264
rope              9,728 (degrades from ~9,920)    –                        –
yarn              ≥ 11,264 (longest measured)     +0.022 [0.016, 0.028]    −0.164 [−0.227, −0.102]
resonance_yarn    ≥ 11,264 (longest measured)     +0.025 [0.019, 0.031]    −0.162 [−0.224, −0.099]

Recommended: rope up to 9,728 tokens; yarn from 9,728 to 11,264.
resonance_yarn is worse than yarn: +0.0028 (0.0028 to 0.0028).
Beyond 8,192 tokens no method is better than the unscaled model that sees only the last 8,192 tokens.
Losses in nats/token, compared with the unscaled model in sliding windows of 8,192 tokens (the reference).
Increases below 0.05 are treated as negligible. Each bound errs in at most 3% of samples.
"""
    )


def test_verdict_markdown_has_a_table_and_a_list():
    lines = verdict_markdown(verdict_of()).splitlines()
    assert lines[0].startswith("**SmolLM2-135M, native context length 8,192 tokens; 3 documents")
    assert lines[2].startswith("| method | effective context length | cost within 8,192 |")
    assert lines[4].startswith(r"| rope | 9,728 (degrades from \~9,920) | – | – |")
    assert all(line.startswith("- ") for line in lines[7:])
    assert lines[6] == ""
    assert lines[7] == "- Recommended: rope up to 9,728 tokens; yarn from 9,728 to 11,264."


def test_verdict_numbers_are_in_the_frame():
    compared = compared_of(resonance(0.18))
    (verdict,) = verdicts(compared)
    for method in verdict.summary.methods:
        rows = compared[compared["label"] == method.method]
        for estimate in (method.cost, method.difference):
            if estimate is not None:
                numbers = [estimate.mean, estimate.low, estimate.high]
                columns = rows[["difference", "diff_low", "diff_high"]]
                assert columns.eq(numbers).all(axis=1).any()
        for loss in (method.loss_within, method.loss_beyond):
            assert rows["value"].eq(loss).any()


def test_verdict_of_one_document_errs_more_often():
    verdict = verdict_of(documents=1)
    assert "; 1 document of 11,264 tokens" in verdict.heading
    assert verdict.sentences[-1].endswith("Each bound errs in at most 5% of samples.")


def test_heading_of_documents_of_several_lengths():
    compared, blocks = frames(REAL)
    shorter = blocks[(blocks["document"] != blocks["document"].iloc[0]) | (blocks["start"] < 9000)]
    rows = effective_rows(compared, shorter).assign(sample=False, group=False)
    (verdict,) = verdicts(pd.concat([compared, rows], ignore_index=True))
    assert "; 3 documents of up to 11,264 tokens" in verdict.heading


@pytest.mark.parametrize("baseline", ["rope", "yarn"])
def test_recommendation_is_the_same_from_either_baseline(baseline):
    verdict = verdict_of(baseline=baseline)
    assert verdict.recommendation == "rope up to 9,728 tokens; yarn from 9,728 to 11,264."


@pytest.mark.parametrize(
    ("added", "best"),
    [(0.0, "yarn or resonance_yarn"), (0.6, "yarn"), (-0.6, "resonance_yarn")],
)
def test_recommendation_among_better_methods(added, best):
    assert verdict_of(resonance(added)).recommendation == (
        f"rope up to 9,728 tokens; {best} from 9,728 to 11,264."
    )


def test_recommendation_needs_an_interval_below_zero():
    """A mean below the baseline's, or below another's, recommends nobody where it may be chance."""
    better_by_chance = {"rope": constant(0.0), "yarn": noise(mean=-0.8)}
    compared = compared_of(better_by_chance)
    rows = compared[compared["baseline"].eq("rope") & compared["label"].eq("yarn")]
    rows = rows[rows["metric"] == "difference"]
    assert rows["difference"].lt(0).any()
    assert rows["diff_high"].gt(0).all()
    (verdict,) = verdicts(compared)
    assert verdict.recommendation == "rope up to 11,264 tokens."
    for mean in (-0.2, 0.2):
        equal = verdict_of(resonance(noise(size=1.0, mean=mean)))
        assert equal.recommendation == (
            "rope up to 9,728 tokens; yarn or resonance_yarn from 9,728 to 11,264."
        )


def test_recommendation_needs_the_same_bins():
    compared, blocks = frames(REAL)
    shorter = blocks[(blocks["run"] != 1) | (blocks["start"] < 9728)]
    three = pd.concat([blocks, shorter[shorter["run"] == 1].assign(run=2)], ignore_index=True)
    compared = pd.concat(
        [compared, compared.iloc[[1]].assign(run=2, label="other", method="other")],
        ignore_index=True,
    )
    rows = effective_rows(compared, three).assign(sample=False, group=False)
    (verdict,) = verdicts(pd.concat([compared, rows], ignore_index=True))
    assert verdict.recommendation == ""


@pytest.mark.parametrize(
    ("added", "sentence"),
    [
        (0.6, "resonance_yarn is worse than yarn: +0.0094 (0.0094 to 0.0094)."),
        (-0.6, "resonance_yarn is better than yarn: −0.0094 (−0.0094 to −0.0094)."),
        (0.0, "resonance_yarn is identical to yarn on all tokens measured."),
    ],
)
def test_sentence_on_resonance_and_the_same_without(added, sentence):
    assert sentence in verdict_of(resonance(added)).sentences


def test_sentence_on_methods_that_cannot_be_distinguished():
    (sentence,) = [
        s for s in verdict_of(resonance(noise(size=2.0))).sentences if "resonance_yarn" in s
    ]
    assert sentence.startswith("resonance_yarn cannot be distinguished from yarn (difference −0.0")


def test_identical_methods_need_no_documents():
    """A method whose frequencies are the baseline's at every length measured."""
    verdict = verdict_of({"rope": noise(), "yarn": noise()})
    assert "yarn is identical to rope on all tokens measured." in verdict.sentences
    assert not any("distinguished" in sentence for sentence in verdict.sentences)


def within_native(length):
    """Real reads of documents that end at a length, under plain RoPE and dynamic NTK."""
    blocks = BLOCKS[BLOCKS["start"] < length]
    same = {"rope": noise(), "dynamic": noise(size=8.0 + (length > 8192))}
    compared, blocks = frames(same, blocks=blocks, length=length)
    rows = effective_rows(compared, blocks).assign(sample=False, group=False)
    return verdicts(pd.concat([compared, rows], ignore_index=True))[0]


@pytest.mark.parametrize(("length", "is_identical"), [(8192, True), (11264, False)])
def test_verdict_names_a_method_that_cannot_act(length, is_identical):
    verdict = within_native(length)
    sentence = "dynamic is identical to rope at every length measured: it acts beyond 8,192 tokens."
    assert (sentence in verdict.sentences) == is_identical
    assert (verdict.table().iloc[1, -1] == "identical") == is_identical


@pytest.mark.parametrize(
    ("rope", "native", "start"),
    [
        (
            {"rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": 4096},
            8192,
            4096,
        ),
        ({"rope_type": "dynamic", "factor": 2}, 8192, 8192),
        ({"rope_type": "dynamic", "factor": 2}, None, None),
        ({"rope_type": "longrope", "short_factor": [1, 1], "attention_factor": 1}, 4096, 4096),
        ({"rope_type": "longrope", "short_factor": [1, 1.2], "attention_factor": 1}, 4096, None),
        ({"rope_type": "longrope", "short_factor": [1, 1]}, 4096, None),
        ({"rope_type": "yarn", "factor": 2}, 8192, None),
        ({"rope_type": "resonance_dynamic", "factor": 2}, 8192, None),
    ],
)
def test_acts_beyond_a_length(rope, native, start):
    assert acts_beyond(rope, native) == start


def test_acts_beyond_is_where_frequencies_differ():
    """The methods themselves: equal to plain RoPE up to the length, and not after it."""
    from resonance_vllm.core.frequencies import closed_form_inv_freq
    from resonance_vllm.core.spec import RopeSpec

    plain = RopeSpec.from_dict({"rope_type": "default", "rope_theta": 1e4})
    for rope in (
        {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4096},
        {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
         "attention_factor": 1.0, "original_max_position_embeddings": 4096},
    ):  # fmt: skip
        spec = RopeSpec.from_dict({**rope, "rope_theta": 1e4})
        start = acts_beyond(rope, None)
        expected = closed_form_inv_freq(plain, 16, start)
        assert closed_form_inv_freq(spec, 16, start).equal(expected)
        assert not closed_form_inv_freq(spec, 16, start + 1).equal(expected)


def test_undecided_without_further_documents_says_so():
    compared, blocks = frames(REAL, documents=2, asked=2, **{"setting num_docs": "3"})
    rows = effective_rows(compared, blocks).assign(sample=False, group=False)
    (verdict,) = verdicts(pd.concat([compared, rows], ignore_index=True))
    (sentence,) = [s for s in verdict.sentences if s.startswith("Undecided")]
    assert sentence.startswith("Undecided: yarn. No further documents of this length are left: the")
    assert "num_docs" not in sentence


def test_undecided_says_so_and_how_to_decide():
    verdict = verdict_of(documents=2)
    assert verdict.table().iloc[1, 1] == "≥ 8,192, undecided beyond"
    (sentence,) = [s for s in verdict.sentences if s.startswith("Undecided")]
    # (0.0351 / 0.0317) squared times two documents; one minute, since runs side by side count once
    command = f"{COMMAND} --set tasks.effective_context_pydocs.metadata.num_docs=3"
    assert sentence == f"Undecided: yarn. To decide, in about 2 minutes: `{command}`"


def test_undecided_at_the_margin_asks_for_another_margin():
    at_margin = noise(mean=64 * 0.0501, size=2.0)
    (sentence,) = [
        s for s in verdict_of({"yarn": at_margin}, baseline="yarn").sentences if "Undecided" in s
    ]
    assert "lies at the margin of 0.05" in sentence
    assert "num_docs" not in sentence


@pytest.mark.parametrize(
    ("difference", "length"),
    [
        (constant(0.2), "< 3,584 (degrades from the first position measured)"),
        (constant(0.2, 5120), "5,120 (degrades from ~5,120)"),
        (constant(0.0), "≥ 11,264 (longest measured)"),
        (noise(size=64 * 0.8), "undecided"),
    ],
)
def test_length_in_the_table(difference, length):
    assert verdict_of({"yarn": difference}, baseline="yarn").table().iloc[0, 1] == length


def test_sentence_where_every_method_degrades():
    verdict = verdict_of({"rope": constant(0.2), "yarn": constant(0.1, 8192)})
    assert "Every method degrades at or before 9,728 tokens." in verdict.sentences
    assert not any("Every method" in sentence for sentence in verdict_of().sentences)


def test_sentence_on_reading_more_than_the_reference():
    verdict = verdict_of({"yarn": constant(-0.03, 8192)}, baseline="yarn")
    assert verdict.sentences[0] == (
        "At 8,192–9,728 and 9,728–11,264 tokens yarn is better than the unscaled model that sees "
        "only the last 8,192 tokens."
    )


def test_better_than_the_reference_needs_an_interval_below_zero():
    verdict = verdict_of({"yarn": noise(mean=-0.8)}, baseline="yarn")
    assert verdict.sentences[0].startswith("Beyond 8,192 tokens no method is better")


def test_nothing_beyond_the_native_length_says_what_is_left():
    verdict = verdict_of(trained=131072)
    assert verdict.sentences[0] == (
        "Nothing was measured beyond the native context length of 131,072 tokens: these results "
        "show what each method costs within it, not whether it extends it."
    )
    assert "cost up to 11,264" in verdict.table()
    assert any("unmodified model on the whole document" in s for s in verdict.sentences)
    assert not any(sentence.startswith("Beyond") for sentence in verdict.sentences)


def test_heading_without_a_native_length():
    verdict = verdict_of(trained=None)
    assert verdict.heading == "SmolLM2-135M; 3 documents of 11,264 tokens"


@pytest.mark.parametrize(
    ("rope", "native", "says"),
    [
        ({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}, 262144,
         "yarn limits the model to 131,072 tokens, below its native context length of 262,144."),
        ({"rope_type": "resonance_linear", "factor": 2, "original_max_position_embeddings": 4096},
         16384, "yarn limits the model to 8,192 tokens, below its native context length of 16,384."),
        ({"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 32768}, 262144, ""),
        ({"rope_type": "default"}, 262144, ""),
        ({"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 8192}, 131072, ""),
    ],
)  # fmt: skip
def test_sentence_on_a_method_that_shortens(rope, native, says):
    import json

    compared = compared_of(REAL, trained=native)
    is_yarn = compared["label"].eq("yarn") & compared["rope"].notna()
    compared.loc[is_yarn, "rope"] = json.dumps(rope)
    (verdict,) = verdicts(compared)
    assert [s for s in verdict.sentences if "limits the model" in s] == [says] * bool(says)


def test_two_models_have_a_heading_each():
    parts = [frames(REAL, block=name) for name in ("one", "two")]
    parts[1][0]["run"] += 2
    parts[1][1]["run"] += 2
    compared, blocks = (pd.concat(pair, ignore_index=True) for pair in zip(*parts, strict=True))
    rows = effective_rows(compared, blocks).assign(sample=False, group=False)
    found = verdicts(pd.concat([compared, rows], ignore_index=True))
    assert [verdict.heading.partition(",")[0] for verdict in found] == ["one", "two"]
