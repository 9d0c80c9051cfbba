"""Model code in vLLM that takes its RoPE in a way of its own: right, or refused with the way on.

Built without weights, all in one process.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from resonance_vllm.config import COMPARED, ModelPositions, hf_overrides, vllm_hf_overrides
from resonance_vllm.core.spec import RopeRequest

pytestmark = pytest.mark.vllm

CONFIGS = Path(__file__).parents[1] / "families" / "configs"
FOUR = "factor=4,original_max_position_embeddings=1024"
YARN = f"resonance_yarn:{FOUR}"
FIXED = "which the model's code in vLLM fixes; allowed: resonance alone where"


def saved(folder: Path, name: str) -> dict[str, Any]:
    """A family's config as transformers saves it with settings of ours in it."""
    from transformers import AutoConfig

    from resonance_vllm import hf

    hf.register()
    model = ModelPositions.of_checkpoint(str(CONFIGS / name))
    overrides = hf_overrides(model.complete(RopeRequest.parse(YARN)), model)
    AutoConfig.from_pretrained(CONFIGS / name, **overrides).save_pretrained(folder)
    return {"model": str(folder), "hf_overrides": None, "max_model_len": 1024}


def asked(name: str, rope: str, folder: Path | None = None) -> dict[str, Any]:
    model = ModelPositions.of_checkpoint(str(CONFIGS / name))
    overrides = vllm_hf_overrides(model.complete(RopeRequest.parse(rope)), model, 1024)
    path = str(folder or CONFIGS / name)
    return {"model": path, "hf_overrides": overrides, "max_model_len": 1024}


def without(folder: Path, name: str, key: str) -> Path:
    config = json.loads((CONFIGS / name / "config.json").read_text())
    del config[key]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from resonance_vllm.vllm.build import look_at

    root = tmp_path_factory.mktemp("saved")
    one_base = without(root / "one_base", "mimo_v2", "swa_rope_theta")
    jobs = {
        "phi, saved": saved(root / "phi", "phi4_mini"),
        "phi, asked": asked("phi4_mini", YARN),
        "mimo, saved": saved(root / "mimo", "mimo_v2"),
        "mimo, asked": asked("mimo_v2", YARN),
        "mimo, on top": asked("mimo_v2", "resonance"),
        "mimo, one base": asked("mimo_v2", "resonance", one_base),
        "mimo, linear": asked("mimo_v2", f"linear:{FOUR}"),
        "hunyuan, dynamic": asked("hunyuan_7b", f"dynamic:{FOUR}"),
        "hunyuan, as shipped": asked("hunyuan_7b", "dynamic"),
        "gpt-oss, yarn": asked("gpt_oss_20b", f"yarn:{FOUR}"),
        "gpt-oss, linear": asked("gpt_oss_20b", f"linear:{FOUR}"),
        "deepseek, linear": asked("deepseek_v3", f"linear:{FOUR}"),
        "deepseek, yarn": asked("deepseek_v3", f"yarn:{FOUR}"),
        "granite, yarn": asked("granite4_h", "yarn:factor=4"),
    }
    raw = asked("mimo_v2", f"linear:{FOUR}")
    del raw["hf_overrides"][COMPARED]
    jobs["mimo, raw linear"] = raw
    return dict(zip(jobs, look_at(list(jobs.values()), timeout=3600), strict=True))


def test_a_type_that_a_family_does_not_know_is_read_from_a_saved_config(
    found: dict[str, Any],
) -> None:
    """Phi 3's config class takes `longrope` alone, and vLLM has it check once more."""
    (one,) = found["phi, saved"]["held"]
    assert [one] == found["phi, asked"]["held"]
    assert one["exact_phase"]


@pytest.mark.parametrize("way", ["mimo, saved", "mimo, asked"])
def test_code_that_names_plain_rope_itself_is_refused_a_scaled_type(
    found: dict[str, Any], way: str
) -> None:
    assert FIXED in found[way]["refused"]


def test_layers_that_were_not_asked_for_keep_their_rotation(found: dict[str, Any]) -> None:
    """Without a base for its sliding layers MiMo's code in vLLM gives them that of the others."""
    kinds = {each["layer_type"]: each["exact_phase"] for each in found["mimo, on top"]["held"]}
    assert kinds == {"full_attention": True, "sliding_attention": False}
    assert "of sliding_attention layers" in found["mimo, one base"]["refused"]


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("mimo, linear", r"'linear' is not what .*32 of 32 frequencies differ"),
        ("deepseek, linear", r"'linear' is not what .*the attention factor is 1\.13863, not 1"),
        ("hunyuan, dynamic", r"'dynamic' is not what .*63 of 64 frequencies differ"),
        ("gpt-oss, linear", r"'linear': the code of GptOssForCausalLM in vLLM does not build"),
        ("granite, yarn", "has no RoPE|no rotary position embeddings"),
    ],
)
def test_a_type_of_vllms_own_that_is_asked_for_and_not_built_is_refused(
    found: dict[str, Any], way: str, says: str
) -> None:
    assert re.search(says, found[way]["refused"])


def test_a_type_of_vllms_own_that_is_built_as_asked(found: dict[str, Any]) -> None:
    scaled = 0.1 * math.log(4) + 1
    for way, dim, base, factor in (
        ("gpt-oss, yarn", 64, 150000.0, scaled),
        ("deepseek, yarn", 64, 10000.0, 1.0),  # its `mscale` and `mscale_all_dim` are the same
    ):
        (one,) = found[way]["held"]
        assert one["inv_freq"][0] == pytest.approx(1.0, rel=1e-4)
        assert one["inv_freq"][-1] == pytest.approx(base ** (2 / dim - 1) / 4, rel=1e-4)
        assert one["attention_factor"] == pytest.approx(factor, rel=1e-4)
    (one,) = found["hunyuan, as shipped"]["held"]
    base = 10000.0 * 1000.0 ** (128 / 126)  # of its `alpha`
    assert one["inv_freq"][-1] == pytest.approx(base ** (2 / 128 - 1), rel=1e-3)


def test_overrides_of_a_user_are_vllms_own_business(found: dict[str, Any]) -> None:
    assert not found["mimo, raw linear"]["held"][0]["exact_phase"]
