"""The frames of L-Eval's scripts by name, byte for byte, cut documents included.

`data/official_prompts.json` holds digests of everything that the published scripts sent, each run
with its `--metric exam_eval`, its documents and a tokenizer of this folder's neighbour.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.prompts import CHAT_TEMPLATE, FRAME_NAMES, FRAMES, TITLES
from leval_tasks.closed.task import LEvalClosedTask
from leval_tasks.errors import ContextLengthError
from leval_tasks.metadata import ClosedSettings, read_metadata
from resonance_vllm.errors import SettingError

GOLDEN = Path(__file__).parents[1] / "golden"
OFFICIAL = json.loads((Path(__file__).parent / "data/official_prompts.json").read_text())
BY_FILE = {Path(task.file.name).stem: name for name, task in TASKS.items()}
ANSWER = 512


def messages(said: Any, **options: Any) -> Any:
    """A chat server's template: what is sent is the messages."""
    return list(said)


def made(stem: str, folder: Path, frame: str | None, template: Any = None, **more: Any) -> Any:
    metadata = {
        "data_dir": str(folder),
        "own_data": True,
        "tokenizer": str(GOLDEN / "tokenizer"),
        "max_length": 10**6,
        "frame": frame,
        **more,
    }
    task = LEvalClosedTask({"task": BY_FILE[stem], "metadata": metadata})
    task.prepare(template, "")
    return task


def sent(task: Any, template: Any = None) -> list[Any]:
    return [each for doc in task.test_docs() for each in task.prompts_of(doc).arguments(template)]


def digest(said: list[Any]) -> str:
    return hashlib.sha256(json.dumps(said, ensure_ascii=False).encode()).hexdigest()


def cases(where: str) -> list[tuple[str, str]]:
    return [(frame, stem) for frame, stems in OFFICIAL[where].items() for stem in stems]


def check(where: str, frame: str, stem: str, folder: Path, **more: Any) -> None:
    template = messages if FRAMES[frame].template == "must" else None
    for budget, expected in OFFICIAL[where][frame][stem].items():
        length = int(budget) + ANSWER
        words = {"context_length": length, "truncation_unit": "words", **more}
        task = made(stem, folder, frame, template, **words)
        assert digest(sent(task, template)) == expected, budget
        assert task.config.metadata["settings"]["frame"] == frame
        assert task.config.metadata["prompt"]["frame"] == TITLES.get(frame, frame)
        cut = {doc["prompt"]["truncated"] for doc in task.test_docs()}
        assert (True in cut) == (int(budget) == 700) or where == "published"


def test_every_published_frame_is_in_the_fixture() -> None:
    assert {name for name, layout in FRAMES.items() if layout.source} == set(OFFICIAL["sample"])
    for stems in OFFICIAL["sample"].values():
        assert set(stems) == set(BY_FILE)


@pytest.mark.parametrize(("frame", "stem"), cases("sample"))
def test_prompts_are_the_scripts_own(frame: str, stem: str) -> None:
    check("sample", frame, stem, GOLDEN / "sample")


@pytest.mark.long
@pytest.mark.parametrize(("frame", "stem"), cases("published"))
def test_prompts_of_the_published_documents(real_data: Path, frame: str, stem: str) -> None:
    check("published", frame, stem, real_data / "leval" / "closed", num_docs=3)


def test_a_frame_that_is_text_goes_into_a_template_as_one_message() -> None:
    text = sent(made("sci_fi", GOLDEN / "sample", "chatglm2"))
    said = sent(made("sci_fi", GOLDEN / "sample", "chatglm2", messages), messages)
    assert said == [[{"role": "user", "content": each}] for each in text]


@pytest.mark.parametrize("frame", FRAMES)
def test_a_frame_says_whether_it_wants_a_template(frame: str) -> None:
    wants = FRAMES[frame].template
    for template in (None, messages):
        refused = wants == ("must" if template is None else "never")
        if refused:
            with pytest.raises(SettingError, match=f"frame: {frame!r}"):
                made("tpo", GOLDEN / "sample", frame, template, num_docs=1)
        else:
            task = made("tpo", GOLDEN / "sample", frame, template, num_docs=1)
            assert task.config.metadata["settings"]["frame"] == frame


