"""The RoPE test vectors: the file, its formulas, and both libraries against it."""

import json
import os
import subprocess
import sys

import jsonschema
import mpmath
import pytest
from vectors import generate
from vectors.cases import PUBLISHED

from resonance_vllm.vectors.rope_vectors import IGNORED, RIGHT, WRONG, compare, judge, main

RUNNER = generate.FILE.with_name("rope_vectors.py")
VECTORS = json.loads(generate.FILE.read_text(encoding="utf-8"))["vectors"]
BY_ID = {vector["id"]: vector for vector in VECTORS}
STOCK = [vector for vector in VECTORS if vector["group"] != "own"]


def test_the_file_is_what_the_formulas_give_and_follows_its_schema():
    text = generate.FILE.read_text(encoding="utf-8")
    assert text == generate.text(), "PYTHONPATH=tests/shared python -m vectors.generate"
    assert len(text) < 5_000_000
    schema = json.loads(RUNNER.with_name("rope_vectors.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(text), schema)
    assert len(BY_ID) == len(VECTORS)
    assert len(json.loads(PUBLISHED.read_text(encoding="utf-8"))) >= 60


def test_the_runner_is_small_and_needs_the_standard_library_alone():
    source = RUNNER.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 300
    imported = {
        line.split()[1].split(".")[0]
        for line in source.splitlines()
        if line.startswith(("import ", "from "))
    }
    assert imported <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    "vector",
    [vector for vector in VECTORS if "alpha" not in vector["rope"]],  # HunYuan's fixed base
    ids=lambda vector: vector["id"],
)
def test_our_methods_have_these_numbers(vector):
    """`resonance_vllm.core` shares no line with the closed forms."""
    import torch

    from resonance_vllm.core.frequencies import inv_freq
    from resonance_vllm.core.phase import cos_sin
    from resonance_vllm.core.spec import RopeSpec

    rope = {**vector["rope"], "partial_rotary_factor": 1.0}
    if vector["method"] == "proportional":
        rope["partial_rotary_factor"] = vector["rope"]["partial_rotary_factor"]
    for key in ("finetuned", "llama_4_scaling_beta", "mrope_section", "mrope_interleaved"):
        rope.pop(key, None)
    if rope.get("mscale_all_dim") == 0.0:
        del rope["mscale_all_dim"]  # DeepSeek writes 0 for none
    spec = RopeSpec.from_dict(rope)
    dim, length = vector["rotary_dim"], vector["length"]
    found = inv_freq(spec, dim, length)
    assert found.tolist() == pytest.approx(vector["inv_freq"], rel=1e-12, abs=0)
    assert spec.method.scale() == pytest.approx(vector["attention_factor"], rel=1e-12)
    positions = torch.tensor(vector["positions"])
    for name, values in zip(
        ("cos", "sin"), cos_sin(spec, dim, positions, seq_len=length), strict=True
    ):
        expected = torch.tensor(vector[name], dtype=torch.float64)
        assert (values - expected).abs().max() < 1e-8 + 1e-15 * length


def test_cos_and_sin_are_those_of_40_digits():
    for vector in VECTORS[::7]:
        with mpmath.workdps(40):
            for row, position in enumerate(vector["positions"]):
                for j, theta in enumerate(vector["inv_freq"]):
                    turned = vector.get("wavelengths")
                    angle = (
                        2 * mpmath.pi * (position % turned[j]) / turned[j]
                        if turned and turned[j]
                        else position * mpmath.mpf(theta)
                    )
                    exact = vector["attention_factor"] * mpmath.cos(angle)
                    assert abs(exact - vector["cos"][row][j]) < 1e-9 + 1e-16 * position


@pytest.mark.hf
def test_transformers_has_every_vector(capsys):
    assert main(["transformers", "--json"]) == 0
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    other = {o["id"].split("@")[0]: o["status"] for o in outcomes if o["status"] != RIGHT}
    assert other == {"phi-3-mini-128k": "not supported"}, "the type `su`, with an error"
    assert len(outcomes) == len(STOCK)


@pytest.mark.vllm
@pytest.mark.slow
def test_vllm_has_every_vector_but_those_whose_frequencies_it_fixes_at_start_up():
    command = [sys.executable, str(RUNNER), "vllm", "--json"]
    environment = {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    outcomes = json.loads(child.stdout.splitlines()[-1])["outcomes"]
    other = {o["id"]: o["status"] for o in outcomes if o["status"] != RIGHT}
    assert len(outcomes) == len(STOCK)
    assert {
        identity
        for identity in other
        if "@" not in identity  # lengths: LongRoPE, dynamic NTK
    } == {"linear-2"}, "an int as factor is an error in vLLM"
    assert other["dynamic-2@8192"] == IGNORED
    assert other["phi-3.5-mini@short-text"] == WRONG


def held(identity, **changes):
    vector = BY_ID[identity]
    names = ("inv_freq", "attention_factor", "cos", "sin")
    return {**{name: vector[name] for name in names}, **changes}


def test_what_a_difference_says():
    identity = "yarn-4-truncate-true"
    vector = BY_ID[identity]
    assert compare(vector, held(identity)).status == RIGHT
    off = [*vector["inv_freq"][:-1], vector["inv_freq"][-1] * 1.5]
    outcome = compare(vector, held(identity, inv_freq=off))
    assert (outcome.status, outcome.features, outcome.far) == (WRONG, 1, pytest.approx(0.5))
    position, difference = outcome.position, off[-1] - vector["inv_freq"][-1]
    assert (position - 1) * difference < 0.01 <= position * difference
    outcome = compare(vector, held(identity, attention_factor=1.0))
    assert (outcome.status, outcome.position) == (WRONG, 0)
    plain = [1e4 ** (-2 * j / 128) for j in range(64)]
    outcome = compare(vector, held(identity, inv_freq=plain, attention_factor=1.0))
    assert outcome.status == IGNORED
    assert compare(vector, held(identity, inv_freq=plain[:32])).far is None
    sin = [[-value for value in row] for row in vector["sin"]]
    assert compare(vector, held(identity, sin=sin)).status == WRONG


def test_two_readings_of_mscale_alone_are_both_right():
    vector = BY_ID["yarn-mscale-alone"]
    scale = vector["also_valid"]["attention_factor"]
    other = {"inv_freq": vector["inv_freq"], "attention_factor": scale}
    assert scale == pytest.approx(1.09801, abs=1e-5)
    assert compare(vector, other).status == RIGHT
    assert compare(vector, {**other, "attention_factor": 1.0}).status == WRONG


def test_an_error_of_the_engine_is_its_refusal():
    def read(vector):
        raise ValueError("unknown  type")

    outcome = judge(BY_ID["linear-8.0"], read)
    assert (outcome.status, outcome.text) == ("not supported", "ValueError: unknown type")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nothing"], "allowed: litgpt"), (["transformers", "--only", "x"], "no vector")],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(SystemExit, match=message):
        main(arguments)
