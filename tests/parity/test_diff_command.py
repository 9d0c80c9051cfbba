"""`leval-harness diff`: exit codes, files, the gate with a saved reference, and what goes wrong."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import leval_harness as lh
from leval_harness.cli.diff import diff as command
from leval_harness.cli.diff import parse_lengths, parse_seconds, setup_texts
from leval_harness.cli.results import page as page_command
from leval_harness.page import read_diff
from leval_harness.parity import compare, worker
from leval_harness.parity.compare import save_reference
from leval_harness.parity.reading import Reading
from leval_harness.parity.result import length_result
from leval_harness.parity.setups import Setup
from leval_harness.parity.sides import Options
from resonance_vllm.errors import SettingError, UserError

pytestmark = pytest.mark.hf
LENGTH = "128"


@pytest.fixture
def here(monkeypatch):
    """Setups are loaded in this process: a process each takes seconds to start."""
    stock = worker.Worker.__init__

    def init(self, setup, longest, *, isolated=True):
        stock(self, setup, longest, isolated=False)

    monkeypatch.setattr(worker.Worker, "__init__", init)


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
    a, plain = f"hf:{folder},dtype=float32", '{"rope_type": "default", "rope_theta": 10000.0}'
    code, out, _ = run(a, a)
    assert code == 0
    assert out.startswith("Same within ±0.01 nats a token (+0.0000")
    code, out, _ = run(a, f"{a},rope_parameters={plain}")
    assert code == 4
    assert out.startswith("Worse by")
    code, out, _ = run(a, f"{a},rms_norm_eps=0.01", "--margin", "0.0001", "--count", "3")
    assert code in (3, 4)


def test_a_reference_replaces_a(run, copying_model, tmp_path):
    folder, base = copying_model("yarn"), tmp_path / "base.json"
    assert run(f"hf:{folder},dtype=float32", "--save", base)[0] == 0
    code, out, _ = run("--against", base, f"hf:{folder},dtype=float32", "--json", texts=None)
    content = json.loads(out)
    assert (code, content["verdict"]) == (0, "same")
    assert content["lengths"][0]["equivalence"]["whole"]["difference"] == 0
    assert content["lengths"][0]["divergence"]["what"] == "lower bound, over the top 20 tokens"
    assert content["a"]["arguments"] == {"dtype": "float32"}
    code, out, _ = run("--against", base, f"{folder},dtype=bfloat16", texts=None)
    assert code == 0
    window = copying_model("window")
    code, out, _ = run("--against", base, f"hf:{window},dtype=float32", texts=None)
    assert code == 4


def test_a_changed_text_of_a_reference_is_refused(run, copying_model, tmp_path):
    folder, base = copying_model("yarn"), tmp_path / "base.json"
    run(f"hf:{folder}", "--save", base)
    base.write_text(base.read_text().replace('"text": "w', '"text": "v', 1))
    with pytest.raises(UserError, match="does not have the SHA-256 that is written"):
        run("--against", base, f"hf:{folder}", texts=None)


def test_files_and_a_stopped_diff_resumes(run, copying_model, tmp_path, monkeypatch):
    folder, out = copying_model("yarn"), tmp_path / "out"
    arguments = [f"hf:{folder}", f"hf:{folder},dtype=float32", "--out", out]
    first = run(*arguments, "--json")
    assert {each.name for each in out.iterdir()} == {
        "diff.json", "difference.svg", "difference.png", "readings",
    }  # fmt: skip
    kept = sorted((out / "readings").iterdir())
    assert len(kept) >= 6
    kept[0].unlink()
    read = []
    stock = worker.Worker.call

    def call(self, name, *arguments):
        read.extend([name] * (name == "read"))
        return stock(self, name, *arguments)

    monkeypatch.setattr(worker.Worker, "call", call)
    again = run(*arguments, "--json")
    assert read == ["read"]
    contents = [json.loads(each[1]) for each in (first, again)]
    for content in contents:
        content.pop("seconds")
    assert contents[0] == contents[1]
    assert json.loads((out / "diff.json").read_text())["verdict"] == "same"


def test_texts_are_read_in_batches(copying_model, copying_texts, monkeypatch):
    folder, sizes, stock = copying_model("yarn"), [], worker.Worker.call

    def call(self, name, *arguments):
        if name == "read":
            sizes.append(len(arguments[0]))
        return stock(self, name, *arguments)

    monkeypatch.setattr(worker.Worker, "call", call)
    options = {"texts": str(copying_texts("yarn")), "lengths": (128,), "isolated": False}
    found = lh.diff(f"hf:{folder},dtype=float32", f"hf:{folder},dtype=float32,batch_size=3",
                    **options)  # fmt: skip
    assert (found.verdict, found.lengths[0].texts) == ("same", 4)
    assert sizes == [3, 3, 1, 1]


def test_a_spent_budget_is_not_decided(run, copying_model, monkeypatch):
    folder = copying_model("yarn")
    clock = iter(range(0, 10**6, 50))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    code, out, _ = run(f"hf:{folder}", f"hf:{folder}", "--budget", "90s")
    assert code == 3
    assert out.startswith("Not decided: ")


@pytest.mark.parametrize(("in_time", "shares"), [(4, [1.0]), (14, [1 / 16, 15 / 16])])
def test_the_look_at_which_time_ends_spends_what_is_left_of_the_level(
    here, copying_model, copying_texts, monkeypatch, in_time, shares
):
    folder = copying_model("yarn")
    answers = iter([False] * in_time + [True] * 9)
    monkeypatch.setattr(compare.Comparison, "_late", lambda _: next(answers))
    found, result_of = [], compare.length_result

    def recorded(length, pairs, **options):
        found.append(options["share"])
        return result_of(length, pairs, **options)

    monkeypatch.setattr(compare, "length_result", recorded)
    setups = f"hf:{folder},dtype=bfloat16", f"hf:{folder},dtype=float32"
    result = lh.diff(*setups, texts=str(copying_texts("yarn")), lengths=(128,), margin=1e-9)
    assert found == shares
    assert result.lengths[0].texts == 4 * len(shares)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a",), "give A and B; or B with --against FILE; or A with --save FILE"),
        (("a", "b", "c"), "give A and B"),
        (("a", "b", "--lengths", "many"), "--lengths: 'many' is not allowed"),
        (("a", "b", "--budget", "soon"), "--budget: 'soon' is not allowed; allowed: a time above"),
        (("a", "b", "--count", "2"), "--count: 2 is not allowed; allowed: at least 3 texts"),
        (("a", "b", "--margin", "0"), "--margin: 0.0 is not allowed"),
        (("a.gguf", "b"), "setup: there is no file 'a.gguf'"),
        (("a.json", "b"), "setup: there is no file 'a.json'"),
        (("hf:./a", "b"), "model: there is no folder './a'"),
        (("a", "b", "--ignore", "bso"), "--ignore: 'bso' is not allowed; allowed: bos, "),
    ],
)
def test_wrong_usage_is_named(arguments, said):
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert isinstance(done.exception, SettingError)
    assert said in str(done.exception)


def test_times_lengths_and_sides_as_they_are_written():
    assert [parse_seconds(each) for each in ("300", "90s", "5m", "1.5h")] == [300, 90, 300, 5400]
    assert parse_lengths("1024, 4096") == (1024, 4096)
    assert parse_lengths(None) == ()
    assert setup_texts(("b",), None, None, Path("x"), alone=False) == ("saved:x", "b")
    with pytest.raises(SettingError, match="--against stands for A"):
        setup_texts(("a", "b"), None, None, Path("x"), alone=False)


def test_what_cannot_be_measured_is_an_error(copying_model, copying_texts, tmp_path):
    folder = copying_model("yarn")
    options = {"texts": str(copying_texts("yarn")), "isolated": False}
    with pytest.raises(UserError, match="0 of 16 texts have 300 tokens; at least 3 are needed"):
        lh.diff(f"hf:{folder},max_length=400", f"hf:{folder},max_length=400", lengths=(300,),
                **options)  # fmt: skip
    with pytest.raises(UserError, match="does not answer"):
        lh.diff(f"hf:{folder}", "http://127.0.0.1:9,timeout=2", **options)


def test_what_is_written_wrong_is_refused_before_a_setup_is_loaded(run, copying_model, monkeypatch):
    monkeypatch.setattr(worker, "open_reader", lambda *_: pytest.fail("a setup was loaded"))
    with pytest.raises(SettingError, match="--texts: 'nofile' is not allowed"):
        run("a", "b", "--texts", "nofile", texts=None)
    folder = copying_model("yarn")
    with pytest.raises(SettingError, match="would replace what this 'llama' model ships"):
        run(f"hf:{folder}", f"hf:{folder}", "--rope-b", "linear:factor=2")


@pytest.mark.parametrize("kind", ["hf", "hf-long"])
def test_an_argument_that_no_code_takes_is_named(run, copying_model, kind):
    folder = copying_model("yarn")
    with pytest.raises(SettingError, match=rf"^dtipe: {kind} has no such argument.*mean 'dtype'"):
        run(f"hf:{folder}", f"{kind}:{folder},dtipe=float32")


def test_a_side_without_enough_memory_is_refused_before_it_is_loaded(copying_model, monkeypatch):
    setup = Setup.parse(f"hf:{copying_model('yarn')},dtype=float32")
    parameters = 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64 + 32 * 64
    assert worker.bytes_needed(setup) == 4 * parameters + worker.OVERHEAD
    monkeypatch.setattr(worker, "free_memory", lambda: worker.OVERHEAD // 2)
    with pytest.raises(UserError, match=r"needs about 1.0 GiB of memory, 0.5 GiB are free"):
        worker.both_fit(setup, setup)
    monkeypatch.setattr(worker, "free_memory", lambda: int(1.5 * worker.OVERHEAD))
    assert not worker.both_fit(setup, setup)
    monkeypatch.setattr(worker, "free_memory", lambda: 3 * worker.OVERHEAD)
    assert worker.both_fit(setup, setup)


def test_sides_that_do_not_fit_together_take_turns(copying_model, copying_texts, monkeypatch):
    folder = copying_model("yarn")
    monkeypatch.setattr(worker, "free_memory", lambda: int(1.5 * worker.OVERHEAD))
    options = {"texts": str(copying_texts("yarn")), "lengths": (128,), "isolated": False}
    found = lh.diff(f"hf:{folder}", f"hf:{folder},dtype=float32", **options)
    assert found.verdict == "same"


@pytest.mark.slow
def test_each_setup_runs_in_a_process_of_its_own(copying_model, copying_texts, tmp_path):
    folder, base = copying_model("yarn"), tmp_path / "base.json"
    options = Options(texts=str(copying_texts("yarn")), lengths=(128,))
    reference = save_reference(f"hf:{folder}", base, replace(options, isolated=False))
    assert len(reference.texts) == 16
    found = lh.diff(str(base), f"hf-long:{folder},threads=2", options)
    assert found.verdict == "same"
    with pytest.raises(UserError, match="such argument"):
        lh.diff(str(base), f"hf-long:{folder},dtpye=float32", options)


def test_recorded_losses_do_not_flake(copying_model, copying_texts, tmp_path):
    """200 resamples of the texts of a real pair (float32, bfloat16): the gate never fails.

    The margin is twice the default: 128 tokens of a model this small say little. Within the
    default, a few of the resamples are not decided (how many depends on the CPU); none is worse.
    """
    folder = copying_model("yarn")
    readings = []
    for dtype in ("float32", "bfloat16"):
        path = tmp_path / f"{dtype}.json"
        options = Options(texts=str(copying_texts("yarn")), lengths=(128,), isolated=False)
        made = save_reference(f"hf:{folder},dtype={dtype}", path, options)
        readings.append([made.readings[key] for key in sorted(made.readings)])
    pairs: list[tuple[Reading, Reading]] = list(zip(*readings, strict=True))
    rng, same = np.random.default_rng(0), 0
    for _ in range(200):
        drawn = [pairs[at] for at in rng.integers(0, len(pairs), 16)]
        wide, default = (
            length_result(128, drawn, margin=margin, share=3 / 4, lengths=1, last=True).verdict
            for margin in (0.02, 0.01)
        )
        assert wide == "same"
        assert default in ("same", "undecided")
        same += default == "same"
    assert same >= 180


def test_the_page_shows_a_saved_diff(run, copying_model, tmp_path):
    folder, out = copying_model("yarn"), tmp_path / "out"
    run(f"hf:{folder}", f"hf:{folder},dtype=float32", "--out", out)
    results = Path(__file__).parents[1] / "leaderboard" / "real_runs" / "results"
    page = tmp_path / "page"
    arguments = [results, "--out", page, "--diff", out / "diff.json"]
    done = CliRunner().invoke(page_command, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0
    text = (page / "index.html").read_text(encoding="utf-8")
    assert "Same within ±0.01 nats a token" in text
    assert 'src="figures/diff-000.svg"' in text
    assert (page / "figures" / "diff-000.svg").read_text().startswith("<?xml")
    (out / "diff.json").write_text("{}")
    with pytest.raises(UserError, match=r"is no diff\.json that `leval-harness diff --out` wrote"):
        read_diff(out / "diff.json")
