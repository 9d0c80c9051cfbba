"""`check` on a GGUF file and on a folder of mlx-lm."""

import json

import pytest
from click.testing import CliRunner
from vectors.generate import FILE

from leval_harness.cli.checkpoints import check as command
from resonance_vllm.shipped_files import against, held
from resonance_vllm.vectors.rope_vectors import RIGHT, adapter, compare

BY_ID = {v["id"]: v for v in json.loads(FILE.read_text(encoding="utf-8"))["vectors"]}
# Every kind of scaling, and settings that llama.cpp leaves out.
SEEN = (
    "default-64-100000", "linear-8.0", "yarn-4-truncate-true", "yarn-4-truncate-false",
    "yarn-beta-64-2", "yarn-attention-1.5", "llama3-8-1-4-64", "longrope-plain@4096",
    "longrope-plain@32768",
)  # fmt: skip


@pytest.fixture
def probe(tmp_path):
    """A GGUF file with the settings of a vector, and what llama.cpp itself runs for it."""
    llama_cpp = adapter("llama_cpp")

    def written(identity):
        vector = BY_ID[identity]
        file = tmp_path / "probe.gguf"
        llama_cpp._write(file, vector, [0.3] * len(vector["inv_freq"]))
        return file, llama_cpp.read(vector)

    return written


def checkpoint(folder, identity, **more):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**BY_ID[identity]["config"], **more}))
    return folder


@pytest.mark.parametrize("identity", SEEN)
def test_what_a_gguf_file_holds_is_what_llama_cpp_runs(probe, identity):
    file, running = probe(identity)
    (found,) = held(str(file), BY_ID[identity]["length"]).values()
    assert compare(found, running).status == RIGHT


@pytest.mark.parametrize("identity", ["longrope-plain@4096", "longrope-plain@32768"])
def test_factors_of_longrope_count_without_a_scaling_type(identity, tmp_path, monkeypatch):
    """llama.cpp's converter writes none for Phi-3."""
    llama_cpp, vector = adapter("llama_cpp"), BY_ID[identity]
    monkeypatch.setattr(llama_cpp.GGUFWriter, "add_rope_scaling_type", lambda *_: None)
    llama_cpp._write(tmp_path / "probe.gguf", vector, [0.3] * len(vector["inv_freq"]))
    (found,) = held(str(tmp_path / "probe.gguf"), vector["length"]).values()
    assert compare(vector, found).status == RIGHT


def test_a_gguf_file_against_its_original(probe, tmp_path):
    file, _ = probe("yarn-4-truncate-false")
    original = checkpoint(tmp_path / "original", "yarn-4-truncate-false")
    (line,) = against(str(file), str(original))
    assert line.startswith("rotation: 25 of 64 frequencies up to")
    same = checkpoint(tmp_path / "same", "yarn-4-truncate-true")
    assert against(str(file), str(same)) == []
    result = CliRunner().invoke(command, [str(file), "--against", str(same)])
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "  none")
    result = CliRunner().invoke(command, [str(file), "--against", str(original), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.output.splitlines()[0])["differences"] == [line]


def test_a_folder_of_mlx_lm_against_its_original(tmp_path):
    identity = "yarn-4-truncate-false"
    quantized = {"quantization": {"group_size": 64, "bits": 4}}
    mlx = checkpoint(tmp_path / "mlx", identity, **quantized)
    original = checkpoint(tmp_path / "original", identity)
    (line,) = against(str(mlx), str(original))
    assert line.startswith("rotation: 25 of 64 frequencies up to 11.17% off")
    plain = checkpoint(tmp_path / "plain", "llama3-8-1-4-64", **quantized)
    assert against(str(plain), str(checkpoint(tmp_path / "of", "llama3-8-1-4-64"))) == []


def test_against_is_for_files_of_other_engines(tmp_path):
    folder = str(checkpoint(tmp_path / "plain", "linear-8.0"))
    result = CliRunner().invoke(command, [folder, "--against", folder])
    assert "neither a GGUF file nor a folder of mlx-lm" in str(result.exception)
