"""Runs whose files were cut, and two runs on one folder."""

import json
import shutil
from pathlib import Path

import pytest

from leval_harness.training import trainer as shared
from leval_harness.training.finetune import _Metrics, finetune
from leval_harness.training.finetune_settings import FineTuneSettings
from resonance_vllm.errors import UserError
from resonance_vllm.files import altered

pytestmark = [pytest.mark.hf]

SETTINGS = FineTuneSettings(
    sequence_length=32, batch_size=1, accumulation=1, steps=4, save_steps=2, warmup=0.0,
    bf16=False, gradient_checkpointing=False, held_out=1,
)  # fmt: skip
VOLATILE = ("seconds", "command", "host")


@pytest.fixture(scope="module")
def asked(tmp_path_factory, save_llama):
    """Model and text of a training of a second."""
    from transformers import PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("asked")
    save_llama(root / "model", vocab_size=300, max_position_embeddings=64)
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = {chr(ord("a") + i): i for i in range(26)} | {"</s>": 26, "[UNK]": 27}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(
        root / "model"
    )
    texts = [" ".join(chr(ord("a") + (i * n) % 26) for i in range(300)) for n in (3, 5, 7, 11)]
    (root / "books.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return str(root / "model"), [str(root / "books.jsonl")]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def lasting(result: dict) -> dict:
    return {key: value for key, value in result.items() if key not in VOLATILE}


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 5])
def test_a_cut_in_any_file_of_a_run_costs_no_result(asked, tmp_path, killed, every):
    """Every file of a run that was stopped, and of one that had ended, cut to its half."""
    whole = lasting(finetune(*asked, tmp_path / "whole", SETTINGS))
    with killed(_Metrics, "on_log", 3, True):
        finetune(*asked, tmp_path / "stopped", SETTINGS)
    assert shared.last_state(tmp_path / "stopped" / "states")[1] == 2
    for kind in ("stopped", "whole"):
        places = [path.relative_to(tmp_path / kind) for path in files(tmp_path / kind)]
        assert len(places) > 8
        for place in places[::every]:
            out = tmp_path / "cut"
            shutil.copytree(tmp_path / kind, out)
            content = (out / place).read_bytes()
            (out / place).write_bytes(content[: len(content) // 2])
            assert lasting(finetune(*asked, out, SETTINGS)) == whole, place
            assert not altered(out, whole["files"]), place
            shutil.rmtree(out)


def test_the_result_names_every_file_and_is_not_made_twice(asked, tmp_path, monkeypatch):
    result = finetune(*asked, tmp_path, SETTINGS)
    named = {path.relative_to(tmp_path).as_posix() for path in files(tmp_path)}
    assert set(result["files"]) == {
        name for name in named if name != "finetune_result.json" and not name.startswith(".")
    }
    monkeypatch.setattr(shared.InOrderTrainer, "train", None)
    assert finetune(*asked, tmp_path, SETTINGS) == result


@pytest.mark.parametrize("place", ["books.jsonl", "model/model.safetensors", "model/config.json"])
@pytest.mark.parametrize("ended", [True, False])
def test_a_run_on_files_that_changed_is_not_taken_for_this_one(asked, tmp_path, place, ended):
    """The same names, other weights or texts: neither the old result nor a mixture of both."""
    root = tmp_path / "asked"
    shutil.copytree(Path(asked[0]).parent, root)
    here = str(root / "model"), [str(root / "books.jsonl")]
    if ended:
        finetune(*here, tmp_path / "out", SETTINGS)
    else:
        inputs = {name: shared.content_of(name) for name in (here[0], *here[1])}
        asked_for = {"schema_version": 1, "model": here[0], "data": here[1], "inputs": inputs}
        shared.claim(tmp_path / "out/finetune.json", {**asked_for, **SETTINGS.model_dump()})
    with (root / place).open("ab") as handle:
        handle.write(b"\n")
    with pytest.raises(UserError, match=r"other content of .*, which changed since; choose"):
        finetune(*here, tmp_path / "out", SETTINGS)


@pytest.mark.parametrize("name", ["nohup.out", "LICENSE", "trainer_state.json", "wandb/run.log"])
def test_what_lies_beside_a_model_is_no_part_of_the_request(asked, tmp_path, name):
    folder = Path(shutil.copytree(asked[0], tmp_path / "model"))
    before = shared.content_of(str(folder))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("one")
    assert shared.content_of(str(folder)) == before
    (folder / "generation_config.json").write_text("{}")
    assert shared.content_of(str(folder)) != before


def test_a_second_training_on_a_folder_is_refused(asked, tmp_path):
    with (
        shared.exclusive(tmp_path / "out"),
        pytest.raises(UserError, match=r"out: another training works on .* \(process \d+ on "),
    ):
        finetune(*asked, tmp_path / "out", SETTINGS)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "metrics.csv"])
def test_a_file_edited_since_is_made_again(asked, tmp_path, name):
    result = finetune(*asked, tmp_path, SETTINGS)
    edited = (tmp_path / name).read_bytes() + b"\n"
    (tmp_path / name).write_bytes(edited)
    assert lasting(finetune(*asked, tmp_path, SETTINGS)) == lasting(result)
    assert (tmp_path / name).read_bytes() != edited
    assert not altered(tmp_path, result["files"])


@pytest.mark.parametrize("damage", [{"tokens": "/"}, {"epochs": 10**400}, {"files": []}])
def test_a_result_that_is_none_is_made_again(asked, tmp_path, damage):
    result = finetune(*asked, tmp_path, SETTINGS)
    (tmp_path / "finetune_result.json").write_text(json.dumps(result | damage))
    assert lasting(finetune(*asked, tmp_path, SETTINGS)) == lasting(result)


def test_a_claim_without_its_inputs_is_of_another_run(tmp_path):
    request = {"schema_version": 1, "inputs": {"model": "a hash"}}
    for damage in ({}, {"inputs": None}):
        (tmp_path / "finetune.json").write_text(json.dumps({"schema_version": 1, **damage}))
        with pytest.raises(UserError, match="holds a run on other content of model"):
            shared.is_claimed(tmp_path / "finetune.json", request)


def test_folders_of_other_names_are_no_states(tmp_path):
    for name in ("checkpoint-", "checkpoint-last", "checkpoint-1-2", "checkpoint-" + "9" * 30):
        (tmp_path / name).mkdir()
    assert shared.last_state(tmp_path) == (None, 0)
