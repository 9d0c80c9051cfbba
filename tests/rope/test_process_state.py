"""No public function leaves anything changed in its process: loggers, or functions of libraries."""

import importlib
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import leval_harness as lh
from leval_harness.backends import BACKENDS
from resonance_vllm import hf
from resonance_vllm.checkpoint.reading import read_config
from resonance_vllm.hf.inspection import report_of_checkpoint

PACKAGES = ("resonance_vllm.hf", "resonance_vllm.vllm", "leval_harness")
LIBRARIES = ("transformers.", "lm_eval.", "torch.nn.", "accelerate.", "peft.")
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "golden" / "results" / "perplexity"
OWN_NAMES = ("resonance_", "leval_")
"""How names begin that this project adds to a registry; nothing looks them up but its own models."""
FEATURES = {"head_dim": 8, "original": 16, "factor": 2.0}


def loggers() -> dict[str, object]:
    """Every logger's level, handlers and switches, and those of logging itself."""
    named = {
        name: logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    state: dict[str, object] = {"disable": logging.root.manager.disable}
    state["showwarning"] = id(warnings.showwarning)
    for name, logger in {"": logging.root, **named}.items():
        handlers = tuple(id(handler) for handler in logger.handlers)
        filters = tuple(id(item) for item in logger.filters)
        state[name] = (logger.level, logger.disabled, logger.propagate, handlers, filters)
    return state


def functions() -> dict[str, int]:
    """The functions of the libraries' loaded modules, and the methods of their classes."""
    state = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(LIBRARIES):
            for key, value in list(vars(module).items()):
                if callable(value):
                    state[f"{name}.{key}"] = id(value)
                if isinstance(value, type) and value.__module__ == name:
                    for attribute, method in list(vars(value).items()):
                        if callable(method):
                            state[f"{name}.{key}.{attribute}"] = id(method)
    return state


def registries() -> dict[str, dict[str, int]]:
    """What libraries look up by name."""
    from lm_eval.api.registry import model_registry
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    tables = {
        "rope": ROPE_INIT_FUNCTIONS,
        "attention": dict(ALL_ATTENTION_FUNCTIONS.items()),
        "masks": dict(ALL_MASK_ATTENTION_FUNCTIONS.items()),
        "models": model_registry._objs,
    }
    return {
        name: {str(key): id(value) for key, value in table.items()}
        for name, table in tables.items()
    }


@pytest.fixture
def setting(tiny, tmp_path, save_llama) -> SimpleNamespace:
    """A loaded model, a checkpoint with a tokenizer, a document and a sweep over them."""
    folder = save_llama(tmp_path / "model", vocab_size=512, max_position_embeddings=256)
    for file in (ROOT / "tests" / "golden" / "tokenizer").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    documents = tmp_path / "own.jsonl"
    lines = [json.dumps({"text": f"{n} plus {n} is {2 * n}. " * 60}) for n in range(3)]
    documents.write_text("\n".join(lines))
    sweep = {
        "name": "run",
        "models": {"tiny": {"path": str(folder), "backend": "hf-long", "device": "cpu"}},
        "methods": {"yarn": {"rope_type": "yarn", "factor": 2}},
        "context_lengths": [64],
        "tasks": [{"tasks": ["ppl_jsonl"], "metadata": {"file": str(documents), "stride": 32}}],
    }
    return SimpleNamespace(
        model=tiny("llama", {"rope_type": "default", "rope_theta": 100.0}),
        folder=str(folder),
        documents=str(documents),
        out=tmp_path,
        sweep=sweep,
    )


def both_ends(call: Callable[[SimpleNamespace], object]) -> Callable[[SimpleNamespace], object]:
    """A call on the model, which is then given its own settings again."""

    def changed(it: SimpleNamespace) -> None:
        call(it)
        hf.apply_rope(it.model)

    return changed


def refused(call: Callable[[SimpleNamespace], object]) -> Callable[[SimpleNamespace], object]:
    """A call that ends with an error about its settings."""

    def ended(it: SimpleNamespace) -> None:
        with pytest.raises(ValueError, match="factor"):
            call(it)

    return ended


def run_worker(it: SimpleNamespace) -> object:
    """What an engine calls of `RopeWorker`, in a process without an engine: it is refused."""
    from resonance_vllm.vllm import RopeWorker

    with pytest.raises((AttributeError, ValueError)):
        RopeWorker().set_rope(None)


CALLS: dict[str, dict[str, Callable[[SimpleNamespace], object]]] = {
    "resonance_vllm.hf.register": {"again": lambda it: hf.register()},
    "resonance_vllm.hf.load": {
        "unmodified": lambda it: hf.load(it.folder),
        "float32": lambda it: hf.load(it.folder, "yarn:factor=2", precision="float32"),
    },
    "resonance_vllm.hf.apply_rope": {
        "None": lambda it: hf.apply_rope(it.model),
        "float32": lambda it: hf.apply_rope(it.model, "resonance_yarn:factor=2", "float32"),
        "remapping": lambda it: hf.apply_rope(it.model, "self_extend:factor=2"),
        "undone": both_ends(lambda it: hf.apply_rope(it.model, "dynamic:factor=2", "float32")),
        "refused": refused(lambda it: hf.apply_rope(it.model, "yarn:factor=0")),
    },
    "resonance_vllm.checkpoint.reading.read_config": {"folder": lambda it: read_config(it.folder)},
    "resonance_vllm.hf.inspection.report_of_checkpoint": {
        "folder": lambda it: report_of_checkpoint(it.folder)
    },
    "leval_harness.Comparison": {"plot": lambda it: lh.load(RESULTS).plot()},
    "leval_harness.RopeFeatures": {"to_dict": lambda it: lh.rope("yarn", **FEATURES).to_dict()},
    "leval_harness.CheckReport": {"to_dict": lambda it: lh.check(it.folder).to_dict()},
    "leval_harness.check": {
        "unmodified": lambda it: lh.check(it.folder),
        "method": lambda it: lh.check(it.folder, "resonance_yarn:factor=2"),
        "refused": refused(lambda it: lh.check(it.folder, "yarn:factor=0")),
    },
    "leval_harness.compare": {"yarn": lambda it: lh.compare(lh.load(RESULTS), "yarn")},
    "leval_harness.diff": {
        "in process": lambda it: lh.diff(
            f"hf:{it.folder}",
            f"hf:{it.folder},dtype=bfloat16",
            documents=it.documents,
            length=32,
            count=1,
            isolated=False,
        )
    },
    "leval_harness.load": {"folder": lambda it: lh.load(RESULTS).compared},
    "leval_harness.rope": {"yarn": lambda it: lh.rope("resonance_yarn", **FEATURES)},
    "leval_harness.run": {"sweep": lambda it: lh.run(it.sweep, out=it.out / "results")},
}
"""Function -> calls of it. Those of vLLM's plugin are below: it changes vLLM, and is there for that."""

LONG = ("leval_harness.run",)


CASES = [
    pytest.param(name, case, marks=[pytest.mark.slow(long=True)] if name in LONG else [])
    for name, calls in CALLS.items()
    for case in calls
]


def test_calls_cover_every_public_name():
    public = set()
    for package in PACKAGES[::2]:
        names = importlib.import_module(package).__all__
        public |= {f"{package}.{name}" for name in names}
    assert set(CALLS) >= public - {"leval_harness.__version__"}


@pytest.mark.usefixtures("without_vllm")
@pytest.mark.parametrize(("name", "case"), CASES)
def test_public_function_leaves_the_process_alone(setting, name, case):
    importlib.import_module("lm_eval.models.huggingface")
    importlib.import_module("transformers.models.llama.modeling_llama")
    before = (loggers(), functions())
    tables = registries()
    CALLS[name][case](setting)
    for earlier, later in zip(before, (loggers(), functions()), strict=True):
        # What a call imports is new and not changed.
        changed = [key for key in earlier if key in later and earlier[key] != later[key]]
        assert changed == []
    for library, table in registries().items():
        earlier = tables[library]
        assert {key: table[key] for key in earlier} == earlier
        added = table.keys() - earlier.keys() - BACKENDS.keys()
        assert [key for key in added if not key.startswith(OWN_NAMES)] == []


@pytest.mark.engine("vllm")
@pytest.mark.slow(long=True)
def test_plugin_changes_vllm_alone(setting):
    import vllm.transformers_utils.processor  # noqa: F401 - vLLM changes transformers itself

    from resonance_vllm.vllm import register

    before = (loggers(), functions())
    run_worker(setting)
    register()
    hf.load(setting.folder, "yarn:factor=2")
    for earlier, later in zip(before, (loggers(), functions()), strict=True):
        changed = [key for key in earlier if key in later and earlier[key] != later[key]]
        assert changed == []
