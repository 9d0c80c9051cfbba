"""What users type, right and wrong: one table of exit codes (0 fine, 1 failed, 2 wrong usage).

A mistake is tested here once; tests of a part have those that need more than a command line.
"""

import json
import shlex
from contextlib import chdir

import pytest
from golden_access import RESULTS, run

FINE = """
rope --method default --head-dim 8 --original 16 --factor 2
check model --rope yarn:factor=2 --context-length 512
export model --rope yarn:factor=2 --out new
score --task gsm one.jsonl
table {results}/posgen
page {results}/posgen --out new
data verify sample
posgen table {results}/posgen_train
sweep --help
"""
HUB = """
prompt leval_closed_gsm --model absent --data-dir sample --context-length 900  # cached files
"""
WRONG = """
export model --rope yarn:factor=2 --out full            # already exists
score --task gsm empty.jsonl
score --task gsm text.txt
table empty                                             # no run.json and no results
page {results}/posgen --out full                        # give a new folder
data verify absent                                      # does not exist
data fetch                                              # --out
posgen evaluate empty --encoding yarn                   # posgen train
posgen table empty                                      # posgen train
nope                                                    # No such command 'nope'
swep quickstart                                         # Did you mean 'sweep'
rope                                                    # --method
rope --method nope                                      # 'nope' is not one of
rope --method ntk --head-dim 2                          # at least 4
rope --method ntk --factor 0.5                          # factor: Input should be gr
check empty                                             # holds no config.json
export empty --rope yarn:factor=2 --out new             # holds no config.json
check ./absent/model                                    # there is no folder
check model --nope                                      # No such option
check model --rope nope:factor=2                        # unknown type 'nope'
check model --rope yarn:factor=x                        # factor: Input should be a valid number
check model --rope yarn:factor=2,nope=1                 # nope
export model                                            # --rope
prompt leval_nope --model model                         # TASK: 'leval_nope' is not allowed
prompt leval_closed_gsm                                 # --model
score one.jsonl                                         # --task
score --task tofl one.jsonl                             # did you mean 'toefl'
score --task coursera one.jsonl                         # is not of coursera
score --task gsm absent.jsonl                           # does not exist
table {results}/posgen --format nope                    # 'nope' is not one of
page {results}/posgen                                   # --out
sweep quickstrt                                         # did you mean 'quickstart'
sweep absent/config.yaml                                # is neither a file nor a shipped sweep
sweep bad.yaml                                          # is not valid YAML
sweep text.txt                                          # must be a mapping
sweep quickstart --dry-run --set method.yarn.factor=2   # did you mean 'methods'
sweep quickstart --executor nope                        # 'nope' is not one of
sweep quickstart --json                                 # --json goes with --dry-run
sweep quickstart --jobs 0                               # 0 is not in the range
sweep quickstart --dry-run --set seed=x                 # should be a valid integer ('x' given)
sweep quickstart --dry-run --set models.SmolLM2-135M.path=./absent   # there is no folder
model nope                                              # 'nope' is not
posgen train                                            # --out
posgen train --jobs 0 --out new                         # --jobs
posgen train --out new --preset papr                    # did you mean 'paper'
posgen train --encoding jarn --out new                  # 'jarn' is not one of
posgen train --modulus 0 --out new                      # modulus
posgen train --modulus 7 --out new                      # give only 2401
posgen evaluate model --encoding nope                   # encoding: 'nope' is not allowed
finetune model                                          # --out
finetune model --out new --data text.txt --preset cpuu  # did you mean 'cpu'
finetune model --out new --warmup 1                     # warmup
finetune model --out new --rope {{                       # not JSON
lm-eval run --rope                                      # '--rope' requires an argument
lm-eval run --rope yarn:factor=2 --rope-precision half  # 'half' is not one of
lm-eval run --rope yarn:factor=2 --context-length 0     # 0 is not in the range
lm-eval run --tasks leval_closed_toef --model_args=pretrained=m  # not found: leval_closed_toef
lm-eval run --context-length 8                           # --context-length needs --rope
"""
"""Behind a line, what is said."""

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
    """How a command ended in a folder with a few good and bad files."""
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
    before = set(tmp_path.iterdir())

    def end(line):
        with chdir(tmp_path):
            done = run(*shlex.split(line.format(results=RESULTS)))
        assert "Traceback" not in done.err
        if done.code:
            assert set(tmp_path.iterdir()) == before, "nothing is left behind"
        return done

    return end


ROWS = [
    (code, *map(str.strip, line.partition(" # ")[::2]))
    for code, text in ((0, FINE), (1, HUB), (2, WRONG))
    for line in text.strip().splitlines()
]


@pytest.mark.parametrize(("code", "line", "says"), ROWS)
def test_command_line_mistake_has_exit_code_and_reason(ended, code, line, says):
    done = ended(line)
    assert done.code == code, done.err
    assert says in done.err
    assert code < 1 or done.out == ""
