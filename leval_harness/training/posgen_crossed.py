"""Test trained PosGen models under encodings that they were not trained with.

A model is trained once; each test is a file `tested/<encoding>.json` beside its `result.json`.
"""

import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from leval_border.errors import SettingError, UserError, one_of
from leval_border.files import altered, read_object, write_text
from leval_border.settings import read
from leval_harness.training import trainer as shared
from leval_harness.training.posgen_data import StackData
from leval_harness.training.posgen_models import WEIGHTS, load_stack
from leval_harness.training.posgen_settings import PosGenRun, Recipe, rope_parameters
from leval_harness.training.posgen_train import RESULT_FILE, SETTINGS_FILE, TESTS, evaluate
from leval_tasks.posgen.encodings import ENCODINGS

logger = logging.getLogger(__name__)


def read_recipe(folder: Path) -> Recipe:
    """The recipe that a folder's models were trained by; its reading is not recorded.

    Raises:
        UserError: the folder is none of `posgen train`.
    """
    written = read_object(folder / SETTINGS_FILE)
    if written is None:
        raise UserError(f"folder: {folder} holds no {SETTINGS_FILE} of `posgen train`")
    scaling = written.get("scaling") or {}
    if isinstance(scaling, Mapping):
        scaling = {k: v for k, v in scaling.items() if k != "in_training"}
    return read(Recipe, {**written, "scaling": scaling}, SETTINGS_FILE)


def finished_runs(folder: Path) -> dict[PosGenRun, str]:
    """Each finished run of a folder, and the SHA-256 of its weights.

    A run whose weights or result were changed since is named and left out: what is tested would not
    be what was trained.
    """
    found = {}
    for file in sorted(folder.glob(f"*/*/seed-*/{RESULT_FILE}")):
        done = read_object(file) or {}
        named = done.get("files")
        weights = named.get(WEIGHTS) if isinstance(named, Mapping) else None
        run = _run_of(done)
        if run is None or run.folder != file.parent.relative_to(folder).as_posix():
            logger.warning("%s: is no result of this place; left out", file)
        elif weights and altered(file.parent, {WEIGHTS: weights}):
            logger.warning("%s: %s changed since; left out", file.parent, WEIGHTS)
        elif weights:
            found[run] = weights
    return found


def _run_of(done: Mapping[str, Any]) -> PosGenRun | None:
    try:
        return PosGenRun(done["subtask"], done["encoding"], done["seed"])
    except (KeyError, SettingError):
        return None


def cross(
    folder: Path,
    asked: Mapping[str, Sequence[str]],
    *,
    stack_size: int = 1,
    device: str | None = "cpu",
) -> Iterator[dict[str, Any]]:
    """Test finished runs under every encoding that they have no test of; yield the new tests.

    Args:
        folder: of `posgen train`; it may still be training.
        asked: trained encoding -> those to test it under. Its own is left out: training has
            tested it.
        stack_size: models tested at a time.
        device: torch's; None takes the fastest that there is.

    Raises:
        SettingError: there is no such encoding.
        UserError: the folder is none of `posgen train`, or another test works on it.
    """
    for encoding in dict.fromkeys(chain(*asked.values())):
        one_of("encoding", encoding, ENCODINGS)
    recipe, weights = read_recipe(folder), finished_runs(folder)
    with shared.held(folder / f".{TESTS}"):
        waiting: dict[tuple[str, str], list[PosGenRun]] = defaultdict(list)
        for run in weights:
            for encoding in asked.get(run.encoding, ()):
                known = read_object(_file(folder, run, encoding)) or {}
                if encoding != run.encoding and known.get("weights") != weights[run]:
                    waiting[run.subtask, encoding].append(run)
        stacks = [
            (encoding, runs[start : start + stack_size])
            for (_, encoding), runs in waiting.items()
            for start in range(0, len(runs), stack_size)
        ]
        for encoding, runs in tqdm(stacks, disable=not stacks or bool(os.environ.get("CI"))):
            for run, result in zip(
                runs, _test(recipe, runs, folder, encoding, device), strict=True
            ):
                record = {"schema_version": 1, **vars(run), "tested_with": encoding}
                record |= {"weights": weights[run], "test": result, **shared.made_by()}
                file = _file(folder, run, encoding)
                file.parent.mkdir(exist_ok=True)
                write_text(file, json.dumps(record, indent=1))
                yield record


def _file(folder: Path, run: PosGenRun, encoding: str) -> Path:
    return folder / run.folder / TESTS / f"{encoding}.json"


def _test(
    recipe: Recipe, runs: Sequence[PosGenRun], folder: Path, encoding: str, device: str | None
) -> list[dict[str, Any]]:
    stack = load_stack(recipe, runs, folder)
    stack.rotate_by([rope_parameters(encoding, recipe)] * len(runs))
    best = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    stack.to(torch.device(device or best))
    return evaluate(stack, StackData(recipe, runs), "test")
