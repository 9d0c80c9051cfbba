"""Only what a loader reads changes an identity: files added and changed around models and tasks."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leval_harness.checkpoint_files import checkpoint_hashes, loaded_files
from leval_harness.sweep.task_files import task_hash

few = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

LOADED = (
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
    "model-00002-of-00002.safetensors", "weights/part.safetensors", "tokenizer.json",
    "tokenizer_config.json", "tokenizer.model", "tokenizer.model.v3", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja",
    "additional_chat_templates/tools.jinja", "qwen.tiktoken", "sentencepiece.bpe.model",
    "tekken.json", "params.json", "preprocessor_config.json", "hf_quant_config.json",
    "quantize_config.json", "adapter_config.json", "adapter_model.safetensors",
)  # fmt: skip
BESIDE = (
    "LICENSE", "NOTICE", "README.md", "USE_POLICY.md", "trainer_state.json", "training_args.bin",
    "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state.pth",
    "rng_state_0.pth", "random_states_0.pkl", "all_results.json", "eval_results.json", "latest",
    "zero_to_fp32.py", "nohup.out", "train.log", "notes.txt", "metrics.csv", "finetune.json",
    "wandb/run-1/files/config.yaml", "wandb/run-1/files/wandb-metadata.json",
    "runs/Nov01/events.out.tfevents.1", "checkpoint-10/config.json",
    "checkpoint-10/model.safetensors", "checkpoint-10/optimizer.pt", "held_out/books.jsonl",
    "original/consolidated.00.pth", "onnx/model.onnx", "tf_model.h5", "pytorch_model.bin",
    "model-q4.gguf", ".gitattributes", ".cache/huggingface/download/config.json.lock",
    "__pycache__/modeling.cpython-311.pyc", "Untitled.ipynb", "sweep.yaml", "results/table.md",
)  # fmt: skip
changes = st.lists(st.tuples(st.sampled_from(BESIDE), st.binary(max_size=8)), max_size=12)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    for name in LOADED:
        write(folder / name, b"{}")
    index = {"weight_map": {"a": "weights/part.safetensors", "b": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@few
@given(changes)
def test_what_lies_beside_a_checkpoint_is_no_part_of_it(
    checkpoint: Path, beside: list[tuple[str, bytes]]
) -> None:
    before = checkpoint_hashes(checkpoint, {})
    assert set(before) == set(LOADED)
    for name, content in beside:
        write(checkpoint / name, content)
        assert checkpoint_hashes(checkpoint, {}) == before, name


HARM = [(name, "change") for name in LOADED]
HARM += [(name, "remove") for name in LOADED if name != "config.json"]


@few
@given(changes, st.sampled_from(HARM))
def test_every_loaded_file_of_a_checkpoint_counts(
    checkpoint: Path, beside: list[tuple[str, bytes]], harm: tuple[str, str]
) -> None:
    name, how = harm
    for other, content in beside:
        write(checkpoint / other, content)
    before, whole = checkpoint_hashes(checkpoint, {}), (checkpoint / name).read_bytes()
    if how == "change":
        (checkpoint / name).write_bytes(whole + b" ")
    else:
        (checkpoint / name).unlink()
    try:
        after = checkpoint_hashes(checkpoint, {})
        assert {place for place in before if after.get(place) != before[place]} >= {name}
    finally:
        write(checkpoint / name, whole)


@few
@given(changes)
def test_older_weights_have_neighbours_too(tmp_path: Path, beside: list[tuple[str, bytes]]) -> None:
    """No safetensors: `pytorch_model.bin` is loaded, and no other file that torch has written."""
    for name in ("config.json", "pytorch_model.bin"):
        write(tmp_path / name, b"{}")
    for name, content in [*beside, ("best.pt", b"1"), ("optimizer.bin", b"2")]:
        if name != "pytorch_model.bin":
            write(tmp_path / name, content)
    assert set(checkpoint_hashes(tmp_path, {})) == {"config.json", "pytorch_model.bin"}


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.safetensors"])
def test_an_adapter_in_the_folder_of_a_model_counts(checkpoint: Path, name: str) -> None:
    write(checkpoint / name, b"one")
    before = checkpoint_hashes(checkpoint, {})
    write(checkpoint / name, b"two")
    assert checkpoint_hashes(checkpoint, {})[name] != before[name]
    if name not in LOADED:
        (checkpoint / name).unlink()
    else:
        write(checkpoint / name, b"{}")


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ({"gguf_file": "model-q4.gguf"}, "model-q4.gguf"),
        ({"subfolder": "checkpoint-10"}, "checkpoint-10/model.safetensors"),
        ({"use_safetensors": False}, "pytorch_model.bin"),
        ({"load_format": "pt"}, "pytorch_model.bin"),
        ({"trust_remote_code": True}, "zero_to_fp32.py"),
    ],
)
def test_arguments_name_further_files(checkpoint: Path, args: dict[str, object], name: str) -> None:
    write(checkpoint / name, b"one")
    assert name not in checkpoint_hashes(checkpoint, {})
    before = checkpoint_hashes(checkpoint, args)
    write(checkpoint / name, b"two")
    assert checkpoint_hashes(checkpoint, args)[name] != before[name]


@pytest.mark.hf
def test_the_counted_files_alone_are_the_whole_model(tiny: Path, tmp_path: Path) -> None:
    """An independent reference: transformers loads the same model from them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, alone = tmp_path / "whole", tmp_path / "alone"
    shutil.copytree(tiny / "model", folder)
    for name in BESIDE:
        write(folder / name, b"one")
    for path in loaded_files(folder):
        write(alone / path.relative_to(folder), path.read_bytes())
    assert {path.name for path in alone.iterdir()}.isdisjoint(BESIDE)
    texts, logits = [], []
    for each in (folder, alone):
        read = AutoTokenizer.from_pretrained(each)
        texts.append(read("one two three", return_tensors="pt")["input_ids"])
        with torch.no_grad():
            logits.append(AutoModelForCausalLM.from_pretrained(each)(texts[-1]).logits)
    assert torch.equal(*texts)
    assert torch.equal(*logits)


