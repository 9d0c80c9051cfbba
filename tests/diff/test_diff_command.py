"""`leval-harness diff`: exit codes, files, the gate with a saved reference, and what goes wrong."""

import json
import os

import click
import pytest
from click.testing import CliRunner

import leval_harness as lh
from leval_harness.cli.diff import diff as command
from leval_harness.diff import compare, side
from leval_harness.diff.compare import save_reference
from resonance_vllm.common.errors import SettingError, UserError

pytestmark = [pytest.mark.slow]
PLAIN = '{"rope_type": "default", "rope_theta": 10000.0}'


@pytest.fixture
def run(monkeypatch, copying_documents):
    """The command; setups are loaded in this process: a process each takes seconds to start."""
    monkeypatch.setattr(compare, "in_process", lambda function, *more: function(*more))

    def call(*arguments):
        more = ["--documents", str(copying_documents("yarn")), "--length", "128"]
        done = CliRunner().invoke(command, [*map(str, arguments), *more], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.return_value, done.stdout, done.stderr

    return call


def test_exit_codes_are_those_of_the_verdict(run, copying_model):
    folder = copying_model("yarn")
    a = f"hf:{folder},dtype=float32"
    code, out, progress = run(a, a)
    assert (code, out.splitlines()[0]) == (
        0, "Identical: all losses are bitwise identical; 8 texts of 128 tokens.",
    )  # fmt: skip
    assert "B: document 8 of 8, 128 tokens\n" in progress
    code, out, _ = run(a, f"hf:{folder},dtype=bfloat16", "--margin", "0.1")
    assert code == 0
    assert "he same within ±0.1 nats/token (every interval lies within ±0.0" in out
    code, out, _ = run(a, f"{a},rope_parameters={PLAIN},max_length=128")
    assert code == 4
    assert out.splitlines()[1].startswith("Worse: identical up to 1, then ")
    code, out, _ = run(a, f"hf:{folder},dtype=bfloat16", "--margin", "0.00001", "--count", "2")
    assert code == 3
    assert out.startswith("Not decided: ")


def test_rope_settings_are_compared_first_and_losses_decide(run, copying_model, tmp_path):
    a, base = f"hf:{copying_model('yarn')},dtype=float32", tmp_path / "base.npz"
    run(a, "--save", base)
    for sides in ((a, a), ("--against", base, a)):
        _, out, _ = run(*sides, "--rope-b", "linear:factor=4")
        first, second, *_ = out.splitlines()
        assert first.startswith("RoPE settings differ: A {")
        assert "'rope_type': 'linear'" in first
        assert second.startswith("Worse: ")
    config = json.loads((copying_model("yarn") / "config.json").read_text())
    _, out, _ = run(a, f"{a},rope_parameters={json.dumps(config['rope_parameters'])}")
    assert out.startswith("Identical: ")


def test_a_reference_replaces_a(run, copying_model, tmp_path):
    folder, base = copying_model("yarn"), tmp_path / "base.npz"
    assert run(f"hf:{folder},dtype=float32", "--save", base)[0] == 0
    out = tmp_path / "out"
    code, shown, _ = run(base, f"hf:{folder},dtype=float32", "--json", "--out", out)
    content = json.loads(shown)
    assert (code, content["verdict"]) == (0, "same")
    assert (content["identical"], content["bins"]) == (127, [])
    assert content["a"]["text"] == f"hf:{folder},dtype=float32"
    assert content == json.loads((out / "diff.json").read_text())
    window = copying_model("window")
    assert run(base, f"hf:{window},dtype=float32")[0] in (3, 4)


def test_a_is_closed_before_b_is_loaded(run, copying_model, monkeypatch):
    """Two engines side by side do not fit on one GPU."""
    events, stock = [], side.open_reader

    def opened(setup):
        events.append("open")
        reader = stock(setup)
        reader.close = lambda: events.append("close")
        return reader

    monkeypatch.setattr(side, "open_reader", opened)
    run(f"hf:{copying_model('yarn')}", f"hf:{copying_model('yarn')}", "--count", "1")
    assert events == ["open", "close"] * 2


def test_without_a_length_a_text_is_as_long_as_a_can_read(copying_model, copying_documents):
    folder = f"hf:{copying_model('yarn')},dtype=float32"
    options = {"documents": str(copying_documents("yarn")), "isolated": False}
    found = lh.diff(f"{folder},max_length=64", folder, **options)
    assert (found.length, found.verdict) == (64, "same")
    with pytest.raises(UserError, match=r"B reads at most 64 tokens, fewer than .*; --length 64 "):
        lh.diff(folder, f"{folder},max_length=64", **options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a",), "give A and B; or B with --against FILE; or A with --save FILE"),
        (("a", "b", "--against", __file__), "or B with --against FILE"),
        (("a", "b", "--length", "many"), "'many' is not a valid integer"),
        (("a", "b", "--length", "4"), "4 is not in the range x>=8"),
        (("hf:a", "c.npz"), "a saved reference, which can only be A"),
        (("a.npz", "http://b"), "a.npz is not a reference saved by"),
        (("a", "b", "--ignore", "bso"), "Input should be 'bos'"),
        (("a", "b", "--save", "c.npz"), "or A with --save FILE"),
        (("a.npz", "b", "--rope-a", "yarn"), "rope: saved runs a model as it is"),
    ],
)
def test_wrong_usage_is_named(arguments, said):
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert isinstance(done.exception, SettingError | click.UsageError)
    assert said in str(done.exception)


def test_what_cannot_be_measured_is_an_error(copying_model, copying_documents):
    folder = f"hf:{copying_model('yarn')}"
    options = {"documents": str(copying_documents("yarn")), "isolated": False}
    with pytest.raises(UserError, match="none of 64 documents has 300 tokens"):
        lh.diff(f"{folder},max_length=400", folder, **options, length=300)
    with pytest.raises(UserError, match="does not answer"):
        lh.diff(folder, "http://127.0.0.1:9,timeout=2", **options)


class Ended:
    """A setup whose process ends when it is sent there."""

    def __reduce__(self):
        return os._exit, (3,)


@pytest.mark.slow(long=True)
def test_each_setup_runs_in_a_process_of_its_own(copying_model, copying_documents, tmp_path):
    folder, base = copying_model("yarn"), tmp_path / "base.npz"
    save_reference(f"hf:{folder}", base, documents=str(copying_documents("yarn")), isolated=False)
    assert lh.diff(base, f"hf-long:{folder},threads=2").verdict == "same"
    with pytest.raises(UserError, match="unexpected keyword argument 'dtpye'"):
        lh.diff(base, f"hf:{folder},dtpye=float32")
    with pytest.raises(UserError, match="the process that loads the setup crashed"):
        side.in_process(len, Ended())
