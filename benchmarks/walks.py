"""How far does a reader walk? Traces five ways through the code and counts what they touch.

    python benchmarks/walks.py [--way NAME] [--show]

| way | begins with | ends with |
|---|---|---|
| `arguments` | the YAML file of a sweep | the arguments of the model |
| `model` | these arguments | the built model, with its cos and sin |
| `load` | a folder of results | what `load_results` returns |
| `page` | the analysis of these results | the folder that `write_page` writes |
| `effective` | the analysis of an `effective_context_*` task | lines: how far each method reads |

`sys.setprofile` sees every call. Calls of *plain functions* count: functions at the top level of a
module in one of the project's packages, public or private, each when it is entered for the first
time on the way. Methods, properties, validators, nested functions, lambdas and comprehensions do
not count, nor does the leaf package (`LEAF`: errors, typed settings, files), nor anything that runs
while a module is imported, nor other threads than the main one. Then:

- a stop is such a function in another module than the one before it; functions of one module that
  follow each other are one stop,
- modules are the distinct modules of the stops,
- a return is a stop in a module that was left before, so stops = modules + returns,
- functions are all distinct functions entered, with methods, nested functions and `LEAF`. They do
  not drop if code only moves from functions into methods, or from one module to another.

The project's packages are the folders with an `__init__.py` directly below the repository's root.
Each way runs in a new process, with the same hash seed, because functions cache what they found.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this tree, whatever is installed
RESULTS = ROOT / "tests" / "golden" / "results" / "sweep"
EFFECTIVE = ROOT / "tests" / "leaderboard" / "effective"
LEAF = "resonance_vllm.settings"
Stop = tuple[str, str, int]  # module, function, line

SWEEP = """
models: {{tiny: {{path: {model}, backend: hf, dtype: float32, device: cpu}}}}
methods: {{resonance_yarn: {{rope_type: resonance_yarn, factor: 2.0}}}}
context_lengths: [128]
tasks: [ppl_pydocs]
"""
ROPE = {"rope_type": "resonance_yarn", "rope_theta": 10000.0, "factor": 2.0}
ARGUMENTS = {
    "rope_parameters": {**ROPE, "original_max_position_embeddings": 64},
    "max_position_embeddings": 128,
    "rope_precision": "float32",
    "dtype": "float32",
}


# The only place that knows where things are in the project. Each function prepares a way in an
# empty folder and returns what is traced.


def arguments(folder: Path) -> Callable[[], object]:
    from leval_harness.sweep.cells import plan
    from leval_harness.sweep.config_files import load_config

    sweep = folder / "sweep.yaml"
    sweep.write_text(SWEEP.format(model=tiny_llama(folder / "model")), encoding="utf-8")
    return lambda: plan(load_config(str(sweep)))[0].record.model_args


def model(folder: Path) -> Callable[[], object]:
    import torch
    from transformers import AutoModelForCausalLM

    from resonance_vllm import hf

    checkpoint = tiny_llama(folder / "model")

    def build() -> object:
        hf.register()
        built = AutoModelForCausalLM.from_pretrained(checkpoint, **ARGUMENTS)
        return built.model.rotary_emb(torch.zeros(1, 4, 32), torch.arange(4)[None])

    return build


def load(folder: Path) -> Callable[[], object]:
    from leval_harness.old_results import load_results

    return lambda: load_results(RESULTS)


def page(folder: Path) -> Callable[[], object]:
    from leval_harness.analysis import analyse
    from leval_harness.old_results import load_results

    from leval_harness.page import write_page

    analysis = analyse(load_results(RESULTS))
    return lambda: write_page(analysis, folder / "page")


def effective(folder: Path) -> Callable[[], object]:
    from leval_harness.analysis import analyse
    from leval_harness.analysis.effective_context import effective_lines
    from leval_harness.old_results import load_results

    analysis = analyse(load_results(EFFECTIVE))

    def lines() -> object:
        found, gaps = effective_lines(analysis)
        assert len(found) == 2, gaps
        return found

    return lines


WAYS: dict[str, Callable[[Path], Callable[[], object]]] = {
    each.__name__: each for each in (arguments, model, load, page, effective)
}


def tiny_llama(folder: Path) -> Path:
    """A checkpoint of one layer with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    config = LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=64)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class Tracer:
    """A profile function that keeps the project's functions in the order of their first calls."""

    def __init__(self) -> None:
        self.packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
        self.seen: set[tuple[str, str, int]] = set()
        self.entered: list[Stop] = []
        self.importing = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """See one event of the interpreter."""
        code = frame.f_code
        if code.co_name == "<module>":
            self.importing += (event == "call") - (event == "return")
        if event != "call" or self.importing or "<" in code.co_name:
            return
        place = code.co_filename, code.co_qualname, code.co_firstlineno
        if place in self.seen:
            return
        self.seen.add(place)
        path = Path(code.co_filename)
        if path.suffix == ".py" and path.is_relative_to(ROOT):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[0] in self.packages:
                self.entered.append((".".join(parts), *place[1:]))

    def stops(self) -> list[Stop]:
        """Where plain functions of another module are entered."""
        plain = [each for each in self.entered if "." not in each[1]]
        outside = [each for each in plain if each[0].partition(".")[0] != LEAF]
        return [next(of_module) for _, of_module in groupby(outside, key=lambda each: each[0])]


def walk(way: str) -> tuple[list[Stop], int]:
    """The stops of a way, and the number of distinct functions; in a new process."""
    logging.disable()
    tracer = Tracer()
    with tempfile.TemporaryDirectory() as folder:
        traced = WAYS[way](Path(folder))
        sys.setprofile(tracer)
        try:
            traced()
        finally:
            sys.setprofile(None)
    return tracer.stops(), len(tracer.entered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--way", choices=WAYS, help="only this one")
    parser.add_argument("--show", action="store_true", help="print the stops; < marks a return")
    args = parser.parse_args()
    os.environ.update(PYTHONHASHSEED="0", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TQDM_DISABLE="1")
    spawn = multiprocessing.get_context("spawn")
    print("| way | stops | modules | returns | functions |\n|---|---|---|---|---|")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        ways = [args.way] if args.way else list(WAYS)
        for way, (stops, functions) in zip(ways, pool.map(walk, ways), strict=True):
            modules = {module for module, _, _ in stops}
            returns = len(stops) - len(modules)
            print(f"| `{way}` | {len(stops)} | {len(modules)} | {returns} | {functions} |")
            for module, function, line in stops if args.show else ():
                print(" " if module in modules else "<", f"{module}:{line} {function}")
                modules.discard(module)


if __name__ == "__main__":
    main()
