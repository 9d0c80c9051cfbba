"""Every language model that the installed transformers knows: wavelengths rounded, or refused.

Each model type is built small from the values that its config class has by itself
(docs/reference/families.md has the counts).
"""

import json
import re

import pytest
import transformers
from families_compare import IDS, SHIPPED, check, refusal
from families_models import config_of, global_rotations, model_of, output

from resonance_vllm.hf import on_meta

pytestmark = [pytest.mark.hf, pytest.mark.long]

MOST_WEIGHTS = 30_000_000
TYPES = sorted(config.model_type for config in transformers.MODEL_FOR_CAUSAL_LM_MAPPING)


PARTS = 16


def looked_at(model_type, tmp_path):
    """What was found; a type that transformers does not run small says nothing about RoPE."""
    try:
        transformers.CONFIG_MAPPING[model_type]().save_pretrained(tmp_path)
        config = config_of(tmp_path)
        weights = sum(each.numel() for each in on_meta(config).parameters())
        if weights < MOST_WEIGHTS:
            stock = model_of(config)
            output(stock, IDS)
    except Exception as error:  # noqa: BLE001 - model code raises anything
        return f"not built: {type(error).__name__}"
    if weights >= MOST_WEIGHTS:
        return "too large"
    reason = refusal(tmp_path)
    if reason is not None:
        # Never of a model whose rotary module could be asked like any other.
        known = "no RoPE|has no rotary|does not turn by the frequencies|of its own"
        known += "|max_position_embeddings: missing|for each of|whatever its RoPE"
        assert re.search(known, reason), reason
        return "refused"
    assert global_rotations(stock)
    # LFM2 has a wavelength near 70,800 halfway between two integers, which is 1.4e-5 apart;
    # Granite's logits, of a config class's own multipliers, are 3.2 times the tolerance apart.
    check(tmp_path, SHIPPED, resonance=True, loose=5.0)
    return "right"


@pytest.mark.parametrize("part", range(PARTS))
def test_resonance_on_configs_as_the_library_makes_them(part, tmp_path, subtests, record_property):
    """Each `PARTS`th type, one after the other: which of them can be built shows only then."""
    found = {}
    for model_type in TYPES[part::PARTS]:
        with subtests.test(model_type):
            found[model_type] = looked_at(model_type, tmp_path / model_type)
    record_property("found", json.dumps(found))
    assert {"right", "refused"} & {*found.values()}, found
