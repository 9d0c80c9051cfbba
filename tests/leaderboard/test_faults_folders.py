"""Folders of results as data from elsewhere: links, special files, edits, odd names, contents."""

import json
import os

import fixture_results as make
import pytest
from click.testing import CliRunner

from leval_harness.cli.main import app
from leval_harness.old_results import load_results
from leval_harness.old_results.fields import DEEPEST_JSON, LARGEST_JSON

GSM = make.closed_samples("leval_closed_gsm", 0.4, 3)
TOO_DEEP = '{"results": ' + '{"a": ' * 200 + "1" + "}" * 201


def table(*folders, flags=()):
    return CliRunner().invoke(app, ["table", *map(str, folders), *flags])


def cell(root, name="x1", **given):
    return make.write_cell(root, name, {"leval_closed_gsm": GSM}, **given)


def edited(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def hashed(folder):
    """`done.json` with the hash of everything else in the cell, as cells write it."""
    import hashlib

    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "done.json"
    }
    edited(folder / "done.json", lambda done: done.update(files=files))


def test_an_edited_request_is_refused(tmp_path):
    folder = cell(tmp_path, method="yarn")
    hashed(folder)
    assert load_results(tmp_path).runs[0].status == "done"
    edited(folder / "cell.json", lambda c: c["method"].update(name="rope"))
    assert load_results(tmp_path).runs[0].status == "malformed"
    ran = table(tmp_path)
    assert "cell.json: altered after the run" in ran.output
    assert not any(score.finished for score in load_results(tmp_path).scores)
    assert table(tmp_path, flags=["--verify"]).exit_code == 1


@pytest.mark.parametrize("name", ["log.txt", "rope_features.json"])
def test_verification_looks_at_every_file(tmp_path, name):
    folder = cell(tmp_path, features=make.rope_features([10.0, 20.0]))
    hashed(folder)
    assert "altered" not in table(tmp_path, flags=["--verify"]).output
    (folder / name).write_text("changed")
    ran = table(tmp_path, flags=["--verify"])
    assert (ran.exit_code, f"{name}: altered" in ran.output) == (1, True)


def outside(tmp_path):
    target = tmp_path / "outside"
    target.mkdir()
    return target


@pytest.mark.parametrize("name", ["cell.json", "done.json", "results", "samples"])
@pytest.mark.parametrize("kind", ["link", "fifo", "device", "folder"])
def test_only_regular_files_inside_are_read(tmp_path, name, kind):
    folder = cell(tmp_path / "r")
    cell(tmp_path / "r", "x2", method="rope")
    if name in ("results", "samples"):
        name = next(folder.glob(f"{name}_*")).name
    path = folder / name
    moved = path.rename(outside(tmp_path) / name)
    {
        "link": lambda: path.symlink_to(moved),
        "fifo": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
    }[kind]()
    ran = table(tmp_path / "r")
    assert ran.exit_code == 0, ran.output
    done = [run for run in load_results(tmp_path / "r").runs if run.status == "done"]
    assert [run.run_id for run in done] == ["x2"]


@pytest.mark.parametrize("kind", ["link", "fifo", "device"])
@pytest.mark.parametrize("name", ["results_2026.json", "mine.json", "out_2026.json"])
def test_plain_output_is_read_from_regular_files_alone(tmp_path, name, kind):
    source = tmp_path / "r"
    cell(source)
    path, target = source / "plain" / name, outside(tmp_path) / "x.json"
    path.parent.mkdir()
    target.write_text('{"results": {"arc": {"acc,none": 0.5}}}')
    make_one = {"link": lambda: path.symlink_to(target), "fifo": lambda: os.mkfifo(path)}
    make_one.get(kind, lambda: path.symlink_to("/dev/zero"))()
    results = load_results(source)
    assert not any(score.task == "arc" for score in results.scores)
    said = " ".join([*results.warnings, *(run.reason for run in results.runs)])
    assert name in said


def test_the_results_folder_itself_may_be_a_link(tmp_path):
    cell(tmp_path / "r")
    (tmp_path / "link").symlink_to(tmp_path / "r")
    assert load_results(tmp_path / "link").runs[0].status == "done"


def test_a_cell_that_is_a_link_is_named(tmp_path):
    cell(tmp_path / "r")
    cell(tmp_path / "elsewhere", "x2")
    (tmp_path / "r" / "x2").symlink_to(tmp_path / "elsewhere" / "x2")
    results = load_results(tmp_path / "r")
    assert len(results.runs) == 1
    assert "x2: a link" in " ".join(results.warnings)


@pytest.mark.parametrize("name", ["page", "figures"])
def test_a_sweep_may_have_any_name(tmp_path, name):
    cell(tmp_path / name)
    assert len(load_results(tmp_path).runs) == 1


def test_a_folder_without_results_is_named_beside_others(tmp_path):
    cell(tmp_path / "r")
    (tmp_path / "empty").mkdir()
    ran = table(tmp_path / "r", tmp_path / "empty")
    assert ran.exit_code == 0
    assert "empty: no results" in ran.output


