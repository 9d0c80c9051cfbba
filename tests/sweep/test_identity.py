"""The cell id: the same for the same numbers, another for whatever decides them."""

import copy
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_harness import checkpoint_files
from leval_harness.cell_record import IDENTITY_FIELDS, CellRecord, cell_id
from leval_harness.old_results.run_record import Run
from leval_harness.sweep import (
    CellError,
    ConfigError,
    ModelNotFoundError,
    cells,
    identity,
    task_files,
)
from leval_harness.sweep import task_registry as own_tasks
from leval_harness.sweep.config import parse_config
from leval_harness.sweep.identity import differences, environment
from resonance_vllm.files import file_sha256

LLAMA = {
    "model_type": "llama",
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "hidden_size": 64,
    "num_attention_heads": 1,
}


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVAL_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "model.safetensors").write_bytes(b"weights" * 300_000)
    (folder / "README.md").write_text("words")
    return folder


def config(checkpoint: Path, **changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "name": "test",
        "models": {"small": {"path": str(checkpoint), "backend": "hf"}},
        "methods": {"yarn": {"rope_type": "yarn", "factor": 2}},
        "tasks": ["leval_closed_gsm"],
        "metadata": {"data_dir": "sample"},
        "context_lengths": [8192],
    }
    return copy.deepcopy({**content, **changes})


def only_id(content: dict[str, Any]) -> str:
    (cell,) = cells.plan(parse_config(content))
    return cell.id


