"""What a cell writes about its RoPE settings, against a plain search over all positions."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from leval_harness.cell_record import CellRecord, MethodRecord, ModelRecord
from leval_harness.layout import FEATURES, SCHEMA_VERSION
from leval_harness.sweep.cell_additions import MOST_POSITIONS, features, write_features
from resonance_vllm.core.spec import RopeSpec

CONFIG = {"model_type": "llama", "head_dim": 8, "max_position_embeddings": 64, "rope_theta": 1e4}


def gap(wavelength: float, original: int, multiple: int) -> float:
    """Largest distance of a test position on the circle to its nearest training position."""
    turn = np.exp(2j * np.pi * np.arange(original * multiple) / wavelength)
    apart = np.abs(turn[original:, None] - turn[None, :original])
    return float(apart.min(axis=1).max())


@pytest.mark.parametrize("rope_type", ["default", "resonance", "yarn", "resonance_yarn"])
def test_wavelengths_and_gaps(rope_type: str) -> None:
    rope = {"rope_type": rope_type, "rope_theta": 1e4}
    if "yarn" in rope_type:
        rope |= {"factor": 4.0, "original_max_position_embeddings": 64}
    found = features(RopeSpec.from_dict(rope), 8, 64, 256)
    assert found["head_dim"] == 8
    assert found["original_max_position_embeddings"] == 64
    if rope_type == "default":
        plain = 2 * np.pi * 1e4 ** (np.arange(0, 8, 2) / 8)
        assert found["wavelengths"] == pytest.approx(list(plain))
    if "resonance" in rope_type:
        assert all(length == round(length) for length in found["wavelengths"][:2])
    for multiple in ("2", "4"):
        again = [gap(length, 64, int(multiple)) for length in found["wavelengths"]]
        assert found["feature_gap"][multiple] == pytest.approx(again, abs=1e-9)


def test_long_models_have_fewer_multiples() -> None:
    rope = RopeSpec.from_dict({"rope_type": "default", "rope_theta": 1e4})
    assert list(features(rope, 8, MOST_POSITIONS // 4, None)["feature_gap"]) == ["2", "4"]


@pytest.mark.parametrize("rope_type", ["proportional"])
def test_features_that_stand_still_have_no_wavelength(rope_type: str) -> None:
    rope = {"rope_type": rope_type, "rope_theta": 1e4}
    part = {"partial_rotary_factor": 0.5} if rope_type == "proportional" else {}
    found = features(RopeSpec.from_dict(rope | part), 64, 64, None)
    assert 0 < len(found["wavelengths"]) < 32
    assert all(map(math.isfinite, found["wavelengths"]))
    assert {len(gaps) for gaps in found["feature_gap"].values()} == {len(found["wavelengths"])}


def cell(path: Path, rope: dict[str, object] | None, backend: str = "hf") -> CellRecord:
    return CellRecord(
        schema_version=1,
        cell_id="0",
        model=ModelRecord(name="m", path=str(path), backend=backend),
        method=MethodRecord(name="r", rope_parameters=rope),
        tasks=("t",),
        context_length=64,
    )


def test_a_model_as_it_is_and_one_that_nobody_can_describe(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_features(cell(tmp_path, None), tmp_path)
    written = json.loads((tmp_path / FEATURES).read_text())
    assert written["schema_version"] == SCHEMA_VERSION
    assert len(written["wavelengths"]) == 4
    (tmp_path / FEATURES).unlink()
    write_features(cell(tmp_path, None, "local-completions"), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    write_features(cell(tmp_path, None), tmp_path)
    write_features(cell(tmp_path / "gone", None), tmp_path)
    (tmp_path / "config.json").write_text('{"head_dim": "wide", "rope_theta": 1e4')
    write_features(cell(tmp_path, None), tmp_path)
    assert not (tmp_path / FEATURES).exists()
