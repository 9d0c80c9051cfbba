"""What would make a run fail is found before anything is loaded, all of it at once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from leval_harness.cli.main import app
from leval_harness.sweep import ConfigError
from leval_harness.sweep.config import parse_config
from leval_harness.sweep.dry_run import nothing_beyond, shortening_methods
from leval_harness.sweep.executor import Capacity
from leval_harness.sweep.plan import plan
from leval_harness.sweep.preflight import (
    _least_length,
    check_runs,
    checkpoint_problems,
    generation_problems,
    gpu_problems,
    length_problems,
    text_problems,
)
from leval_harness.sweep.run_record import RunRecord

Planned = Callable[..., list[RunRecord]]
TOKENIZER = Path(__file__).parents[1] / "golden" / "tokenizer"
ONE_GPU = Capacity(["0"], 1, 1)


def content(path: Path, **changes: Any) -> dict[str, Any]:
    base = {
        "models": {"small": {"path": str(path), **changes.pop("model", {})}},
        "methods": {"rope": {"rope_type": "default"}},
        "tasks": "leval_closed_gsm",
        "metadata": {"data_dir": "sample"},
        "context_lengths": [4096],
    }
    return {"name": "x", **base, **changes}


def planned(path: Path, **changes: Any) -> list[RunRecord]:
    return plan(parse_config(content(path, **changes)))


def test_checkpoint_without_weights(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (problem,) = checkpoint_problems(planned(checkpoint))
    assert problem.startswith(f"models.small.path: {checkpoint} has no weights")


@pytest.mark.parametrize("name", ["model-1.safetensors", "pytorch_model.bin", "model.gguf", "m.pt"])
def test_checkpoint_with_weights(checkpoint: Path, name: str) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / name)
    assert list(checkpoint_problems(planned(checkpoint))) == []


@pytest.mark.parametrize("args", [{"gguf_file": "x.gguf"}, {"load_format": "dummy"}])
def test_checkpoint_with_weights_elsewhere(checkpoint: Path, args: dict[str, str]) -> None:
    (checkpoint / "model.safetensors").unlink()
    assert list(checkpoint_problems(planned(checkpoint, model={"args": args}))) == []


@pytest.mark.parametrize(("model_type", "near"), [("lama", "'llama'"), ("of_my_own", "")])
def test_checkpoint_of_unknown_type(checkpoint: Path, model_type: str, near: str) -> None:
    runs = planned(checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
    (problem,) = checkpoint_problems(runs)
    assert (
        f"is '{model_type}', which the installed version of transformers does not know" in problem
    )
    assert near in problem
    own_code = {**config, "model_type": model_type, "auto_map": {"AutoConfig": "c.C"}}
    (checkpoint / "config.json").write_text(json.dumps(own_code))
    assert list(checkpoint_problems(runs)) == []


def test_gpus_that_are_not_there(checkpoint: Path) -> None:
    runs = planned(checkpoint, model={"gpus": 2})
    assert "small takes 2 GPUs and 1 are visible" in next(iter(gpu_problems(runs, ONE_GPU)))
    assert list(gpu_problems(runs, Capacity(["0", "1"], 1, 2))) == []


def test_parallelize_needs_gpus(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"models\.small\.gpus: missing; args\.parallelize"):
        planned(checkpoint, model={"args": {"parallelize": True}})
    assert planned(checkpoint, model={"args": {"parallelize": True}, "gpus": 2})[0].gpus == 2


@pytest.mark.parametrize(
    ("name", "near"), [("max_gen_tokz", "max_gen_toks"), ("temprature", "temperature"), ("foo", "")]
)
def test_generation_setting_unknown(checkpoint: Path, name: str, near: str) -> None:
    (problem,) = generation_problems(planned(checkpoint, gen_kwargs={name: 1}))
    assert f"gen_kwargs.{name}: unknown generation setting" in problem
    assert near in problem


def test_generation_settings_known(checkpoint: Path) -> None:
    known = {"until": ["x"], "max_gen_toks": 3, "do_sample": True, "top_p": 0.9, "num_beams": 2}
    assert list(generation_problems(planned(checkpoint, gen_kwargs=known))) == []


def test_metadata_that_no_task_reads(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"metadata\.shots: no task of this package reads it"):
        planned(checkpoint, metadata={"data_dir": "sample", "shots": 1})
    others = planned(checkpoint, tasks="wikitext", metadata={"shots": 1})
    assert others[0].metadata == {"shots": 1}, "tasks of lm-eval have settings of their own"


@pytest.mark.parametrize("task", ["effective_context_pydocs", "ppl_pydocs"])
def test_text_that_is_too_short(tiny: Path, task: str) -> None:
    methods = {"rope": {"rope_type": "default"}, "yarn": {"rope_type": "yarn", "factor": 99_999}}
    long = planned(tiny / "model", tasks=task, methods=methods, context_lengths=[4_000_000])
    problems = list(text_problems(long))
    assert problems
    assert all("fewer than one document of" in problem for problem in problems)
    assert list(text_problems(planned(tiny / "model", tasks=task, context_lengths=[128]))) == []


LEAST = {"ruler_vt": (1024, 1280), "ruler_cwe": (201, 700), "ruler_fwe": (65, 256)}
"""Task -> bounds of its least length with the tokenizer of SmolLM2.

