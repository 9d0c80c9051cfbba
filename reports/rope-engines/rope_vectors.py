"""Run the RoPE test vectors against an engine: `python rope_vectors.py ENGINE`.

Needs this file, `rope_vectors.json` and an adapter, and nothing but the standard library and the
engine. ENGINE is the name of a file in `adapters/`, or the path of one. An adapter has

    def version() -> str: ...       # the engine's, for the report
    def read(vector) -> dict: ...   # what the engine runs for vector["config"]

`read` returns `inv_freq` (radians a token, one a feature) and `attention_factor` (what cos and sin
are multiplied by) for the layers `vector["layer_type"]`, a sequence of `vector["length"]` tokens
and an engine set up for `vector["served_length"]`; and, where the engine can say, `cos` and `sin`
at `vector["positions"]`. An error of the engine counts as "not supported"; NotImplementedError says
that the adapter cannot look there.
"""

import argparse
import copy
import datetime
import importlib.util
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLOSE = 1e-4
"""Relative tolerance of frequencies and attention factor: above float32's rounding, below what
tells two methods apart."""
VISIBLE = 0.01
"""Radians from which a difference counts in "from position"; bfloat16 resolves 0.004."""
ANGLE = 1e-6
"""Relative error of an angle in float32: of a frequency, and of its product with a position."""

RIGHT, WRONG, IGNORED = "right", "wrong", "ignored"
UNSUPPORTED, UNREAD = "not supported", "not read"


@dataclass
class Outcome:
    """How an engine's rotation compares with a vector.

    Attributes:
        id: of the vector.
        topic: of the vector, a row of the matrix.
        status: `right`, `wrong`, `ignored` (plain RoPE runs, without an error), `not supported`
            (the engine raised an error) or `not read` (the adapter cannot look there).
        features: number of features whose frequency differs.
        of: number of features in the vector.
        far: largest relative difference of a frequency; None where the numbers of features differ.
        attention_factor: the engine's and the expected one, where they differ.
        position: first position at which a difference counts.
        text: what differs, or the engine's error.
    """

    id: str
    topic: str
    status: str
    features: int = 0
    of: int = 0
    far: float | None = 0.0
    attention_factor: tuple[float, float] | None = None
    position: int | None = None
    text: str = ""


def compare(vector: dict, held: dict) -> Outcome:
    """Compare what an engine holds with a vector.

    Args:
        vector: of the file; `inv_freq` and `attention_factor` are enough.
        held: what an adapter's `read` returns.
    """
    want, have = vector["inv_freq"], list(held["inv_freq"])
    result = Outcome(vector.get("id", ""), vector.get("topic", ""), RIGHT, of=len(want))
    lines = []
    if len(want) != len(have):
        result.far, result.features, result.position = None, len(want), 0
        lines.append(f"{len(have)} features instead of {len(want)}")
    else:
        apart = [(a, b) for a, b in zip(want, have) if not _close(a, b)]
        if apart:
            result.features = len(apart)
            result.far = max(abs(a - b) / abs(a) if a else math.inf for a, b in apart)
            result.position = visible_from(want, have)
            lines.append(f"{len(apart)} of {len(want)} frequencies up to {result.far:.2%} off")
    scale = float(held["attention_factor"])
    if not _close(vector["attention_factor"], scale) and not _also_valid(vector, scale):
        result.attention_factor, result.position = (scale, vector["attention_factor"]), 0
        lines.append(f"attention factor {scale:.6g} instead of {vector['attention_factor']:.6g}")
    if not lines and "cos" in held:
        lines += _values_apart(vector, held, scale, result)
    if lines:
        plain = _plain(vector)
        result.status = IGNORED if _same(plain, have) and not _same(plain, want) else WRONG
        result.text = "; ".join(lines)
    return result


def visible_from(want: list[float], have: list[float]) -> int:
    """The first position at which an angle is `VISIBLE` off."""
    return math.ceil(VISIBLE / max(abs(a - b) for a, b in zip(want, have)))


def _values_apart(vector: dict, held: dict, scale: float, result: Outcome) -> list[str]:
    """Where cos and sin differ by more than the rounding of a float32 angle."""
    for row, position in enumerate(vector["positions"]):
        for j, theta in enumerate(vector["inv_freq"]):
            allowed = scale * (CLOSE + ANGLE * position * theta)
            for name in ("cos", "sin"):
                off = abs(held[name][row][j] - scale_of(vector, scale) * vector[name][row][j])
                if off > allowed:
                    result.features, result.position = 1, position
                    return [f"{name} of feature {j} at position {position} is {off:.2g} off"]
    return []


def scale_of(vector: dict, scale: float) -> float:
    """1, or the ratio to an attention factor that another reference has."""
    return scale / vector["attention_factor"] if _also_valid(vector, scale) else 1.0


def _also_valid(vector: dict, scale: float) -> bool:
    other = vector.get("also_valid")
    return other is not None and _close(other["attention_factor"], scale)


