"""Controls of the prime periods: models trained by `posgen train`, tested under many tables.

    python benchmarks/posgen_controls.py train RUNS --table mirrored --seed 7
    python benchmarks/posgen_controls.py test RUNS --csv FILE [--trained rope] [--subtask recursive]
    python benchmarks/posgen_controls.py phases

`test` takes every finished model of the folder RUNS and tests it under the YaRN of the authors'
code, with its fast wavelengths (below the native context length L) replaced by those of each control. It
appends one row a model and control to FILE, and resumes where it stopped. `train` trains models of
the preset `small` with a control that is no encoding of PosGen; RUNS holds nothing else. `phases`
prints how far the wavelengths of each rule are from plain RoPE's, and their phases past L from
those that plain RoPE shows within L. `posgen_report.py` makes the tables.
"""

import argparse
import csv
import math
from pathlib import Path

import numpy as np

SAME, MOVED = 5, 8  # other tables of prime periods, and random tables
BOUND = 1.05  # largest ratio by which a table of primes may change a wavelength
OTHER_BASE = 1.2  # times the base of the encoding
OWN = "own"  # test with what a model was trained with
CONTROLS = ("mirrored", "other_base")  # that models can be trained with and PosGen does not name
FIELDS = (
    *("width", "train_length", "length", "base", "subtask", "seed"),
    *("trained", "tested", "within", "past"),
)


def control_tables(lengths, original, base, dim):
    """Name -> fast wavelengths in tokens, in the order of `lengths`.

    Args:
        lengths: the wavelengths of YaRN that are below `original`, tokens.
        original: native context length L in tokens.
        base: of the encoding's frequencies.
        dim: rotated dimensions of a head.
    """
    from resonance_vllm.core.wavelengths import choose_wavelengths

    lengths = np.array(lengths)
    tables = {"yarn": lengths}
    for rule in ("integer", "prime_period", "rational"):
        chosen = choose_wavelengths(rule, lengths.tolist(), original)
        tables[rule] = np.array([period / turns for period, turns in chosen])
    moves = np.log(tables["prime_period"] / lengths)
    tables["mirrored"] = lengths * np.exp(-moves)
    exponents = 2 * np.arange(len(lengths)) / dim
    tables["other_base"] = lengths * OTHER_BASE**exponents
    rng = np.random.default_rng(0)
    for number in range(SAME):
        tables[f"primes_{number + 1}"] = _random_primes(rng, lengths, original)
    for number in range(MOVED):
        signs = rng.choice([-1, 1], len(lengths))
        tables[f"random_{number + 1}"] = lengths * np.exp(signs * np.abs(rng.permutation(moves)))
    return tables


def _random_primes(rng, lengths, original):
    """P/q with distinct primes P up to L, each drawn from those within `BOUND` of its length.

    The longest wavelength, which has the fewest primes near it, draws first. Where all near it are
    taken, a wavelength keeps its length.
    """
    free = [p for p in range(2, original + 1) if all(p % n for n in range(2, math.isqrt(p) + 1))]
    table = lengths.copy()
    for j in np.argsort(-lengths):
        near = [
            (p, p / max(round(p / lengths[j]), 1))
            for p in free
            if abs(math.log(p / max(round(p / lengths[j]), 1) / lengths[j])) <= math.log(BOUND)
        ]
        if near:
            p, table[j] = near[rng.integers(len(near))]
            free.remove(p)
    return table


def rotations(recipe, encoding="yarn_code"):
    """Name -> `rope_parameters` of each control under a recipe: one divisor a feature.

    The wavelengths of L and more are those of the encoding.
    """
    from leval_harness.training.settings import rope_parameters
    from resonance_vllm.core.frequencies import formula
    from resonance_vllm.core.method import plain_frequencies
    from resonance_vllm.core.spec import RopeSpec

    dim = recipe.architecture.head_dim
    rope = rope_parameters(encoding, recipe)
    spec = RopeSpec.from_dict(rope)
    original = recipe.settings("cot").train_length + 1
    inverse = formula(spec, dim).inv_freq.numpy()
    plain = plain_frequencies(recipe.base, dim).numpy()
    fast = 2 * math.pi / inverse < original
    made = {}
    tables = control_tables(2 * math.pi / inverse[fast], original, recipe.base, dim)
    for name, lengths in tables.items():
        changed = inverse.copy()
        changed[fast] = 2 * math.pi / lengths
        divisors = (plain / changed).tolist()
        made[name] = {
            "rope_type": "longrope",
            "rope_theta": recipe.base,
            "factor": rope.get("factor", 1.0),
            "original_max_position_embeddings": original,
            "attention_factor": spec.method.scale(),
            "short_factor": divisors,
            "long_factor": divisors,
        }
    return made