BROKEN = {
    "deep": TOO_DEEP,
    "list": "[1, 2]",
    "cut": '{"results": {"arc": {"acc,',
    "long number": '{"results": {"arc": {"acc,none": ' + "9" * 6000 + "}}}",
    "no results": "{}",
    "null": '{"results": null}',
    "of texts": '{"results": {"arc": "x"}}',
    "bytes": "\x00\x01",
    "groups of anything": '{"results": {"a": {"acc,none": 0.5}}, "groups": {"g": 7}, '
    '"group_subtasks": {"g": "a", "h": [1, null]}, "configs": {"a": 3}, "n-samples": [],'
    '"higher_is_better": {"a": "x"}, "config": {"model_args": 5, "limit": "x"}, "n-shot": 4}',
    "a group that is no task": '{"results": {"a": {"acc,none": 0.5}, "g": null}, '
    '"groups": {"g": {"acc,none": 0.5}}, "group_subtasks": {"g": ["a"]}}',
    "members of anything": '{"results": {"a": {"acc,none": 0.5}}, '
    '"groups": {"g": {"acc,none": 0.5}}, "group_subtasks": {"g": ["a", [1], {}, null]}}',
    "settings of anything": '{"results": {"a": {"acc,none": 0.5}}, "configs": {"a": {"metadata": '
    '{"settings": {"x": [1, {"y": null}]}, "prompt": {"context_length": "x"}, "data": 7}}}}',
}


@pytest.mark.parametrize("what", BROKEN)
def test_one_bad_file_never_kills_a_table_over_others(tmp_path, what):
    cell(tmp_path / "r")
    (tmp_path / "r" / "bad").mkdir()
    (tmp_path / "r" / "bad" / "results_2026.json").write_text(BROKEN[what])
    ran = table(tmp_path / "r")
    assert ran.exit_code == 0, ran.output
    assert ran.exception is None
    assert "| yarn | 8K |" in ran.output
    for flags in ((), ("--verify",)):
        alone = table(tmp_path / "r" / "bad", flags=flags)
        assert alone.exit_code in (0, 1, 2)
        assert alone.exception is None or isinstance(alone.exception, SystemExit)


def test_size_and_nesting_are_bounded(tmp_path):
    folder = cell(tmp_path)
    with (folder / "cell.json").open("ab") as handle:
        handle.truncate(LARGEST_JSON + 10)
    assert "larger than" in load_results(tmp_path).runs[0].reason
    assert TOO_DEEP.count("{") > DEEPEST_JSON


def test_escapes_never_reach_the_terminal(tmp_path):
    folder = cell(tmp_path, method="\x1b[31mred", model="m\x1b]0;title\x07")
    (folder / "done.json").unlink()
    (folder / "failed.json").write_text(json.dumps({"reason": "\x1b[2Jgone\x9b31m", "kind": "x"}))
    for flags in ((), ("--json",), ("--verify",), ("--format", "csv"), ("--format", "tex")):
        ran = table(tmp_path, flags=flags)
        assert not {"\x1b", "\x9b", "\x07"} & set(ran.output), flags


def topics(questions):
    rows = make.closed_samples("leval_closed_gsm", 0.4, 3, limit=questions)
    for at, row in enumerate(rows):
        for place, name in enumerate(("first", "second", "third")):
            row[name] = row["exact_match"] if at % 3 == place else None
            row["metrics"] = [*row["metrics"], name]
    return rows


@pytest.mark.parametrize("questions", [1, 2, 4])
def test_a_position_that_was_not_asked_is_absent(tmp_path, questions):
    rows = topics(questions)
    values = make.aggregate(topics(6))
    for metric in ("exact_match", "exact_match_strict", "first", "second", "third"):
        known = [row[metric] for row in rows if row.get(metric) is not None]
        values[f"{metric},none"] = sum(known) / len(known) if known else 0.0  # as lm-eval says
    folder = make.write_cell(
        tmp_path, "x1", {"leval_closed_topic_retrieval": topics(6)}, limit=questions
    )
    path = next(folder.glob("results_*.json"))
    counts = {"leval_closed_topic_retrieval": {"original": 6, "effective": questions}}
    edited(path, lambda c: c["results"].update(leval_closed_topic_retrieval=values))
    edited(path, lambda c: c.update({"n-samples": counts}))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    next(folder.glob("samples_*")).write_text(text)
    edited(folder / "done.json", lambda done: done.update(files={}))
    found = {score.metric: score.value for score in load_results(tmp_path).scores}
    asked = {"first": 1, "second": 2, "third": 3}
    assert {name for name in asked if name in found} == {
        name for name, at in asked.items() if at <= questions
    }
    assert table(tmp_path).exit_code == 0
    page = CliRunner().invoke(app, ["page", str(tmp_path), "--out", str(tmp_path / "page")])
    assert page.exit_code == 0, page.output