def _close(want: float, have: float) -> bool:
    return abs(have - want) <= CLOSE * abs(want) + 1e-15


def _same(want: list[float], have: list[float]) -> bool:
    return len(want) == len(have) and all(map(_close, want, have))


def _plain(vector: dict) -> list[float]:
    """Plain RoPE with the vector's base, to recognise settings that an engine leaves out."""
    rope, dim = vector.get("rope"), vector.get("rotary_dim", 0)
    return [rope["rope_theta"] ** (-2 * j / dim) for j in range(dim // 2)] if rope else []


def judge(vector: dict, read) -> Outcome:
    """The outcome of one vector; an engine's error is its message."""
    try:
        held = read(copy.deepcopy(vector))
    except NotImplementedError as error:
        return Outcome(vector["id"], vector["topic"], UNREAD, text=str(error)[:300])
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is its refusal
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Outcome(vector["id"], vector["topic"], UNSUPPORTED, text=text[:300])
    return compare(vector, held)


def load(path: Path) -> dict:
    """The vectors, or a message that the file is not one of these."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("format") != "rope-vectors" or content.get("version") != 1:
        raise SystemExit(f"{path}: no rope-vectors of version 1")
    return content


def read_table(vector: dict, cos, sin) -> dict:
    """What an adapter's `read` returns, from arrays `[positions from 0, features]`."""
    at_1 = list(zip(sin[1].tolist(), cos[1].tolist()))
    held = {
        "inv_freq": [math.atan2(s, c) for s, c in at_1],
        "attention_factor": math.hypot(*at_1[0]),
    }
    if max(vector["positions"]) < len(cos):
        held["cos"], held["sin"] = (each[vector["positions"]].tolist() for each in (cos, sin))
    return held


def longrope_table(module, length: int):
    """The table of a module; of LongRoPE's two the one that a length is rotated by."""
    if hasattr(module, "long_short_cos_sin_cache"):
        table, original = module.long_short_cos_sin_cache, module.original_max_position_embeddings
        return table[original:] if length > original else table[:original]
    return module.cos_sin_cache


def adapter(name: str):
    """The module of an adapter, by name or path; it can import this file as `rope_vectors`."""
    sys.modules.setdefault("rope_vectors", sys.modules[__name__])
    path = Path(name) if name.endswith(".py") else HERE / "adapters" / f"{name}.py"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in (HERE / "adapters").glob("[!_]*.py")))
        raise SystemExit(f"{name}: no adapter {path}; allowed: {known}, or the path of a file")
    spec = importlib.util.spec_from_file_location(f"rope_adapter_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chosen(vectors: list[dict], only: list[str], own: bool) -> list[dict]:
    """The vectors whose id or method holds one of the texts; without `own` those of no new type."""
    return [
        vector
        for vector in vectors
        if (own or vector["group"] != "own")
        and (not only or any(text in (vector["id"], vector["method"]) for text in only))
    ]


def report(engine: str, version: str, outcomes: list[Outcome]) -> str:
    """A line for each vector that is not right, and the counts of each topic."""
    lines = [f"{o.id}: {o.status}: {o.text}{_since(o)}" for o in outcomes if o.status != RIGHT]
    topics = dict.fromkeys(o.topic for o in outcomes)
    lines.append(f"{engine} {version}, {len(outcomes)} vectors")
    for topic in topics:
        states = [o.status for o in outcomes if o.topic == topic]
        counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
        lines.append(f"  {topic}: {counts}")
    return "\n".join(lines)


def _since(outcome: Outcome) -> str:
    return "" if outcome.position is None else f", from position {outcome.position}"


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: every vector is right or the engine refuses it; 1: one is wrong or ignored."""
    parser = argparse.ArgumentParser(prog="rope_vectors.py", description=__doc__.split("\n")[0])
    parser.add_argument("engine", help="name of a file in adapters/, or a path")
    parser.add_argument("--vectors", type=Path, default=HERE / "rope_vectors.json")
    parser.add_argument("--only", action="append", default=[], metavar="ID|METHOD")
    parser.add_argument("--own", action="store_true", help="also types that resonance_vllm adds")
    parser.add_argument("--json", action="store_true", help="outcomes as JSON on stdout")
    args = parser.parse_args(arguments)
    vectors = chosen(load(args.vectors)["vectors"], args.only, args.own)
    if not vectors:
        raise SystemExit(f"--only {args.only}: no vector has that id or method")
    module = adapter(args.engine)
    outcomes = [judge(vector, module.read) for vector in vectors]
    name, version = Path(args.engine).stem, module.version()
    if args.json:
        date = datetime.date.today().isoformat()
        head = {"engine": name, "version": version, "date": date, "python": sys.version.split()[0]}
        print(json.dumps({**head, "outcomes": [asdict(outcome) for outcome in outcomes]}))
    else:
        print(report(name, version, outcomes))
    return int(any(outcome.status in (WRONG, IGNORED) for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