def test_a_template_that_takes_turns_alone_refuses_turbos_second_message() -> None:
    from jinja2.exceptions import TemplateError

    def turns(said: Any, **options: Any) -> str:
        if [each["role"] for each in said].count("user") > 1:
            raise TemplateError("roles must alternate")
        return "".join(each["content"] for each in said)

    made("tpo", GOLDEN / "sample", "turbo", turns, num_docs=1)
    with pytest.raises(SettingError, match=r"^frame: .* refuses messages of .*user, user \(roles"):
        made("sci_fi", GOLDEN / "sample", "turbo", turns, num_docs=1)


@pytest.mark.parametrize("frame", FRAME_NAMES)
def test_prompt_shows_every_frame(frame: str) -> None:
    from click.testing import CliRunner

    from leval_harness.cli.prompt import prompt as command

    model = str(GOLDEN / "tokenizer")
    wants = FRAMES[frame].template if frame in FRAMES else "must"
    arguments = ["sfiction", "-n", "1", "--model", model, "--data-dir", "sample"]
    arguments += ["--frame", frame, "--context-length", "4000", "--truncation-unit", "words"]
    arguments += ["--apply-chat-template"] * (wants == "must")
    shown = CliRunner().invoke(command, arguments)
    assert shown.exit_code == 0, shown.output
    assert f"prompt template: {TITLES.get(frame, frame)}" in shown.output
    assert "--- second prompt" in shown.output


@pytest.mark.parametrize("template", [None, messages])
def test_without_a_name_it_is_the_templates_or_llama_2s(template: Any) -> None:
    name = "llama2" if template is None else CHAT_TEMPLATE
    unnamed = made("tpo", GOLDEN / "sample", None, template, num_docs=1)
    named = made("tpo", GOLDEN / "sample", name, template, num_docs=1)
    assert sent(unnamed, template) == sent(named, template)
    for task in (unnamed, named):
        assert task.config.metadata["settings"]["frame"] == name


def test_an_unknown_frame_is_refused_with_the_one_that_is_meant() -> None:
    with pytest.raises(SettingError, match=r"'vicunna' is not allowed.*did you mean 'vicuna'"):
        read_metadata(ClosedSettings, {"frame": "vicunna"})
    for name in FRAME_NAMES:
        assert read_metadata(ClosedSettings, {"frame": name}).frame == name


@pytest.mark.parametrize("length", [900, 1200, 2000, 4000])
def test_the_official_cut_works_where_the_model_reads_no_more(length: int) -> None:
    words = {"truncation_unit": "words", "context_length": length}
    roomy = made("tpo", GOLDEN / "sample", None, **words)
    tight = made("tpo", GOLDEN / "sample", None, **words, max_length=length)
    assert sent(tight) == sent(roomy)
    longest = max(doc["prompt"]["prompt_tokens"] for doc in tight.test_docs())
    about = tight.config.metadata["prompt"]
    assert about["generated_tokens"] == min(ANSWER, length - longest)
    assert tight.config.generation_kwargs["max_gen_toks"] == about["generated_tokens"] > 0
    assert roomy.config.metadata["prompt"]["generated_tokens"] == ANSWER


def test_no_room_for_any_answer_names_the_length_that_is_needed() -> None:
    def asked(max_length: int) -> Any:
        metadata = {
            "data_dir": str(GOLDEN / "sample"),
            "own_data": True,
            "tokenizer": str(GOLDEN / "tokenizer"),
            "truncation_unit": "words",
            "context_length": 700,
            "max_length": max_length,
        }
        config = {"task": "leval_closed_toefl", "generation_kwargs": {"max_gen_toks": 8}}
        task = LEvalClosedTask({**config, "metadata": metadata})
        task.prepare(None, "")
        return task

    with pytest.raises(ContextLengthError, match=r"max_length=(\d+) or more") as refused:
        asked(700)
    needed = int(str(refused.value).split("give max_length=")[1].split()[0])
    assert asked(needed).config.generation_kwargs["max_gen_toks"] == 1
