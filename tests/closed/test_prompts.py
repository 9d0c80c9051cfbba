"""Prompts through a model's own chat template; test_frames has those of text."""

import json
from typing import Any

import pytest
from jinja2.exceptions import TemplateError

from leval_tasks.closed import prompts
from leval_tasks.closed.catalog import task_named
from resonance_vllm.common.errors import SettingError

CHOICE_END = ".  Please directly give the answer without any additional output or explanation "
SYSTEM = task_named("toefl").system_prompt


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
    assert made.argument("DOC") == (
        f"<system>{SYSTEM.strip()}</system><user>Document is as follows. DOC "
        f"\nQuestion: Q?{CHOICE_END.rstrip()}</user><assistant>Answer:"
    )


@pytest.mark.parametrize("system", ["error", "dropped"])
def test_template_without_system_role_uses_user_message(system):
    made = chat(Tokenizer(system)).prompts(task_named("toefl"), "Q?")[0]
    assert made.argument("DOC").startswith(f"<user>{SYSTEM}\n\nDocument is as follows.")


def test_reasoning_templates_are_not_interrupted():
    made = chat(Tokenizer(thinks=True)).prompts(task_named("toefl"), "Q?")[0]
    assert made.argument("D").endswith("\nAnswer:</user><assistant><think>\n")


def test_lead_in_is_a_setting_and_gsm_has_none():
    made = chat(Tokenizer(), "user").prompts(task_named("toefl"), "Q?")[0]
    assert made.argument("D").endswith("\nAnswer:</user><assistant>")
    gsm = chat(Tokenizer()).prompts(task_named("gsm"), "Q?")[0]
    assert gsm.argument("DOC").endswith("<user>DOC\n\nQ?</user><assistant>")


def test_chat_servers_get_messages():
    tokenizer = Tokenizer()

    def server(messages: Any) -> tuple[str]:
        return (json.dumps(messages),)

    writer = prompts.PromptWriter(prompts.CHAT_TEMPLATE, tokenizer, server)
    made, fact = (
        [json.loads(each.argument(document, server)[0]), each.argument(document)]
        for each, document in zip(
            writer.prompts(task_named("sfiction"), "Q?"), ("DOC", ""), strict=True
        )
    )
    assert [m["role"] for m in made[0]] == ["system", "user"]
    assert made[0][1]["content"] == (
        f"Document is as follows. DOC \nQuestion: Q?{CHOICE_END}\nAnswer:"
    )
    assert [m["role"] for m in fact[0]] == ["user"]
    for messages, counted in (made, fact):
        assert counted == tokenizer.apply_chat_template(messages)


def test_names_are_found_or_suggested():
    assert task_named("toefl") is task_named("leval_closed_toefl") is task_named("leval_toefl")
    for wrong, meant in (("leval_closed_qualty", "leval_closed_quality"), ("sfictoin", "sfiction")):
        with pytest.raises(SettingError, match=f"task: '{wrong}' is not .*did you mean '{meant}'"):
            task_named(wrong)


@pytest.mark.parametrize(
    ("name", "golds", "chance"),
    [
        ("toefl", ["A"], 0.25),
        ("gsm", ["18"], 0.0),
        ("sfiction", [], 0.5),
        ("topic_retrieval", ["a topic"], None),
        # one right letter: 1 of 15 sets is right, none is a part; two: two parts earn a quarter
        ("coursera", ["A", "AB"], 1.25 / 15),
        ("coursera", [], None),
    ],
)
def test_chance_levels(name, golds, chance):
    assert task_named(name).rule.chance(golds) == (chance and pytest.approx(chance))