def train_with(table, recipe):
    """Let this process build every model with a control instead of its run's encoding."""
    from leval_harness.training import posgen_models

    rope = rotations(recipe, "rope")[table]
    posgen_models.rope_parameters = lambda *_: rope


def train(arguments):
    """Train models with a control; each stands where a model trained with RoPE would."""
    from leval_harness.training.posgen_train import train_all
    from leval_harness.training.settings import PosGenRun, Recipe, preset

    recipe = preset(Recipe, "small")
    train_with(arguments.table, recipe)
    runs = [PosGenRun(arguments.subtask, "rope", seed) for seed in arguments.seed]
    for done in train_all(recipe, runs, arguments.runs):
        print(f"seed {done['seed']}: {100 * done['test']['ood_accuracy']:.2f} % past L")


def read_rows(file):
    """The rows of a CSV file; none where there is no file."""
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test(arguments):
    """Test what has no row yet."""
    import torch
    from tqdm import tqdm

    from leval_harness.training.posgen_models import (
        evaluate,
        finished_runs,
        load_model,
        read_recipe,
    )
    from resonance_vllm.hf import apply_rope

    torch.set_num_threads(1)
    recipe = read_recipe(arguments.runs)
    ropes = rotations(recipe)
    trained, encoding = arguments.trained, arguments.trained
    if trained in CONTROLS:
        train_with(trained, recipe)
        encoding = "rope"
    about = {
        "width": recipe.architecture.hidden,
        "train_length": recipe.settings("recursive").train_length,
        "length": recipe.settings("recursive").length,
        "base": f"{recipe.base:g}",
    }
    key = FIELDS[:-2]
    done = {tuple(row[name] for name in key) for row in read_rows(arguments.csv)}
    runs = [
        run
        for run in finished_runs(arguments.runs)
        if run.subtask == arguments.subtask and run.encoding == encoding
    ]
    new = not arguments.csv.exists()
    with arguments.csv.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        for run in tqdm(sorted(runs, key=lambda run: run.seed)):
            row = {**about, "subtask": run.subtask, "seed": run.seed, "trained": trained}
            settings, model = recipe.settings(run.subtask), None
            for name in (OWN, *ropes):
                full = {key: str(value) for key, value in {**row, "tested": name}.items()}
                if tuple(full[part] for part in key) in done:
                    continue
                model = model or load_model(recipe, run, arguments.runs)
                apply_rope(model, None if name == OWN else ropes[name])
                result = evaluate(model, settings, "test")
                scores = {"within": result["id_accuracy"], "past": result["ood_accuracy"]}
                writer.writerow(full | {k: f"{100 * v:.3f}" for k, v in scores.items()})
            lines.flush()


RULES = ("integer", "coprime", "prime_period", "rational")


def phases(_):
    """Print changes of wavelengths, and at L = 64 the distances to the phases of training."""
    from resonance_vllm.core.wavelengths import choose_wavelengths

    settings = ((64, 64, 1e4), (4096, 128, 1e4), (8192, 64, 1e5), (131072, 128, 5e5))
    for original, dim, base in settings:
        every = 2 * math.pi * base ** (2 * np.arange(dim // 2) / dim)
        plain = every[every < original]
        tables = {"plain RoPE": plain}
        for rule in RULES if original == 64 else ("integer", "prime_period", "rational"):
            chosen = choose_wavelengths(rule, plain.tolist(), original)
            tables[rule] = np.array([period / turns for period, turns in chosen])
        for rule, table in tables.items():
            line = f"L {original}, head size {dim}, base {base:g}, {rule}: "
            line += f"largest change {100 * np.abs(table / plain - 1).max():.4f} %"
            if original == 64:
                line += f", farthest phase {farthest_phase(plain, table, original):.3f}"
            print(line)


def farthest_phase(trained, tested, original):
    """Largest distance of a tested phase at L to 4 L to the nearest trained one before L.

    Distances are between unit vectors; wavelengths `trained` and `tested` in tokens, `[features]`.
    """
    known = np.arange(original)[:, None] / trained
    new = np.arange(original, 4 * original)[:, None] / tested
    turns = new[:, None] - known[None]
    return (2 * np.abs(np.sin(np.pi * turns))).min(axis=1).max()


def main():
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    trains = commands.add_parser("train")
    trains.add_argument("runs", type=Path)
    trains.add_argument("--table", choices=CONTROLS, required=True)
    trains.add_argument("--seed", type=int, action="append", required=True)
    trains.add_argument("--subtask", default="recursive")
    trains.set_defaults(run=train)
    tests = commands.add_parser("test")
    tests.add_argument("runs", type=Path)
    tests.add_argument("--csv", type=Path, required=True)
    tests.add_argument("--trained", default="rope")
    tests.add_argument("--subtask", default="recursive")
    tests.set_defaults(run=test)
    commands.add_parser("phases").set_defaults(run=phases)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
