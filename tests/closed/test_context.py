"""Which tokenizer and which context length a run's settings mean."""

import json
from pathlib import Path

import pytest

from leval_tasks.context import Context, resolve_context
from leval_tasks.errors import ContextLengthError, TokenizerError
from leval_tasks.model import find_tokenizer, tokenizer_name
from resonance_vllm.errors import SettingError

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e5,
    "factor": 4.0,
    "original_max_position_embeddings": 8192,
}
RESONANCE = {**YARN, "rope_type": "resonance_yarn"}


@pytest.fixture
def checkpoint(tmp_path: Path):
    def write(**config: object) -> str:
        folder = tmp_path / f"m{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        base = {"model_type": "llama", "max_position_embeddings": 8192}
        (folder / "config.json").write_text(json.dumps({**base, **config}))
        return str(folder)

    return write


def length(**settings: object) -> int:
    return resolve_context(settings).length


def test_order_of_the_settings(checkpoint):
    model = checkpoint()
    assert length(pretrained=model, context_length=1000, max_length=2000) == 1000
    assert length(pretrained=model, max_length=2000) == 2000
    assert length(pretrained=model, max_model_len=3000) == 3000
    assert length(pretrained=model) == 8192
    assert resolve_context({"pretrained": model}).origin == "checkpoint"


def test_rope_settings_of_the_run_count(checkpoint):
    model = checkpoint()
    # hf: the position count is what lm-eval's backend takes as its limit
    assert length(pretrained=model, rope_parameters=YARN, max_position_embeddings=32768) == 32768
    overrides = {"rope_parameters": RESONANCE}
    assert length(pretrained=model, hf_overrides=overrides) == 32768
    assert length(pretrained=model, hf_overrides=json.dumps(overrides)) == 32768
    assert (
        length(
            pretrained=model,
            hf_overrides={"rope_parameters": YARN, "max_position_embeddings": 32768},
        )
        == 32768
    )


def test_rope_settings_of_the_checkpoint_count(checkpoint):
    scaled = checkpoint(max_position_embeddings=32768, rope_parameters=RESONANCE)
    assert length(pretrained=scaled) == 32768
    text = {"model_type": "gemma3_text", "max_position_embeddings": 4096}
    assert length(pretrained=checkpoint(model_type="gemma3", text_config=text)) == 4096
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    llama3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert (
        length(pretrained=checkpoint(max_position_embeddings=131072, rope_scaling=llama3)) == 131072
    )


def test_length_that_the_hf_backend_would_cut_is_an_error(checkpoint):
    model = checkpoint()
    with pytest.raises(
        ContextLengthError, match=r"context_length: 16384 is above the 8192 .*max_length=16384"
    ):
        length(pretrained=model, context_length=16384)


HF, VLLM = "lm_eval.models.huggingface", "lm_eval.models.vllm_causallms"


def test_the_running_model_says_what_it_reads(checkpoint, while_running):
    # a RoPE type in config.json that the running model's own limit does not count
    unscaled = {"pretrained": checkpoint(rope_parameters=RESONANCE)}
    for module in (HF, VLLM, "leval_harness.backends.hf_long"):
        context = while_running(lambda: resolve_context(unscaled), module, max_length=8192)
        assert context == Context(8192, "model")
        with pytest.raises(ContextLengthError, match=r"context_length: 32768 is above the 8192 "):
            while_running(
                lambda: resolve_context({**unscaled, "context_length": 32768}),
                module,
                max_length=8192,
            )
    asked = {**unscaled, "max_length": 32768}
    assert while_running(lambda: resolve_context(asked), HF, max_length=32768).length == 32768


def test_a_running_model_that_does_not_tell_is_as_none(checkpoint, while_running):
    settings = {"pretrained": checkpoint()}
    assert while_running(lambda: resolve_context(settings), "tests") == Context(8192, "checkpoint")


def test_running_servers_are_asked_too(while_running):
    for tokenized, length in ((True, 2047), (False, 4096)):
        server = {"context_length": 2048 if tokenized else 4096}
        context = while_running(
            lambda settings=server: resolve_context(settings),
            "lm_eval.models.openai_completions",
            max_length=2047,
            tokenized_requests=tokenized,
        )
        assert context.length == length


def test_vllm_limits(checkpoint):
    model = checkpoint()
    marked = {"pretrained": model, "gpu_memory_utilization": 0.5}
    linear = {"rope_type": "linear", "factor": 2.0}
    assert length(**marked, hf_overrides={"rope_parameters": linear}, context_length=16384) == 16384
    with pytest.raises(ContextLengthError):
        length(**marked, hf_overrides={"rope_parameters": YARN}, context_length=16384)


def test_completion_server_keeps_a_token_back_and_has_a_default_limit(checkpoint):
    server = {"pretrained": checkpoint(), "base_url": "http://h/v1/completions"}
    assert length(**server, max_length=4096) == 4095
    assert length(**server, context_length=1024) == 1024
    with pytest.raises(ContextLengthError, match="above the 2048 tokens"):
        length(**server, context_length=4096)
    assert length(**server, context_length=4096, tokenized_requests=False) == 4096


def test_chat_server_has_no_limit_of_its_own(checkpoint):
    server = {"pretrained": checkpoint(), "base_url": "http://h/v1/chat/completions"}
    assert length(**server, context_length=10000) == 10000
    assert length(**server, max_length=8192) == 8192


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_length_of_a_server_is_never_guessed(checkpoint, while_running, path):
    server = {"pretrained": checkpoint(), "base_url": f"http://h/v1/{path}"}

    def run(**settings):
        return while_running(
            lambda: resolve_context({**server, **settings}),
            "lm_eval.models.openai_completions",
            max_length=settings.get("max_length", 2048) - 1,
            tokenized_requests=path == "completions",
        )

    for resolve in (length, run):
        with pytest.raises(ContextLengthError, match="max_length: not given, and a server does"):
            resolve(**({} if resolve is run else server))
    assert run(context_length=1000) == Context(1000, "context_length")
    assert run(max_length=1000).origin == "max_length"


def test_llama_3_1_reads_as_much_with_resonance_as_without(checkpoint):
    llama3 = {
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    for kind in ("llama3", "resonance_llama3"):
        rope = {**llama3, "rope_type": kind}
        model = checkpoint(max_position_embeddings=131072, rope_parameters=rope)
        assert length(pretrained=model) == 131072


def test_unknown_length_is_an_error():
    with pytest.raises(ContextLengthError, match="give context_length"):
        length(model="no-such-model", tokenizer="no-such-model")


@pytest.mark.parametrize("value", [0, -1, "many", 3.5, [4096]])
def test_length_must_be_a_positive_whole_number(value):
    with pytest.raises(SettingError, match=r"^context_length: .* is not allowed; .*number"):
        length(pretrained="x", context_length=value)


def test_tokenizer_is_named_by_the_run():
    assert tokenizer_name({"tokenizer": "t", "pretrained": "p", "model": "m"}) == "t"
    assert tokenizer_name({"pretrained": "p", "model": "m"}) == "p"
    assert tokenizer_name({"model": "m"}) == "m"
    with pytest.raises(TokenizerError, match="none is known to the task"):
        tokenizer_name({"dtype": "float32"})


def test_tokenizer_that_cannot_be_loaded(tmp_path):
    with pytest.raises(TokenizerError, match=r"cannot be loaded.*tokenizer=NAME_OR_PATH"):
        find_tokenizer({"pretrained": str(tmp_path)})