CHANGES: dict[str, dict[str, Any]] = {
    "rope": {"methods": {"yarn": {"rope_type": "yarn", "factor": 4}}},
    "method": {"methods": {"yarn": {"rope_type": "resonance_yarn", "factor": 2}}},
    "length": {"context_lengths": [4096]},
    "task": {"tasks": ["leval_closed_codeu"]},
    "documents": {"metadata": {"data_dir": "sample", "num_docs": 1}},
    "seed": {"seed": 1},
    "limit": {"limit": 3},
    "generation": {"gen_kwargs": {"max_gen_toks": 32}},
    "generation of one task": {"task_gen_kwargs": {"leval_closed_gsm": {"max_gen_toks": 32}}},
    "precision": {"rope_precision": "model"},
    "few shots": {"num_fewshot": 1},
}
MODEL_CHANGES: dict[str, dict[str, Any]] = {
    "dtype": {"dtype": "float32"},
    "backend": {"backend": "hf-long"},
    "template": {"apply_chat_template": True},
    "batch": {"batch_size": 2},
    "argument": {"args": {"attn_implementation": "eager"}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_decides_numbers_changes_the_id(checkpoint: Path, name: str) -> None:
    assert only_id(config(checkpoint)) != only_id(config(checkpoint, **CHANGES[name]))


@pytest.mark.parametrize("name", MODEL_CHANGES)
def test_how_a_model_is_run_changes_the_id(checkpoint: Path, name: str) -> None:
    changed = config(checkpoint)
    changed["models"]["small"].update(MODEL_CHANGES[name])
    assert only_id(config(checkpoint)) != only_id(changed)


@pytest.mark.parametrize("stock", ["hf", "vllm"])
def test_a_backend_of_ours_runs_as_the_stock_one_does(checkpoint: Path, stock: str) -> None:
    """Same arguments, precision and library versions; only the name and with it the id differ."""
    records = []
    for backend in (stock, f"{stock}-long"):
        changed = config(checkpoint)
        changed["models"]["small"]["backend"] = backend
        (cell,) = cells.plan(parse_config(changed))
        record = copy.deepcopy(cell.record.written())
        assert record["model"].pop("backend") == record["identity"]["model"].pop("backend")
        records.append({**record, "cell_id": None})
    assert records[0] == records[1]
    assert "transformers" in records[0]["versions"]
    there = importlib.util.find_spec("vllm") is not None
    assert ("vllm" in records[0]["versions"]) == (stock == "vllm" and there)


def test_names_and_limits_of_time_do_not(checkpoint: Path) -> None:
    changed = config(checkpoint, timeout=60, baseline="other", name="elsewhere")
    changed["methods"] = {"other": changed["methods"]["yarn"]}
    changed["models"]["small"] |= {"name": "shown", "resources": {"num_gpus": 1}}
    assert only_id(config(checkpoint)) == only_id(changed)


def test_cells_know_their_place_in_the_config_and_keep_their_ids(checkpoint: Path) -> None:
    both = config(checkpoint)
    methods = {"plain": {"rope_type": "default"}, **both["methods"]}
    both["methods"] = methods
    first = cells.plan(parse_config(both))
    both["methods"] = dict(reversed(methods.items()))
    second = cells.plan(parse_config(both))
    assert [cell.record.method.name for cell in first] == list(methods)
    assert [cell.record.place for cell in first] == list(range(len(methods)))
    places = {cell.id: cell.record.place for cell in second}
    assert [places[cell.id] for cell in first] == list(reversed(range(len(methods))))


def test_one_byte_of_weights_changes_the_id_and_a_copy_does_not(
    checkpoint: Path, tmp_path: Path
) -> None:
    before = only_id(config(checkpoint))
    twin = tmp_path / "twin"
    twin.mkdir()
    for path in checkpoint.iterdir():
        (twin / path.name).write_bytes(path.read_bytes())
    (twin / "README.md").write_text("other words")
    assert only_id(config(twin)) == before
    weights = bytearray((twin / "model.safetensors").read_bytes())
    weights[1_000_000] ^= 1
    (twin / "model.safetensors").write_bytes(weights)
    assert only_id(config(twin)) != before


def test_documents_of_a_folder_are_told_by_their_content(checkpoint: Path, tmp_path: Path) -> None:
    from leval_tasks.data import SAMPLE

    data = tmp_path / "data"
    data.mkdir()
    (data / "gsm100.jsonl").write_bytes((SAMPLE / "gsm100.jsonl").read_bytes())
    own = {"metadata": {"data_dir": str(data), "own_data": True}}
    before = only_id(config(checkpoint, **own))
    (data / "unrelated.jsonl").write_text("{}")
    assert only_id(config(checkpoint, **own)) == before
    with (data / "gsm100.jsonl").open("a") as handle:
        handle.write("\n")
    assert only_id(config(checkpoint, **own)) != before
    (data / "gsm100.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"has no gsm100\.jsonl, which leval_closed_gsm reads"):
        only_id(config(checkpoint, **own))


def test_two_names_for_one_thing_are_refused(checkpoint: Path) -> None:
    twice = config(checkpoint)
    twice["methods"]["again"] = {"rope_type": "yarn", "factor": 2.0}
    with pytest.raises(ConfigError, match="compute the same"):
        cells.plan(parse_config(twice))


def test_lengths_beyond_a_method_and_missing_models_are_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="context_length: 16384 is above the limit of 8192"):
        cells.plan(parse_config(config(checkpoint, context_lengths=[16384])))
    with pytest.raises(ModelNotFoundError, match="there is no folder"):
        cells.plan(parse_config(config(checkpoint / "nowhere")))
    with pytest.raises(ModelNotFoundError, match="there is no folder org/name/more"):
        cells.plan(parse_config(config("org/name/more")))
    with pytest.raises(ModelNotFoundError) as found:
        cells.plan(parse_config(config("org/no-such-model")))
    assert "there is no folder" not in str(found.value)  # it may be a name on the hub
    (checkpoint / "config.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json in it\)$"):
        cells.plan(parse_config(config(checkpoint)))
    (checkpoint / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match="an adapter: put it into `args` as `peft`"):
        cells.plan(parse_config(config(checkpoint)))


def test_values_of_a_difference_are_cut_at_eighty_characters():
    found = differences({"a": "x" * 81, "b": None}, {"a": "y" * 80, "b": 1})
    assert found == {"a": ("x" * 80, "y" * 80), "b": ("nothing", "1")}


def test_the_record_has_what_readers_are_promised(checkpoint: Path) -> None:
    (cell,) = cells.plan(parse_config(config(checkpoint, baseline="yarn")))
    record = cell.record.written()
    promised = {"schema_version", "cell_id", "sweep", "model", "method", "context_length", "tasks"}
    promised |= {"metadata", "gen_kwargs", "limit", "seed", "apply_chat_template", "baseline"}
    assert promised | {"versions"} <= record.keys()
    assert record["method"] == {
        "name": "yarn",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 4096,
        },
        "rope_precision": "float32",
    }
    assert cell.record.model_args["max_length"] == 8192
    assert cell_id(cell.record.identity) == cell.id
    assert set(cell.record.identity) | {"environment"} == set(IDENTITY_FIELDS)
    written = json.loads(json.dumps(record))
    assert json.loads(json.dumps(CellRecord.model_validate(written).written())) == written


def test_hashes_of_large_files_are_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "big", tmp_path / "cache" / "hashes.json"
    path.write_bytes(b"x" * (1 << 20))
    first = checkpoint_files.cached_sha256(path, cache)
    assert first == file_sha256(path)
    assert not cache.exists(), "it may change again within the same tick of the clock"
    monkeypatch.setattr(checkpoint_files, "SETTLED_SECONDS", -1.0)
    assert checkpoint_files.cached_sha256(path, cache) == first
    known = json.loads(cache.read_text())
    assert list(known.values()) == [first]
    cache.write_text(json.dumps(dict.fromkeys(known, "f" * 64)))
    assert checkpoint_files.cached_sha256(path, cache) == "f" * 64, "it was read again"
    times = path.stat()
    with path.open("r+b") as handle:  # in place, and its time set back
        handle.write(b"y")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert checkpoint_files.cached_sha256(path, cache) == file_sha256(path)
    cache.write_text("not json")
    assert checkpoint_files.cached_sha256(path, cache) == file_sha256(path)


def test_small_files_and_those_of_the_last_two_seconds_are_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small, cache = tmp_path / "large", tmp_path / "small", tmp_path / "hashes.json"
    large.write_bytes(b"x" * (1 << 20))
    small.write_bytes(b"x" * 1000)
    changed = large.stat().st_ctime_ns / 1e9
    for path, age, is_remembered in ((small, 3600, False), (large, 1, False), (large, 3, True)):
        now = changed + age
        monkeypatch.setattr(checkpoint_files.time, "time", lambda now=now: now)
        assert checkpoint_files.cached_sha256(path, cache) == file_sha256(path)
        assert cache.exists() == is_remembered


@pytest.mark.parametrize(
    "name",
    [
        "additional_chat_templates/tool.jinja",
        "qwen.tiktoken",
        "spiece.vocab",
        "model-2.safetensors",
    ],
)
def test_every_file_of_a_model_that_is_loaded_counts(checkpoint: Path, name: str) -> None:
    assert len(set(ids_with(checkpoint, name))) == 3


@pytest.mark.parametrize("name", ["code/module.py", "tokenizer/vocab", "linked/config.json"])
def test_code_of_a_checkpoint_may_read_every_file(
    checkpoint: Path, tmp_path: Path, name: str
) -> None:
    if name.startswith("linked"):
        (tmp_path / "elsewhere").mkdir()
        (checkpoint / "linked").symlink_to(tmp_path / "elsewhere")
    assert len(set(ids_with(checkpoint, name))) == 1
    (checkpoint / name).unlink()
    assert len(set(ids_with(checkpoint, name, {"trust_remote_code": True}))) == 3


def ids_with(checkpoint: Path, name: str, args: dict[str, Any] | None = None) -> list[str]:
    """The id without a file of the model, with it, and with another content."""
    wanted = config(checkpoint)
    wanted["models"]["small"]["args"] = args or {}
    ids = [only_id(wanted)]
    (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
    for content in (b"one", b"two"):
        (checkpoint / name).write_bytes(content)
        ids.append(only_id(wanted))
    return ids


@pytest.mark.parametrize("name", [".git/HEAD", "__pycache__/x.pyc", "results/x.json"])
def test_results_and_hidden_files_are_read_by_no_code(checkpoint: Path, name: str) -> None:
    (checkpoint / "results").mkdir()
    (checkpoint / "results" / ".lock").touch()
    assert len(set(ids_with(checkpoint, name, {"trust_remote_code": True}))) == 1


TASK = """
task: own
include: ../shared/base.yaml
dataset_path: json
dataset_kwargs: {data_files: {test: [ROOT/docs.jsonl, "ROOT/more/*.jsonl"]}}
doc_to_text: !function code.ask
"""
TASK_FILES = {
    "task/own.yaml": TASK,
    "task/code.py": "from helpers import text",
    "task/helpers/text.py": "x = 1",
    "shared/base.yaml": "{include: deeper/base.yaml, doc_to_target: !function prompts.answer}",
    "shared/prompts.py": "TEXTS = open('texts.json')",
    "shared/texts.json": "{}",
    "shared/deeper/base.yaml": "output_type: generate_until",
    "docs.jsonl": "{}",
    "more/a.jsonl": "{}",
}


@pytest.mark.parametrize("name", TASK_FILES)
def test_everything_that_a_task_file_reads_counts(
    checkpoint: Path, tmp_path: Path, name: str
) -> None:
    root = tmp_path / "tasks"
    for path, content in TASK_FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content.replace("ROOT", str(root)))
    asked = {"tasks": [str(root / "task" / "own.yaml")], "metadata": {}}
    before = only_id(config(checkpoint, **asked))
    for unrelated in ("task/sweep.yaml", "task/other.py", "task/helpers/other.py", "notes.txt"):
        (root / unrelated).write_text("x")
    assert only_id(config(checkpoint, **asked)) == before
    with (root / name).open("a") as handle:
        handle.write("\n")
    assert only_id(config(checkpoint, **asked)) != before


def written(tmp_path: Path, given: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """A file, and what is given with it in place of "F" and its folder in place of "D"."""
    file = tmp_path / "other" / "named.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"one")
    text = json.dumps(given).replace('"F"', json.dumps(str(file)))
    return file, json.loads(text.replace('"D"', json.dumps(str(file.parent))))


@pytest.mark.parametrize(
    "argument", [{"gguf_file": "F"}, {"spec": {"draft": ["F"]}}, {"peft": "D"}]
)
def test_files_that_arguments_name_count(
    checkpoint: Path, tmp_path: Path, argument: dict[str, Any]
) -> None:
    asked = config(checkpoint)
    file, asked["models"]["small"]["args"] = written(tmp_path, argument)
    before = only_id(asked)
    file.write_bytes(b"two")
    assert only_id(asked) != before


def test_a_file_of_the_working_directory_counts_by_its_bare_name(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = config(checkpoint)
    asked["models"]["small"]["args"] = {"steer_path": "steer.pt"}
    ids = [only_id(asked)]
    for content in ("one", "two"):
        Path("steer.pt").write_text(content)
        ids.append(only_id(asked))
    assert len(set(ids)) == 3


def test_a_long_text_with_a_slash_is_no_path(checkpoint: Path) -> None:
    text = "Think of all that stands in the text, then answer with yes/no alone. " * 9
    asked = config(checkpoint, metadata={"data_dir": "sample", "instruction": text + "x" * 300})
    asked["models"]["small"]["args"] = {"instruction": "x" * 300 + "/" + text}
    assert only_id(asked)


NAMED = [{"reference": "F"}, {"group": {"reference": "F"}}, {"tokenizer": "D"}]


@pytest.mark.parametrize("setting", NAMED)
def test_files_that_settings_of_tasks_name_count(
    checkpoint: Path, tmp_path: Path, setting: dict[str, Any]
) -> None:
    file, metadata = written(tmp_path, setting)
    asked = config(checkpoint, metadata=metadata)
    before, record = only_id(asked), as_written(checkpoint, metadata=metadata)
    file.write_bytes(b"two")
    assert only_id(asked) != before
    with pytest.raises(CellError, match=r"planned: metadata\."), identity.verified_identity(record):
        pass
    file.unlink()
    file.parent.rmdir()
    with pytest.raises(CellError, match=r"planned: metadata\."), identity.verified_identity(record):
        pass


@pytest.mark.parametrize("setting", NAMED)
def test_settings_of_tasks_name_files_by_content_wherever_they_lie(
    checkpoint: Path, tmp_path: Path, setting: dict[str, Any]
) -> None:
    ids, blocks = [], []
    for place in ("here", "there"):
        file, metadata = written(tmp_path / place, setting)
        renamed = "D" not in setting.values()
        if renamed and place == "there":
            file = file.rename(file.with_name("called otherwise.bin"))
            metadata = json.loads(json.dumps(metadata).replace("named.bin", file.name))
        asked = config(checkpoint, tasks=["ppl_pydocs"], metadata=metadata)
        ids.append(only_id(asked))
        blocks.append(Run.of_cell(as_written(checkpoint, **asked), tmp_path).settings)
    assert ids[0] == ids[1]
    assert blocks[0] == blocks[1]
    file.write_bytes(b"two")
    assert only_id(asked) != ids[0]


def test_a_folder_of_documents_for_one_family_counts_by_what_is_read_of_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    ids = []
    for place, text in (("a", "one"), ("b", "one"), ("c", "two")):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "pg19.jsonl").write_text(json.dumps({"text": text}))
        (folder / "unrelated").write_text(place)
        metadata = {"data_dir": "sample", "perplexity": {"data_dir": str(folder)}}
        entry = {"tasks": ["leval_closed_gsm", "ppl_pg19"]}
        asked = config(checkpoint, tasks=[entry], metadata=metadata)
        ids.append(only_id(asked))
        (cell,) = cells.plan(parse_config(asked))
        read = file_sha256(folder / "pg19.jsonl")
        assert cell.record.data["perplexity"] == {
            "source": "data_dir",
            "files": {"pg19.jsonl": read},
        }
        assert cell.record.data["closed"]["source"] == "sample"
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("folder", ["data", "./data"])
def test_other_peoples_tasks_may_read_any_file_of_data_dir(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task").mkdir()
    Path("task/mine.yaml").write_text("task: mine\n")
    Path("data").mkdir()
    asked = config(checkpoint, tasks=["task/mine.yaml"], metadata={"data_dir": folder})
    ids = []
    for text in ("one", "two"):
        Path("data/questions.json").write_text(text)
        ids.append(only_id(asked))
    assert ids[0] != ids[1]


def as_written(checkpoint: Path, **changes: Any) -> CellRecord:
    """The record of the only cell as its process reads it."""
    (cell,) = cells.plan(parse_config(config(checkpoint, **changes)))
    return CellRecord.model_validate(json.loads(json.dumps(cell.record.written())))


def test_a_cell_looks_again_before_it_computes(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = as_written(checkpoint)
    with identity.verified_identity(record):
        pass
    whole = (checkpoint / "config.json").read_text()
    (checkpoint / "config.json").write_text(whole + " ")
    with (
        pytest.raises(CellError, match=r"model\.files\.config\.json: \w{12} planned, \w{12} here"),
        identity.verified_identity(record),
    ):
        pass
    (checkpoint / "config.json").write_text(whole)
    monkeypatch.setattr(identity, "package_versions", lambda backend: {"lm_eval": "0"})
    with (
        pytest.raises(CellError, match=r"packages\.lm_eval: .* planned, 0 here"),
        identity.verified_identity(record),
    ):
        pass


def test_variables_that_decide_numbers_are_another_cell_and_another_block(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = "ONEDNN_DEFAULT_FPMATH_MODE"
    for each in environment("hf"):
        monkeypatch.delenv(each)
    plain = as_written(checkpoint)
    assert "environment" not in plain.identity, "ids of cells without any stay as they were"
    monkeypatch.setenv(name, "BF16")
    with (
        pytest.raises(CellError, match=rf"environment\.{name}: nothing planned, BF16 here"),
        identity.verified_identity(plain),
    ):
        pass
    record = as_written(checkpoint)
    assert record.cell_id != plain.cell_id
    assert record.environment == record.identity["environment"] == {name: "BF16"}
    before, after = (Run.of_cell(each, tmp_path).settings for each in (plain, record))
    assert {k for k in {*before, *after} if before.get(k) != after.get(k)} == {"environment"}
    with identity.verified_identity(record):
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")  # as libraries do once imported


def test_a_worker_with_other_documents_computes_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leval_tasks.data import SAMPLE

    texts = (SAMPLE / "gsm100.jsonl").read_text()
    for name, content in (("one", texts), ("two", texts + "\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "gsm100.jsonl").write_text(content)
    monkeypatch.setenv("LEVAL_DATA_DIR", str(tmp_path / "one"))
    record = as_written(checkpoint, metadata={"own_data": True})
    monkeypatch.setenv("LEVAL_DATA_DIR", str(tmp_path / "two"))
    with (
        pytest.raises(CellError, match=r"data\.files\.gsm100\.jsonl: \w+ planned, \w+ here"),
        identity.verified_identity(record),
    ):
        pass


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none(), min_size=2))
def test_the_order_of_keys_is_no_part_of_an_identity(content: dict[str, Any]) -> None:
    turned = dict(reversed(content.items()))
    assert cell_id(turned) == cell_id(content)


def test_groups_are_their_tasks() -> None:
    assert own_tasks.members(["leval_closed", "leval_closed_gsm", "mmlu"]) == [
        "leval_closed_coursera",
        "leval_closed_gsm",
        "leval_closed_quality",
        "leval_closed_toefl",
        "leval_closed_codeu",
        "leval_closed_sfiction",
        "mmlu",
    ]
    assert task_files.versions(["leval_closed_gsm", "mmlu"]) == {
        "leval_closed_gsm": "1",
        "mmlu": "lm_eval",
    }


def test_unknown_tasks_are_named_with_near_ones() -> None:
    with pytest.raises(
        ConfigError,
        match=r"tasks: 'leval_closed_gsn' is not allowed; .*did you mean 'leval_closed_gsm'",
    ):
        own_tasks.check_names(["leval_closed_gsn"])
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.yaml"):
        own_tasks.check_names(["nowhere.yaml"])


@pytest.mark.parametrize("backend", ["vllm", "vllm-long"])
def test_vllms_own_parallelism_reaches_it_from_the_config(checkpoint: Path, backend: str) -> None:
    args = {"tensor_parallel_size": 4, "data_parallel_size": 2}
    content = config(checkpoint)
    content["models"]["small"] |= {"backend": backend, "args": args}
    (cell,) = cells.plan(parse_config(content))
    reached = cell.record.model_args
    assert args.items() <= reached.items()
    assert reached["hf_overrides"]["rope_parameters"]["rope_type"] == "yarn"
    content["models"]["small"]["args"] = {"tensor_parallel_size": 2}
    assert only_id(content) != cell.id


@pytest.mark.parametrize("file", ["config.json", "adapter_config.json", "tokenizer_config.json"])
def test_a_name_of_the_hub_in_an_argument_counts_with_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """As the cache has it: a branch that moved is another cell."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "models--some--adapter"
    (repo / "refs").mkdir(parents=True)

    def at(commit: str) -> Any:
        (repo / "snapshots" / commit).mkdir(parents=True)
        (repo / "snapshots" / commit / file).write_text("{}")
        (repo / "refs" / "main").write_text(commit)
        return identity.hashed_arguments(
            {"peft": "some/adapter", "deep": {"model": "some/adapter"}}, "a"
        )

    first, second = at("a" * 40), at("b" * 40)
    assert first["peft"] == first["deep"]["model"] == {"hub": "some/adapter", "commit": "a" * 40}
    assert second["peft"]["commit"] == "b" * 40
    unknown = {"peft": "some/unknown", "quantization": "some/adapter"}
    assert identity.hashed_arguments(unknown, "a") == unknown
