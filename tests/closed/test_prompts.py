"""The official frames, character by character, and the model's own chat template."""

import json
from typing import Any

import pytest
from jinja2.exceptions import TemplateError

from leval_tasks.closed import prompts
from leval_tasks.closed.catalog import task_named
from resonance_vllm.errors import SettingError

CHOICE_END = ".  Please directly give the answer without any additional output or explanation "


def plain(name: str, question: str) -> list[prompts.Prompt]:
    return prompts.PromptWriter("llama2").prompts(task_named(name), question)


@pytest.mark.parametrize("name", ["coursera", "quality", "toefl", "sfiction"])
def test_llama_2_frame_with_answer(name):
    system = task_named(name).system_prompt
    assert plain(name, "Q?")[0].text("DOC") == (
        f"[INST]<<SYS>>\n{system}\n<</SYS>>\n\nDocument is as follows. DOC \nQuestion: Q?"
        f"{CHOICE_END}[/INST]\nAnswer:"
    )


@pytest.mark.parametrize("name", ["gsm", "codeu"])
def test_llama_2_frame_left_open_for_reasoning(name):
    system = task_named(name).system_prompt
    (prompt,) = plain(name, "Q\nLet's think step by step\n")
    text = prompt.text("DOC")
    assert text == (f"[INST]<<SYS>>\n{system}\n<</SYS>>\n\nDOC\n\nQ\nLet's think step by step\n")


def test_llama_2_frame_of_topic_retrieval():
    task = task_named("topic_retrieval")
    assert plain("topic_retrieval", "Which?")[0].text("DOC {x}") == (
        f"[INST]<<SYS>>\n{task.system_prompt}\n<</SYS>>\n\nDOC {{x}}\n\nWhich?[/INST]"
    )


def test_blanks_at_the_end_of_system_prompts():
    blank = dict.fromkeys(["coursera", "gsm", "quality", "toefl", "topic_retrieval"], True)
    official = blank | dict.fromkeys(["codeu", "sfiction"], False)
    assert {key: task_named(key).system_prompt.endswith(" ") for key in official} == official


def second(question: str) -> prompts.Prompt:
    return plain("sfiction", question)[1]


def test_fact_question_has_no_document():
    question = (
        "X, True or False? Answer this question based on the world described in the document."
    )
    assert second(question).text("DOC") == (
        "X, True or False? Answer this question based on the real-world knowledge and facts up "
        "until your last trainingPlease directly answer without any additional output or "
        "explanation. \nAnswer:"
    )
    assert second("no sentence").text("DOC").startswith("no sentencePlease")


class Tokenizer:
    """A chat template in a few lines."""

    chat_template = "yes"

    def __init__(self, system: str = "kept", thinks: bool = False) -> None:
        self.system, self.thinks = system, thinks

    def apply_chat_template(self, messages: Any, **kwargs: Any) -> str:
        if messages[0]["role"] == "system":
            if self.system == "error":
                raise TemplateError("no system role")
            if self.system == "dropped":
                messages = messages[1:]
        text = "".join(f"<{m['role']}>{m['content'].strip()}</{m['role']}>" for m in messages)
        return text + "<assistant>" + ("<think>\n" if self.thinks else "")


def chat(tokenizer: Tokenizer, answer_prefix: str = "assistant") -> prompts.PromptWriter:
    template = tokenizer.apply_chat_template
    return prompts.PromptWriter(prompts.CHAT_TEMPLATE, tokenizer, template, answer_prefix)


def test_chat_template_with_system_role():
    made = chat(Tokenizer()).prompts(task_named("toefl"), "Q?")[0]
    system = task_named("toefl").system_prompt
    assert made.text("DOC") == (
        f"<system>{system.strip()}</system><user>Document is as follows. DOC "
        f"\nQuestion: Q?{CHOICE_END.rstrip()}</user><assistant>Answer:"
    )
    assert (made.system_role, made.answer_prefix, made.messages) == ("system", "assistant", ())


@pytest.mark.parametrize("system", ["error", "dropped"])
def test_template_without_system_role_gets_it_in_the_user_message(system):
    made = chat(Tokenizer(system)).prompts(task_named("toefl"), "Q?")[0]
    assert made.text("DOC").startswith(
        f"<user>{task_named('toefl').system_prompt}\n\nDocument is as follows."
    )
    assert made.system_role == "user"


def test_reasoning_templates_are_not_interrupted():
    made = chat(Tokenizer(thinks=True)).prompts(task_named("toefl"), "Q?")[0]
    assert made.text("D").endswith("\nAnswer:</user><assistant><think>\n")
    assert made.answer_prefix == "user"


def test_lead_in_is_a_setting_and_gsm_has_none():
    made = chat(Tokenizer(), "user").prompts(task_named("toefl"), "Q?")[0]
    assert made.text("D").endswith("\nAnswer:</user><assistant>")
    gsm = chat(Tokenizer()).prompts(task_named("gsm"), "Q?")[0]
    assert gsm.text("DOC").endswith("<user>DOC\n\nQ?</user><assistant>")
    assert gsm.answer_prefix == "none"


def test_chat_servers_get_messages():
    tokenizer = Tokenizer()
    server = prompts.PromptWriter(prompts.CHAT_TEMPLATE, tokenizer, lambda m: (json.dumps(m),))
    made = server.prompts(task_named("toefl"), "Q?")[0]
    messages = made.fill("DOC")
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[1]["content"] == (
        f"Document is as follows. DOC \nQuestion: Q?{CHOICE_END}\nAnswer:"
    )
    assert made.text("DOC") == tokenizer.apply_chat_template(messages)
    _, fact = server.prompts(task_named("sfiction"), "Q?")
    assert [m["role"] for m in fact.fill("DOC")] == ["user"]
    assert "DOC" not in fact.text("DOC")


def test_names_are_found_or_suggested():
    assert task_named("toefl") is task_named("leval_closed_toefl")
    with pytest.raises(
        SettingError,
        match=r"task: 'leval_closed_qualty' is not allowed; .*did you mean 'leval_closed_quality'",
    ):
        task_named("leval_closed_qualty")
    with pytest.raises(SettingError, match="did you mean 'sfiction'"):
        task_named("sfictoin")


def chance(name: str, *golds: str) -> float | None:
    return task_named(name).rule.chance(golds)


def test_chance_levels():
    assert chance("toefl", "A") == chance("quality") == 0.25
    assert chance("gsm", "18") == chance("codeu", "3") == 0.0
    assert chance("sfiction") == 0.5
    assert chance("topic_retrieval", "a topic") is None
    # one right letter: 1 of 15 sets is right, none is a part; two: two parts earn a quarter
    assert chance("coursera", "A") == pytest.approx(1 / 15)
    assert chance("coursera", "AB") == pytest.approx(1.5 / 15)
    assert chance("coursera", "A", "AB") == pytest.approx(1.25 / 15)
    assert chance("coursera") is None
