"""Exit codes: 0 fine, 1 failed, 2 wrong usage."""

import json
import shlex

import pytest
from golden_access import RESULTS, inside, run

FINE = """
rope --method default --head-dim 8 --original 16 --factor 2
check model --rope yarn:factor=2 --context-length 512
export model --rope yarn:factor=2 --out new
score --task gsm one.jsonl
table {results}/posgen
page {results}/posgen --out new
data list sample
data verify sample
posgen table {results}/posgen_train
--help
sweep --help
"""
FAILED = """
check model --rope yarn:factor=2 --context-length 5000
export model --rope yarn:factor=2 --out full
export empty --rope yarn:factor=2 --out new
score --task gsm empty.jsonl
score --task gsm text.txt
table empty
page {results}/posgen --out full
data list absent
data verify empty
prompt leval_closed_gsm --model absent --data-dir sample --context-length 900
posgen evaluate empty --encoding yarn
posgen table empty
"""
WRONG_USAGE = """
nope
rope
rope --method nope
rope --method ntk --factor 0.5
rope --method longrope --short-factor [1
check empty
check model --nope
check model --rope nope:factor=2
check model --rope yarn:factor=x
check model --rope yarn
check model --rope yarn:factor=2,nope=1
check model --rope {{
export model
export absent --rope yarn:factor=2 --out new
prompt leval_nope --model model
prompt leval_closed_gsm
prompt leval_closed_gsm --model model --data-dir sample -n x
score one.jsonl
score --task nope one.jsonl
score --task coursera one.jsonl
score --task gsm absent.jsonl
table absent
table {results}/posgen --format nope
page {results}/posgen
sweep nope
sweep bad.yaml
sweep text.txt
sweep quickstart --set nope
sweep quickstart --set nope=1
sweep quickstart --executor nope
sweep quickstart --set models.SmolLM2-135M.path=./absent
data fetch
model nope
posgen train
posgen train --jobs 0 --out new
posgen train --encoding nope --out new
posgen train --modulus 0 --out new
posgen evaluate model --encoding nope
posgen table {results}/posgen_train --pair rope:proportional rope
finetune model
finetune model --out new --data text.txt --preset nope
finetune model --out new --data text.txt --steps x
lm-eval run --rope
lm-eval run --rope-precision model
"""
# `check` and `export` would start a process of vLLM; `tests/rope/test_check.py` runs that.
pytestmark = pytest.mark.usefixtures("without_vllm")

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


@pytest.fixture
def ended(tmp_path):
    """The exit code of a command line in a folder with a few good and bad files."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "one.jsonl").write_text(json.dumps({"gt": "18", "x_pred": "18"}) + "\n")
    (tmp_path / "text.txt").write_text("a text\n")
    (tmp_path / "bad.yaml").write_text("models: [\n")

    def end(line):
        with inside(tmp_path):
            return run(*shlex.split(line.format(results=RESULTS))).code

    return end


def lines(text):
    return pytest.mark.parametrize("line", text.strip().split("\n"))


@lines(FINE)
def test_fine(ended, line):
    assert ended(line) == 0


@lines(FAILED)
def test_failed(ended, line):
    assert ended(line) == 1


@lines(WRONG_USAGE)
def test_wrong_usage(ended, line):
    assert ended(line) == 2
