"""Numbers of the product are those that were frozen, or README.md says why not."""

from dataclasses import dataclass

import frozen_current
import frozen_models
import pytest
from frozen_numbers import judged

DOCUMENTS = pytest.mark.needs("documents")
HF, SLOW, LONG, VLLM = (getattr(pytest.mark, name) for name in ("hf", "slow", "long", "vllm"))
HOUR = pytest.mark.timeout(3600)
# Another processor adds in another order: nats, and nats a token.
TRAINED = {"relative": 1e-4, "absolute": 1e-6}
READ = {"relative": 1e-4, "absolute": 2e-4}


@dataclass(frozen=True)
class Part:
    """A file of frozen numbers, and within what they are equal.

    Whole numbers up to a million, texts and truth values are compared exactly.
    """

    name: str
    relative: float = 1e-6
    absolute: float = 1e-9
    marks: tuple[pytest.MarkDecorator, ...] = ()


PARTS = (
    Part("rope_in_transformers", absolute=0, marks=(HF, SLOW)),
    Part("rope_in_vllm", absolute=0, marks=(VLLM, LONG, HOUR)),
    Part("rope_methods", marks=(SLOW,)),
    Part("compared"),
    Part("table_cells"),
    Part("published"),
    Part("prompts", marks=(SLOW,)),
    Part("prompts_published", marks=(SLOW, DOCUMENTS)),
    Part("scores"),
    Part("scores_published", marks=(SLOW, DOCUMENTS)),
    Part("posgen_data"),
    Part("posgen_training", **TRAINED, marks=(SLOW,)),
    Part("finetuning", **TRAINED, marks=(HF, SLOW)),
    Part("token_losses", **READ, marks=(HF, SLOW)),
    Part("token_losses_in_vllm", **READ, marks=(VLLM, LONG)),
    Part("answers", marks=(HF, SLOW)),
    Part("answers_in_vllm", marks=(VLLM, LONG)),
    Part("diff", **READ, marks=(HF, SLOW)),
)
CURRENT = {**vars(frozen_current), **vars(frozen_models)}


@pytest.mark.parametrize("part", [pytest.param(p, marks=p.marks, id=p.name) for p in PARTS])
def test_as_frozen(part):
    rows = CURRENT[f"current_{part.name}"]()
    wrong, idle = judged(part.name, rows, part.relative, part.absolute)
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong[:40])
    assert not idle, f"README.md allows what does not differ: {idle}"