It never returns one token below the first one; from the second one on no length may be refused.
"""


@pytest.mark.parametrize("task", [*LEAST, "niah_single_1"])
def test_length_below_the_least_of_ruler(task: str) -> None:
    hangs, returns = LEAST.get(task, (0, 0))
    assert hangs <= _least_length(task, str(TOKENIZER)) <= returns


@pytest.mark.parametrize("tasks", ["ruler", "longcxt", "ruler_vt"])
def test_lengths_below_the_least_are_named(tiny: Path, tasks: str) -> None:
    yarn = {"yarn": {"rope_type": "yarn", "factor": 99}}
    short = planned(tiny / "model", tasks=tasks, methods=yarn, context_lengths=[64])
    problems = list(length_problems(short))
    names = ["ruler_vt"] if tasks == "ruler_vt" else sorted(LEAST)
    assert [problem.split("question of ")[1].split()[0] for problem in problems] == names
    by_hand = {"max_seq_lengths": [64, 9000]}
    stated = planned(tiny / "model", tasks="ruler_vt", metadata=by_hand, context_lengths=None)
    assert "context_lengths: 64 is below the " in next(iter(length_problems(stated)))
    enough = planned(tiny / "model", tasks=tasks, methods=yarn, context_lengths=[9000])
    assert list(length_problems(enough)) == []


def test_check_names_all_that_is_wrong(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    runs = planned(checkpoint, model={"gpus": 2}, gen_kwargs={"foo": 1})
    with pytest.raises(ConfigError) as caught:
        check_runs(runs, ONE_GPU)
    assert [line.split(":")[0] for line in str(caught.value).split("\n")] == [
        "models", "models.small.path", "gen_kwargs.foo",
    ]  # fmt: skip


def test_plan_names_all_that_is_wrong(checkpoint: Path) -> None:
    wrong = content(
        checkpoint,
        tasks=["nowhere.yaml", "leval_closed_gsm"],
        methods={"rope": None, "yarn": {"rope_type": "yarn", "factor": 2}},
        context_lengths=[4096, 20000, 30000],
    )
    wrong["models"]["other"] = {"path": "./nowhere"}
    with pytest.raises(ConfigError) as caught:
        plan(parse_config(wrong))
    lines = str(caught.value).split("\n")
    assert "there is no file nowhere.yaml" in lines[0]
    assert "models.other.path: there is no folder" in lines[1]
    assert all("above the limit of 8192" in line for line in lines[2:])
    assert len(lines) == 4


def test_config_names_all_that_is_wrong(checkpoint: Path) -> None:
    wrong = content(checkpoint, baseline="nothing", lenghts=[1], model={"dtype": "float12"})
    wrong["models"]["small"] |= {"bakend": "hf", "methods": ["rope", "nowhere"]}
    wrong["tasks"] = [{"tasks": "leval_closed_gsm", "limit": 0, "shots": 1}]
    with pytest.raises(ConfigError) as caught:
        parse_config(wrong)
    lines = str(caught.value).split("\n")
    assert sorted(line.split(":")[0] for line in lines) == [
        "config.baseline", "config.lenghts", "config.models.small.bakend",
        "config.models.small.dtype", "config.models.small.methods", "config.tasks.0.limit",
        "config.tasks.0.shots",
    ]  # fmt: skip


def test_plan_and_preflight_are_shown_at_once(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    wrong = content(checkpoint, context_lengths=[4096, 20000], gen_kwargs={"foo": 1},
                    methods={"yarn": {"rope_type": "yarn", "factor": 2}})  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        plan(parse_config(wrong), lambda: ONE_GPU)
    above, weights, setting = str(caught.value).split("\n")
    assert "above the limit of" in above
    assert "has no weights" in weights
    assert "gen_kwargs.foo" in setting


def test_dry_run_shows_plan_then_problems(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content(checkpoint)))
    words = ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, [*words, "--dry-run"])
    assert "1 run, 1 to do" in shown.output
    assert isinstance(shown.exception, ConfigError)
    assert "has no weights" in str(shown.exception)
    started = CliRunner().invoke(app, words)
    assert str(started.exception) == str(shown.exception)
    assert not (tmp_path / "out").exists()


LONG = {"model_type": "llama", "rope_theta": 1e6, "max_position_embeddings": 262_144,
        "hidden_size": 64, "num_attention_heads": 1}  # fmt: skip


def test_plan_says_what_is_beyond_the_model(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = {**LONG, "max_position_embeddings": 512}
    (checkpoint / "config.json").write_text(json.dumps(short))
    planned(checkpoint, context_lengths=[3001])  # a length of its own: it is said once
    assert "3,001 tokens are beyond the 512 positions" in caplog.text


def test_dry_run_names_a_method_that_shortens(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text(json.dumps(LONG))
    yarn = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32_768}
    runs = planned(checkpoint, methods={"rope": None, "yarn": yarn})
    (note,) = shortening_methods(runs)
    assert "yarn shortens the context of small: its limit is 131,072 tokens" in note
    assert "native context length 262,144" in note


@pytest.mark.parametrize(("length", "says"), [("1x", True), (12_288, True), ("1.5x", False)])
def test_dry_run_says_what_is_not_measured(checkpoint: Path, length: Any, says: bool) -> None:
    (checkpoint / "config.json").write_text(
        json.dumps({**LONG, "max_position_embeddings": 131_072})
    )
    methods = {"rope": None, "yarn": {"rope_type": "yarn", "factor": 2}}
    runs = planned(checkpoint, methods=methods, context_lengths=[length],
                   tasks="effective_context_pydocs")  # fmt: skip
    notes = list(nothing_beyond(runs))
    assert bool(notes) == says
    if says:
        assert "nothing is measured beyond its native context length of 131,072 tokens" in notes[0]
        assert f"(the longest: {131_072 if length == '1x' else length:,})" in notes[0]
        assert "context_lengths: [1.5x] would" in notes[0]
