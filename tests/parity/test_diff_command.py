"""`leval-harness diff`: exit codes, files, the gate with a saved reference, and what goes wrong."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import leval_harness as lh
from leval_harness.cli.diff import diff as command
from leval_harness.parity import worker
from leval_harness.parity.compare import Options, save_reference
from resonance_vllm.errors import SettingError, UserError

pytestmark = pytest.mark.hf
LENGTH = "128"
PLAIN = '{"rope_type": "default", "rope_theta": 10000.0}'


@pytest.fixture
def here(monkeypatch):
    """Setups are loaded in this process: a process each takes seconds to start."""
    stock = worker.Side.__init__

    def init(self, name, setup, **more):
        stock(self, name, setup, **{**more, "isolated": False})

    monkeypatch.setattr(worker.Side, "__init__", init)


@pytest.fixture
def run(here, copying_texts):
    def call(*arguments, texts="yarn"):
        more = ["--texts", str(copying_texts(texts))] if texts else []
        if "--against" not in arguments:
            more += ["--lengths", LENGTH]
        done = CliRunner().invoke(command, [*map(str, arguments), *more], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.return_value, done.stdout, done.stderr

    return call


def test_exit_codes_are_those_of_the_verdict(run, copying_model):
    folder = copying_model("yarn")
    a = f"hf:{folder},dtype=float32"
    code, out, _ = run(a, a)
    assert (code, out.splitlines()[0]) == (
        0, "Identical: all losses are equal bit for bit; 8 texts of 128 tokens.",
    )  # fmt: skip
    code, out, _ = run(a, f"hf:{folder},dtype=bfloat16", "--margin", "0.1")
    assert (code, out[:30]) == (0, "Same within ±0.1 nats a token ")
    code, out, _ = run(a, f"{a},rope_parameters={PLAIN},max_length=128")
    assert code == 4
    assert out.splitlines()[1].startswith("Worse: identical up to 1, then ")
    code, out, _ = run(a, f"hf:{folder},dtype=bfloat16", "--margin", "0.00001", "--count", "2")
    assert code == 3
    assert out.startswith("Not decided: ")
    assert "2 texts of 128 tokens.\n" in out


def test_rope_settings_are_compared_first_and_losses_decide(run, copying_model):
    a = f"hf:{copying_model('yarn')},dtype=float32"
    _, out, _ = run(a, a, "--rope-b", "linear:factor=4")
    first, second, *_ = out.splitlines()
    assert first.startswith("RoPE settings differ: A {")
    assert "'rope_type': 'linear'" in first
    assert second.startswith("Worse: ")
    same = json.dumps(
        json.loads((copying_model("yarn") / "config.json").read_text())["rope_parameters"]
    )
    _, out, _ = run(a, f"{a},rope_parameters={same}")
    assert out.startswith("Identical: ")


def test_a_reference_replaces_a(run, copying_model, tmp_path):
    folder, base = copying_model("yarn"), tmp_path / "base.npz"
    assert run(f"hf:{folder},dtype=float32", "--save", base)[0] == 0
    code, out, _ = run("--against", base, f"hf:{folder},dtype=float32", "--json", texts=None)
    content = json.loads(out)
    assert (code, content["verdict"]) == (0, "same")
    assert (content["lengths"][0]["identical"], content["lengths"][0]["bins"]) == (127, [])
    assert content["a"]["arguments"] == {"dtype": "float32"}
    assert run("--against", base, f"{folder},dtype=bfloat16", texts=None)[0] in (0, 3)
    window = copying_model("window")
    assert run("--against", base, f"hf:{window},dtype=float32", texts=None)[0] in (3, 4)


def test_a_stopped_diff_reads_only_what_is_left(run, copying_model, tmp_path, monkeypatch):
    folder, out = copying_model("yarn"), tmp_path / "out"
    arguments = [f"hf:{folder}", f"hf:{folder},dtype=float32", "--out", out]
    first = run(*arguments, "--json")
    assert {each.name for each in out.iterdir()} == {
        "diff.json", "difference.svg", "difference.png", "readings",
    }  # fmt: skip
    kept = sorted((out / "readings").iterdir())
    assert len(kept) == 16
    kept[0].unlink()
    read, stock = [], worker.Side.call

    def call(self, name, *given):
        read.extend(given if name == "read" else [])
        return stock(self, name, *given)

    monkeypatch.setattr(worker.Side, "call", call)
    again = run(*arguments, "--json")
    assert [len(rows) for rows in read] == [1]
    contents = [json.loads(each[1]) for each in (first, again)]
    for content in contents:
        content.pop("seconds")
    assert contents[0] == contents[1]


def test_a_is_closed_before_b_is_loaded(copying_model, copying_texts, monkeypatch):
    """Two engines side by side do not fit on one GPU."""
    events = []
    stock_open, stock_close = worker.open_reader, worker.Side.close

    def opened(setup):
        events.append("open")
        return stock_open(setup)

    def closed(self):
        events.append("close")
        stock_close(self)

    monkeypatch.setattr(worker, "open_reader", opened)
    monkeypatch.setattr(worker.Side, "close", closed)
    folder = f"hf:{copying_model('yarn')}"
    lh.diff(folder, folder, texts=str(copying_texts("yarn")), lengths=(128,), isolated=False)
    assert events == ["open", "close"] * 2


def test_texts_are_read_in_batches(run, copying_model, monkeypatch):
    folder, sizes, stock = copying_model("yarn"), [], worker.Side.call

    def call(self, name, *arguments):
        if name == "read":
            sizes.append(len(arguments[0]))
        return stock(self, name, *arguments)

    monkeypatch.setattr(worker.Side, "call", call)
    a = f"hf:{folder},dtype=float32"
    assert run(a, f"{a},batch_size=3", "--count", "4")[0] == 0
    assert sizes == [1, 1, 1, 1, 3, 1]


def test_without_lengths_both_read_what_both_can(copying_model, copying_texts):
    folder = f"hf:{copying_model('yarn')},dtype=float32"
    options = {"texts": str(copying_texts("yarn")), "isolated": False}
    found = lh.diff(folder, f"{folder},max_length=64", **options)
    assert (found.lengths[0].length, found.verdict) == (64, "same")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a",), "give A and B; or B with --against FILE; or A with --save FILE"),
        (("a", "b", "c"), "give A and B"),
        (("a", "b", "--lengths", "many"), "--lengths: 'many' is not allowed"),
        (("a", "b", "--count", "0"), "--count: 0 is not allowed; allowed: at least 1 text"),
        (("a", "b", "--margin", "0"), "--margin: 0.0 is not allowed"),
        (("a.npz", "b"), "setup: there is no file 'a.npz'"),
        (("hf:./a", "b"), "model: there is no folder './a'"),
        (("a", "b", "--ignore", "bso"), "--ignore: 'bso' is not allowed; allowed: bos, "),
        (("a", "b", "--against", __file__), "--against stands for A"),
    ],
)
def test_wrong_usage_is_named(arguments, said):
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert isinstance(done.exception, SettingError)
    assert said in str(done.exception)


def test_what_cannot_be_measured_is_an_error(copying_model, copying_texts):
    folder = copying_model("yarn")
    options = {"texts": str(copying_texts("yarn")), "isolated": False}
    with pytest.raises(UserError, match="none of 64 texts has 300 tokens"):
        lh.diff(f"hf:{folder},max_length=400", f"hf:{folder},max_length=400", lengths=(300,),
                **options)  # fmt: skip
    with pytest.raises(UserError, match="does not answer"):
        lh.diff(f"hf:{folder}", "http://127.0.0.1:9,timeout=2", **options)


@pytest.mark.slow
def test_each_setup_runs_in_a_process_of_its_own(copying_model, copying_texts, tmp_path):
    folder, base = copying_model("yarn"), tmp_path / "base.npz"
    options = Options(texts=str(copying_texts("yarn")), lengths=(128,))
    reference = save_reference(f"hf:{folder}", base, replace(options, isolated=False))
    assert len(reference.texts) == 8
    found = lh.diff(str(base), f"hf-long:{folder},threads=2", options)
    assert found.verdict == "same"
    with pytest.raises(UserError, match="dtpye"):
        lh.diff(str(base), f"hf-long:{folder},dtpye=float32", options)
