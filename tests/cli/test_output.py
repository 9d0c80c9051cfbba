"""Where commands write: a file whole, a pipe or device as it is."""

import json
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest
from tqdm import tqdm

from leval_harness.cli.main import main
from leval_harness.cli.output import write_or_print


def test_a_pipe_stays_a_pipe(tmp_path):
    """`--out /dev/stdout`, or `/dev/null` of the superuser, which a rename would replace."""
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    write_or_print("a table", pipe)
    reader.join(10)
    assert heard == ["a table"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("changed", [{"max_position_embeddings": "long"}, {"hidden_size": 24}])
def test_a_folder_that_is_no_model_is_said_by_finetune(changed, tmp_path, save_llama, capsys):
    """Errors of transformers are of many kinds, which were tracebacks."""
    save_llama(tmp_path / "model", vocab_size=64, max_position_embeddings=64)
    for file in (Path(__file__).parents[1] / "golden" / "tokenizer").iterdir():
        shutil.copy(file, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changed))
    (tmp_path / "text.txt").write_text("word and word " * 400)
    line = ["finetune", str(tmp_path / "model"), "--data", str(tmp_path / "text.txt")]
    line += ["--out", str(tmp_path / "new"), "--steps=1", "--sequence-length=32", "--held-out=0"]
    with pytest.raises(SystemExit) as end:
        main(line)
    said = capsys.readouterr().err
    assert end.value.code in (1, 2)
    assert "transformers cannot" in said.splitlines()[-1]


def test_a_training_says_its_steps_beside_its_json(monkeypatch, capsys):
    def trained(*_):
        tqdm.write("{'loss': '7.31'}")  # as transformers' ProgressCallback does
        return {"steps": 1, "tokens": 32, "epochs": 0.1, "mean_loss": 7.3, "seconds": 1.0}

    monkeypatch.setattr("leval_harness.training.finetune.finetune", trained)
    with pytest.raises(SystemExit) as end:
        main(["finetune", "model", "--out", "new", "--json"])
    said = capsys.readouterr()
    assert not end.value.code, said.err
    assert json.loads(said.out)["steps"] == 1
    assert "7.31" in said.err
