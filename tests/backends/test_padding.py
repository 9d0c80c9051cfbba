"""Rows of unequal length that continue one document: padding between them is no token."""

import random

import pytest
import torch
from tiny_backends import build

from leval_harness.backends import attention
from leval_harness.backends.forward import Head
from leval_harness.backends.reading import Reader

RNG = random.Random(0)
DOCUMENT = [4 + RNG.randrange(100) for _ in range(30)]
ROWS = [DOCUMENT + [4 + RNG.randrange(100) for _ in range(n)] for n in (1, 9, 5, 14)]
PAD = 3
NEW = 3


@torch.no_grad()
def largest_difference(model):
    """Difference of the logits of a padded batch from those of each row without padding."""
    reader = Reader(Head(model), "shared", 2048)
    reader.read(DOCUMENT)
    output = reader.generate(
        ROWS,
        PAD,
        NEW,
        do_sample=False,
        min_new_tokens=NEW,
        return_dict_in_generate=True,
        output_logits=True,
    )
    logits = torch.stack(output.logits, dim=1)
    new = output.sequences[:, -NEW:].tolist()
    differences = []
    for row, row_new, row_logits in zip(ROWS, new, logits, strict=True):
        whole = torch.tensor([row + row_new[:-1]])
        expected = model(whole, use_cache=False).logits[0, -NEW:]
        differences.append((row_logits - expected).abs().max().item())
    return max(differences)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "granite"])
def test_padded_rows_have_the_logits_of_rows_alone(kind):
    assert largest_difference(build(kind)) < 1e-4


def mask_of_ones(monkeypatch, model):
    generate = model.generate

    def without_mask(**options):
        options["attention_mask"] = torch.ones_like(options["attention_mask"])
        return generate(**options)

    monkeypatch.setattr(model, "generate", without_mask)


def positions_only(monkeypatch, model):
    """Positions leave the padding out, but attention sees it."""
    own_part = attention.own_part

    def unmasked(query, key, value, mask, scale):
        if mask is not None:
            n, m = mask.shape[2:]
            mask = torch.ones(n, m, dtype=torch.bool).tril(m - n).expand_as(mask)
        return own_part(query, key, value, mask, scale)

    monkeypatch.setattr(attention, "own_part", unmasked)


@pytest.mark.parametrize("fault", [mask_of_ones, positions_only])
def test_padding_taken_for_tokens_is_seen(monkeypatch, fault):
    model = build("llama")
    fault(monkeypatch, model)
    assert largest_difference(model) > 0.1
