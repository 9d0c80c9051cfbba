"""Numbers of the product are those that were frozen, or README.md says why not."""

import frozen_current
import frozen_models
import pytest
from frozen_numbers import judged

DOCUMENTS = pytest.mark.needs("documents")
HF, SLOW, LONG, VLLM = (getattr(pytest.mark, name) for name in ("hf", "slow", "long", "vllm"))
HOUR = pytest.mark.timeout(3600)
# part -> when it runs
PARTS = {
    "rope_in_transformers": (HF, LONG),
    "rope_in_vllm": (VLLM, LONG, HOUR),
    "rope_methods": (SLOW,),
    "compared": (SLOW,),
    "table_cells": (SLOW,),
    "published": (),
    "prompts": (SLOW,),
    "prompts_published": (LONG, DOCUMENTS),
    "scores": (),
    "scores_published": (SLOW, DOCUMENTS),
    "posgen_data": (),
    "posgen_training": (LONG,),
    "finetuning": (HF, SLOW),
    "token_losses": (HF, LONG),
    "token_losses_in_vllm": (VLLM, LONG),
    "answers": (HF, LONG),
    "answers_in_vllm": (VLLM, LONG),
    "diff": (HF, LONG),
}
VLLM_ON_A_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
CURRENT = {**vars(frozen_current), **vars(frozen_models)}


@pytest.mark.parametrize("part", [pytest.param(p, marks=m) for p, m in PARTS.items()])
def test_as_frozen(part, request, monkeypatch):
    def forked(*words):
        return request.getfixturevalue("forks").command(*words)

    for name, value in VLLM_ON_A_CPU.items():
        monkeypatch.setenv(name, value)
    if not part.endswith("_in_vllm"):  # which does not import in a fork
        monkeypatch.setattr(frozen_models, "run", forked)
    wrong, idle = judged(part, CURRENT[f"current_{part}"]())
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong[:40])
    assert not idle, f"README.md allows what does not differ: {idle}"
