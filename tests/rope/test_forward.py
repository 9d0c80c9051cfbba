"""Small models run forward with what was requested: model code reads RoPE settings there too."""

import json
import math

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig

from leval_harness.cli.main import main
from resonance_vllm.check import limits, report
from resonance_vllm.core.method import plain_frequencies
from resonance_vllm.core.spec import RopeRequest
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf.build import report_of_checkpoint
from resonance_vllm.hf.model import rotary_report
from resonance_vllm.hf.tiny import forward, forward_problem, model_of, run_forward, write_tiny
from resonance_vllm.model_config import shipped_scaling
from resonance_vllm.model_config.model_positions import ModelPositions
from resonance_vllm.model_config.overrides import hf_overrides
from resonance_vllm.verifier import NoRope
from resonance_vllm.vllm import build

pytestmark = pytest.mark.hf

SMALL = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "pad_token_id": 0, "head_dim": 16,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
MISTRALS = {"ministral3": SMALL, "mistral4": {k: v for k, v in SMALL.items() if k != "head_dim"}}
MISTRALS["mistral4"] |= LATENT
YARN = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 64}
DEEPSEEK_V4 = {
    **SMALL, "num_key_value_heads": 1, "head_dim": 64, "qk_rope_head_dim": 16, "q_lora_rank": 16,
    "o_lora_rank": 16, "o_groups": 2, "moe_intermediate_size": 32, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "index_n_heads": 2, "index_head_dim": 32, "index_topk": 4,
    "compress_ratios": [0, 4, 128], "max_position_embeddings": 1024, "rope_scaling": YARN,
}  # fmt: skip
REPLACING = ["default", "linear:factor=4", "resonance", "ntk_aware:factor=4", "yarn:factor=4"]
REPLACING += ["resonance_linear:factor=4", "resonance_yarn:factor=4"]


def saved(kind, folder, content):
    config = CONFIG_MAPPING[kind](**content).to_dict()
    if kind == "deepseek_v4":  # as published: flat settings, which the class takes apart
        config |= {"model_type": kind, **content}
        config.pop("rope_parameters")
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def asked(path, rope):
    model = ModelPositions.of_checkpoint(path)
    return hf_overrides(model.complete(RopeRequest.parse(rope)), model)


@pytest.mark.parametrize("rope", REPLACING)
@pytest.mark.parametrize("kind", MISTRALS)
def test_a_scaling_that_is_replaced_leaves_what_the_code_reads_beside_it(kind, rope, tmp_path):
    """Mistral's code scales queries by the trained length, whatever the method is."""
    path = saved(kind, tmp_path, MISTRALS[kind])
    shipped = AutoConfig.from_pretrained(path).rope_parameters
    request = f"{rope}{',' if ':' in rope else ':'}replace=true"
    config = AutoConfig.from_pretrained(path, **asked(path, request))
    for key in ("llama_4_scaling_beta", "original_max_position_embeddings"):
        assert config.rope_parameters[key] == shipped[key]
    model = model_of(config)
    forward(model)
    (held,) = rotary_report(model)
    (before,) = report_of_checkpoint(path)
    assert len(held.inv_freq) == len(before.inv_freq) == 8
    if rope in ("default", "resonance"):
        plain = plain_frequencies(shipped["rope_theta"], 16)
        if rope == "resonance":
            plain = 2 * math.pi / (2 * math.pi / plain).round()
        assert held.inv_freq == pytest.approx(plain.tolist(), rel=1e-6)


@pytest.mark.parametrize("rope", ["resonance:replace=true", "ntk_aware:factor=4,replace=true"])
def test_a_saved_model_turns_as_before(rope, tmp_path):
    """Its config.json does not tell what the settings replaced."""
    path = saved("mistral4", tmp_path, MISTRALS["mistral4"])
    model = model_of(AutoConfig.from_pretrained(path, **asked(path, rope)))
    model.save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved").eval()
    torch.testing.assert_close(forward(again).logits, forward(model).logits)


def test_check_refuses_what_fails_in_the_forward_pass_alone(tmp_path):
    """The rotary module is right; the code divides by a length that the settings lack."""
    path = saved("ministral3", tmp_path, SMALL)
    raw = {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0, "llama_4_scaling_beta": 0.1}
    assert report_of_checkpoint(path, {"rope_parameters": raw})
    (tmp_path / "small").mkdir()
    small = str(tmp_path / "small")
    write_tiny(path, small)
    problem = forward_problem(run_forward, small, {"rope_parameters": raw})
    assert problem.startswith("its forward pass fails: TypeError")
    assert forward_problem(run_forward, small, asked(path, "resonance")) is None


def test_what_fails_in_the_forward_pass_is_refused_in_the_report(tmp_path, monkeypatch):
    path = saved("ministral3", tmp_path, SMALL)
    raw = {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0, "llama_4_scaling_beta": 0.1}
    monkeypatch.setattr("resonance_vllm.check.hf_overrides", lambda *_: {"rope_parameters": raw})
    monkeypatch.setattr("resonance_vllm.check.installed", lambda name: name == "transformers")
    model = ModelPositions.of_checkpoint(path)
    found = report(path, model, model.complete(RopeRequest.parse("linear:factor=4,replace=true")))
    assert found["transformers"]["refused"].startswith("its forward pass fails: TypeError")