TASK = {
    "task/own.yaml": "{task: own, include: ../base.yaml, doc_to_text: !function code.ask,"
    " process_docs: !function package.inner.docs}",
    "base.yaml": "{output_type: generate_until, doc_to_target: !function target.of,"
    " doc_to_choice: !function late.more}",
    "target.py": "from helpers.words import WORDS",
    "helpers/words.py": "WORDS = open('words.json')",
    "helpers/words.json": "[]",
    "task/code.py": "def ask(doc):\n    from near import text\n    return text",
    "task/near.py": "import json",
    "task/package/__init__.py": "",
    "task/package/inner.py": "from . import sibling\nfrom .deep.leaf import x",
    "task/package/sibling.py": "import package.by_root",
    "task/package/by_root.py": "y = 1",
    "task/package/deep/leaf.py": "z = 1",
    "late.py": "import importlib\nmore = importlib.import_module('task.loaded')",
    "task/loaded.py": "__import__('by_name')",
    "task/by_name.py": "from pathlib import Path\nDATA = Path(__file__).parent / 'data'\n"
    "def read():\n    return (DATA / 'deep' / 'one.json', *DATA.glob('part-*.txt'))",
    "task/data/deep/one.json": "[]",
    "task/data/part-1.txt": "",
    "task/data/part-2.txt": "",
}
BESIDE_TASK = (
    "task/sweep.yaml", "task/other.yaml", "task/other.py", "task/json.json", "task/test_code.py",
    "other.py", "helpers/other.py", "helpers/other.json", "task/package/unused.py", "README.md",
    "task/package/deep/unused.py", "task/data/two.json", "task/data/deep/two.json",
    "task/data/one.txt", "task/data/deep/part-1.json", "task/code.pyc",
    "task/results/table.md", "words.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tasks")
    for name, content in TASK.items():
        write(root / name, content.encode())
    return root


@few
@given(st.lists(st.tuples(st.sampled_from(BESIDE_TASK), st.text(max_size=8)), max_size=12))
def test_what_lies_beside_a_task_is_no_part_of_it(
    task: Path, beside: list[tuple[str, str]]
) -> None:
    before = task_hash(task / "task" / "own.yaml")
    for name, content in beside:
        write(task / name, content.encode())
        assert task_hash(task / "task" / "own.yaml") == before, name


@pytest.mark.parametrize("name", TASK)
def test_everything_that_a_task_loads_counts(task: Path, name: str) -> None:
    for other in BESIDE_TASK:
        write(task / other, b"x = 1")
    before, whole = task_hash(task / "task" / "own.yaml"), (task / name).read_bytes()
    write(task / name, whole + b"\n")
    try:
        assert task_hash(task / "task" / "own.yaml") != before
    finally:
        write(task / name, whole)


def test_modules_with_mistakes_count_and_circles_end(tmp_path: Path) -> None:
    write(tmp_path / "own.yaml", b"{task: own, doc_to_text: !function a.ask}")
    write(tmp_path / "a.py", b"import b")
    write(tmp_path / "b.py", b"import a, broken")
    hashes = []
    for content in (b"x =", b"\0", b"\xff"):
        write(tmp_path / "broken.py", content)
        hashes.append(task_hash(tmp_path / "own.yaml"))
    assert len(set(hashes)) == 3


def test_a_task_file_that_is_not_utf8_has_a_hash_of_its_bytes(tmp_path):
    file = tmp_path / "task.yaml"
    hashes = set()
    for content in (b"task: \xff", b"task: \xfe"):
        file.write_bytes(content)
        hashes.add(task_hash(file))
    assert len(hashes) == 2


def test_a_bare_word_is_no_folder_of_data_and_a_pattern_that_none_can_be_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [str(tmp_path / "no**pattern" / "*"), "data/books"]
    content = {"task": "own", "dataset_path": "books", "dataset_kwargs": {"data_files": files}}
    write(tmp_path / "own.yaml", json.dumps(content).encode())
    write(tmp_path / "books" / "a.txt", b"a")
    write(tmp_path / "data" / "books" / "b.txt", b"b")
    before = task_hash(tmp_path / "own.yaml")
    write(tmp_path / "books" / "a.txt", b"other")
    assert task_hash(tmp_path / "own.yaml") == before
    write(tmp_path / "data" / "books" / "b.txt", b"other")
    assert task_hash(tmp_path / "own.yaml") != before