def test_a_model_that_does_not_run_small_as_shipped_is_not_refused(tmp_path, caplog, monkeypatch):
    path = saved("ministral3", tmp_path, SMALL)

    def run(folder, overrides):
        raise ValueError("never")

    monkeypatch.setattr("resonance_vllm.hf.tiny.run_forward", run)
    model = ModelPositions.of_checkpoint(path)
    rope = model.complete(RopeRequest.parse("resonance:replace=true"))
    found = report(path, model, rope, libraries=["transformers"])
    assert found["transformers"]["modules"]
    assert "no forward pass was tried: ValueError: never" in caplog.text


def test_why_vllm_ran_no_small_model_is_logged(monkeypatch, caplog):
    answer = {"held": [], "not_run": "ValueError: never"}
    monkeypatch.setattr(build, "look_at", lambda *_: [answer])
    assert build.report_of_checkpoint("model", run=True) == []
    assert "vLLM: no forward pass was tried: ValueError: never" in caplog.text


def test_resonance_on_both_rotations_leaves_the_limit_and_replaces_nothing(tmp_path, caplog):
    shipped_scaling.log_once.cache_clear()
    path = saved("deepseek_v4", tmp_path, DEEPSEEK_V4)
    model = ModelPositions.of_checkpoint(path)
    spec = model.complete(RopeRequest.parse("resonance"))
    AutoConfig.from_pretrained(path, **hf_overrides(spec, model))
    assert "replaces the scaling" not in caplog.text
    assert limits(model, spec) == (1024, 1024)
    assert limits(model, spec, 512) == (1024, 1024)


@pytest.mark.parametrize("rule", ["integer", "coprime"])
def test_resonance_on_both_rotations_of_deepseek_v4(rule, tmp_path):
    path = saved("deepseek_v4", tmp_path, DEEPSEEK_V4)
    before = {each.layer_type: each for each in report_of_checkpoint(path)}
    overrides = asked(path, f"resonance:wavelengths={rule}")
    model = model_of(AutoConfig.from_pretrained(path, **overrides))
    assert torch.isfinite(forward(model).logits).all()
    assert before.keys() == {"main", "compress"}
    for each in rotary_report(model):
        shipped = before[each.layer_type]
        lengths = [2 * math.pi / f for f in each.inv_freq]
        below = [n for n, f in zip(lengths, shipped.inv_freq, strict=True) if 2 * math.pi / f < 64]
        assert below == pytest.approx([round(n) for n in below], rel=1e-6)
        assert each.exact_phase
        assert each.attention_factor == shipped.attention_factor == 1.0
        if rule == "integer":
            wanted = [round(2 * math.pi / f) for f in shipped.inv_freq]
            assert lengths == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    "rope", ["yarn:factor=4,replace=true", "resonance:replace=true", "default"]
)
def test_a_method_on_several_rotations_is_refused_and_says_what_is_allowed(rope, tmp_path):
    path = saved("deepseek_v4", tmp_path, DEEPSEEK_V4)
    with pytest.raises(RopeConfigError, match="or resonance on each of them"):
        asked(path, rope)


@pytest.fixture
def recurrent_gemma(tmp_path):
    return saved("recurrent_gemma", tmp_path, {**SMALL, "lru_width": 64})


@pytest.fixture
def check(capsys, without_vllm):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["check", *map(str, arguments)])
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        (("--rope", "resonance", "--context-length", "512"), 512),
        (("--rope", "ntk_aware:factor=4,original_max_position_embeddings=128"), 512),
    ],
)
def test_a_length_that_is_given_stands_in_for_one_that_the_config_lacks(
    rope, limit, recurrent_gemma, check
):
    code, out, err = check(recurrent_gemma, *rope, "--json")
    assert code == 0, err
    side = json.loads(out)["transformers"]
    assert side["limit"] == limit
    assert len(side["modules"][0]["inv_freq"]) == 4


def test_what_a_model_was_trained_on_follows_from_no_context_length(recurrent_gemma, check):
    rope = ("--rope", "yarn_wavelength:factor=4", "--context-length", "512")
    code, _, err = check(recurrent_gemma, *rope, "--json")
    assert (code, "max_position_embeddings: missing" in err) == (2, True)


def test_a_config_without_a_length_has_an_unknown_limit(recurrent_gemma, check):
    code, out, _ = check(recurrent_gemma)
    assert code == 0
    assert "None" not in out
    assert "limit                    unknown" in out
    code, _, err = check(recurrent_gemma, "--rope", "resonance")
    assert (code, "or a context length with the request" in err) == (2, True)


@pytest.mark.parametrize(("kind", "rope"), [("ministral3", "ntk_aware:factor=2,replace=true")])
def test_a_replacement_that_is_requested_causes_no_warning(kind, rope, tmp_path, caplog):
    shipped_scaling.log_once.cache_clear()
    shipped_scaling.intended.clear()
    path = saved(kind, tmp_path, MISTRALS[kind])
    AutoConfig.from_pretrained(path, **asked(path, rope))
    assert "replaces the scaling" not in caplog.text


def test_a_module_without_rope_is_named(tmp_path):
    path = saved("recurrent_gemma", tmp_path, {**SMALL, "num_hidden_layers": 2, "lru_width": 64})
    with pytest.raises(NoRope, match="has no rotary module"):
        report_of_checkpoint(path)
