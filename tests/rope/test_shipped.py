"""Shipped scaling is part of the model: kept, built upon, or given up by name; on every family."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import lm_eval_asked
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from naive_maps import MOVING

from resonance_vllm.core.methods import METHODS
from resonance_vllm.core.spec import OWN_TYPES, RopeRequest, RopeSpec
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.model_config.limits import length_limit
from resonance_vllm.model_config.model_positions import ModelPositions
from resonance_vllm.model_config.overrides import hf_overrides, vllm_hf_overrides

FAMILIES = Path(__file__).parents[1] / "families" / "configs"
NAMES = sorted(folder.name for folder in FAMILIES.iterdir() if (folder / "config.json").is_file())
# Of two, no base is known: Bloom has no RoPE, and GPT-J's code keeps its own.
NAMES = [name for name in NAMES if name not in ("bloom_7b", "gptj_6b")]
# Two types that transformers does not know, and one without RoPE in its config.
NOT_READ = ("kimi_k2", "ling2_bailing", "nemotron_h")
by_family = pytest.mark.parametrize("name", NAMES)


@functools.cache
def model(name):
    return ModelPositions.of_checkpoint(str(FAMILIES / name))


def of(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return ModelPositions.of_checkpoint(str(tmp_path))


def asked(method, **more):
    return {"rope_type": method.name, **method.example(64), **more}


def spelt_out(spec):
    """Settings with every default written."""
    keys = {key: getattr(spec.method, key) for key in spec.method.key_names()}
    return {"rope_type": spec.rope_type, **keys, "attention_factor": spec.method.scale()} | (
        {} if "attention_factor" in keys else {"attention_factor": None}
    )


@by_family
def test_resonance_alone_is_resonance_on_what_is_shipped(name):
    shipped = model(name).shipped()
    on_top = model(name).complete({"rope_type": "resonance"})
    assert on_top.resonance is not None
    assert on_top.method == shipped.method
    assert length_limit(model(name), on_top) >= length_limit(model(name))


@by_family
def test_asking_for_what_is_shipped_is_no_replacement_however_it_is_spelt(name):
    shipped = model(name).shipped()
    for request in (
        {"rope_type": shipped.rope_type},
        shipped.to_dict(),
        spelt_out(shipped),
        {**spelt_out(shipped), "rope_type": "resonance_" + shipped.rope_type}
        if shipped.rope_type != "default"
        else {"rope_type": "resonance"},
    ):
        found = model(name).complete(request)
        assert found.method.same_as(shipped.method), request


@by_family
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_another_method_replaces_a_shipped_scaling_only_by_name(name, method):
    shipped = model(name).shipped()
    request = asked(method, **({"factor": 3.0} if "factor" in method.key_names() else {}))
    request.pop("original_max_position_embeddings", None)
    part = shipped.method.partial_rotary_factor < 1
    if method.name == "proportional" and shipped.rope_type != "proportional" and part:
        with pytest.raises(RopeConfigError, match="makes features of a whole head"):
            model(name).complete({**request, "replace": True})
    elif shipped.rope_type == "default" or request == {"rope_type": shipped.rope_type}:
        assert model(name).complete(request).method.rope_theta == shipped.method.rope_theta
    else:
        replaced_by_name(name, method, request)


def replaced_by_name(name, method, request):
    shipped = model(name).shipped()
    with pytest.raises(RopeConfigError, match=f"ships.*{shipped.rope_type}.*replace: true") as told:
        model(name).complete(request)
    assert "or resonance for Resonance on top of it" in str(told.value)
    try:
        found = model(name).complete({**request, "replace": True})
    except RopeConfigError as error:
        if shipped.rope_type == "proportional" and method.name not in OWN_TYPES:
            assert "does not fit" in str(error)  # noqa: PT017
            return
        assert "original_max_position_embeddings: not in the config" in str(error)  # noqa: PT017
        found = model(name).complete(
            {**request, "replace": True, "original_max_position_embeddings": 4096}
        )
    assert type(found.method) is method
    assert found.method.rope_theta == shipped.method.rope_theta
    if shipped.trained_length and found.trained_length:
        assert found.trained_length in (shipped.trained_length, 4096)
    written = [found.to_dict(), hf_overrides(found, model(name))]
    if method.name not in MOVING:
        written.append(vllm_hf_overrides(found, model(name)))
    assert "replace" not in json.dumps(written)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_READ])
def test_other_layer_types_and_the_models_own_keys_stay(name):
    """As transformers itself applies what is written for it."""
    from transformers import AutoConfig

    folder = FAMILIES / name
    from resonance_vllm.model_config.family import text_config

    before = getattr(text_config(AutoConfig.from_pretrained(folder))[0], "rope_parameters", None)
    spec = model(name).complete({"rope_type": "resonance"})
    after = text_config(AutoConfig.from_pretrained(folder, **hf_overrides(spec, model(name))))[0]
    layers = after.rope_parameters
    if model(name).by_layer_type:
        assert {k: v for k, v in layers.items() if k != "full_attention"} == {
            k: v for k, v in before.items() if k != "full_attention"
        }
        before, layers = before["full_attention"], layers["full_attention"]
    assert layers["rope_type"] == spec.rope_type
    for key, value in model(name).model_keys.items():
        assert layers[key] == before[key] == value


def test_the_models_own_keys_are_kept():
    read = {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16384}
    assert model("ministral3_text").model_keys == read
    assert set(model("qwen25_vl").model_keys) == {"mrope_section"}
    assert set(model("qwen35").model_keys) == {"mrope_section", "mrope_interleaved"}


def test_llama_3_1_refuses_the_plain_baseline_and_says_the_two_ways_on():
    with pytest.raises(RopeConfigError) as told:
        model("llama31_8b").complete({"rope_type": "default"})
    for words in ("'llama3'", "--rope default:replace=true", "resonance for Resonance on top"):
        assert words in str(told.value)


def test_limits_of_llama_3_1():
    """Plain RoPE in place of llama3 has the length before it; Resonance on top that of llama3."""
    rope = model("llama31_8b")
    for request, limit in (
        ({"rope_type": "default", "replace": True}, 8192),
        ({"rope_type": "yarn", "factor": 4, "replace": True}, 32768),
        ({"rope_type": "resonance"}, 131072),
        ({"rope_type": "resonance_llama3"}, 131072),
    ):
        assert length_limit(rope, rope.complete(request)) == limit, request


def test_a_shipped_attention_factor_belongs_to_the_factor_beside_it():
    """OLMo 3 spells out 0.1 ln 8 + 1, which another factor does not have."""
    olmo = model("olmo3_7b")
    assert olmo.shipped().method.scale() == pytest.approx(1.2079, abs=1e-4)
    found = olmo.complete({"rope_type": "yarn", "factor": 4, "replace": True})
    assert found.method.scale() == pytest.approx(1.1386, abs=1e-4)
    kept = olmo.complete({"rope_type": "yarn", "beta_fast": 16, "replace": True})
    assert kept.method.scale() == pytest.approx(1.2079, abs=1e-4)


def test_what_the_config_does_not_say_is_asked_for():
    """Gemma 3 4B interpolates by 8 and has 131072 positions: its trained length follows from
    neither."""
    with pytest.raises(
        RopeConfigError, match="original_max_position_embeddings: not in the config"
    ):
        model("gemma3_4b").complete({"rope_type": "yarn", "factor": 4, "replace": True})
    request = "yarn:factor=4,replace=true,original_max_position_embeddings=32768"
    found = model("gemma3_4b").complete(RopeRequest.parse(request))
    assert found.trained_length == 32768


def test_dynamic_in_place_says_the_trained_length(tmp_path):
    """InternVL3: transformers scales from `max_position_embeddings`, which so is `L`."""
    rope = {"type": "dynamic", "factor": 2.0}
    config = {"model_type": "qwen2", "rope_theta": 1e6, "rope_scaling": rope}
    internvl = of({**config, "max_position_embeddings": 32768}, tmp_path)
    found = internvl.complete({"rope_type": "yarn", "factor": 4, "replace": True})
    assert found.trained_length == 32768
    assert length_limit(internvl, found) == 4 * 32768


def test_dynamic_with_a_base_of_the_models_own(tmp_path):
    """HunYuan: `alpha` is read by the model's code, and stays."""
    rope = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    config = {"model_type": "hunyuan_v1_dense", "rope_theta": 1e4, "rope_scaling": rope}
    hunyuan = of({**config, "max_position_embeddings": 32768}, tmp_path)
    found = hunyuan.complete({"rope_type": "resonance"})
    assert found.rope_type == "resonance_dynamic"
    written = hf_overrides(found, hunyuan)["rope_parameters"]
    assert written["alpha"] == 1000.0
    with pytest.raises(RopeConfigError, match="replace what this 'hunyuan_v1_dense' model ships"):
        hunyuan.complete({"rope_type": "yarn", "factor": 4})
    with pytest.raises(RopeConfigError, match="original_max_position_embeddings: not in the conf"):
        hunyuan.complete({"rope_type": "yarn", "factor": 4, "replace": True})


def test_an_interpolated_checkpoint_has_its_positions_multiplied_already(tmp_path):
    """DeepSeek-Coder: trained on 4096, factor 4, 16384 positions."""
    rope = {"type": "linear", "factor": 4.0}
    config = {"model_type": "llama", "rope_theta": 1e5, "rope_scaling": rope}
    coder = of({**config, "max_position_embeddings": 16384}, tmp_path)
    assert length_limit(coder, coder.complete({"rope_type": "resonance"})) == 16384


@pytest.mark.parametrize("shipped", ["resonance", "resonance_yarn"])
def test_resonance_that_is_shipped_is_not_lost_in_silence(shipped, tmp_path):
    rope = {"rope_type": shipped, "rope_theta": 1e4}
    if shipped != "resonance":
        rope |= {"factor": 4.0, "original_max_position_embeddings": 64}
    tuned = of(
        {"model_type": "llama", "max_position_embeddings": 256, "rope_parameters": rope}, tmp_path
    )
    plain = shipped.removeprefix("resonance").removeprefix("_") or "default"
    with pytest.raises(RopeConfigError, match=f"ships.*{shipped}"):
        tuned.complete({"rope_type": plain})
    with pytest.raises(RopeConfigError, match=f"ships.*{shipped}"):
        tuned.complete({"rope_type": shipped, "wavelengths": "coprime"})
    assert tuned.complete({"rope_type": "resonance"}) == tuned.shipped()
    assert tuned.complete({"rope_type": plain, "replace": True}).resonance is None


def test_replace_is_a_key_of_requests_alone():
    request = RopeRequest.parse("yarn:factor=4,replace=true")
    assert request.replace
    assert RopeRequest.from_dict(request.to_dict()) == request
    with pytest.raises(RopeConfigError, match="replace: 'yes' is not allowed; allowed: true or"):
        RopeRequest.parse("yarn:factor=4,replace=yes")
    with pytest.raises(RopeConfigError, match="replace"):
        RopeSpec.from_dict({**asked(METHODS["yarn"]), "rope_theta": 1e4, "replace": True})


def test_a_folder_and_a_hub_name_are_read_alike(tmp_path):
    """The families under names of the hub, as they lie in its cache, read in a process."""
    script = """
import json, sys
from resonance_vllm.model_config.model_positions import ModelPositions
print(json.dumps({n: ModelPositions.of_checkpoint(f"org/{n}").model_dump() for n in sys.argv[1:]}))
"""
    for name in NAMES:
        snapshot = tmp_path / "hub" / f"models--org--{name}" / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_bytes((FAMILIES / name / "config.json").read_bytes())
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    done = subprocess.run(
        [sys.executable, "-c", script, *NAMES], capture_output=True, text=True, check=False,
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    for name in NAMES:
        assert found[name] == json.loads(json.dumps(model(name).model_dump())), name


RAW = {"rope_type": "resonance", "rope_theta": 5e5}


@pytest.mark.parametrize(
    ("backend", "given"),
    [
        ("hf", {"rope_parameters": RAW}),
        ("hf-long", {"rope_scaling": RAW}),
        ("vllm", {"hf_overrides": {"rope_parameters": RAW}}),
        ("vllm", {"hf_overrides": json.dumps({"rope_parameters": RAW})}),
    ],
)
def test_raw_model_args_that_hide_a_scaling_are_refused(backend, given):
    def run(name):
        args = json.dumps({"pretrained": str(FAMILIES / name), **given})
        return lm_eval_asked.asked("--model", backend, "--model_args", args)

    with pytest.raises(RopeConfigError, match="would hide what this 'llama' model ships"):
        run("llama31_8b")
    assert run("qwen3_8b")


def test_raw_model_args_that_nobody_can_read_are_said_to_be_unknown(caplog):
    args = {"pretrained": str(FAMILIES / "llama31_8b"), "rope_parameters": {"rope_type": "mystery"}}
    lm_eval_asked.asked("--model", "hf", "--model_args", json.dumps(args))
    assert "what runs then is unknown" in caplog.text


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
ROPE_KEYS = ["rope_parameters", "rope_scaling", "rope_theta", "max_position_embeddings"]
ROPE_KEYS += ["partial_rotary_factor", "layer_types", "text_config", "model_type"]
ROPE_KEYS += ["original_max_position_embeddings", "head_dim"]
INNER_KEYS = ["rope_type", "type", "factor", "rope_theta", "full_attention", "attention_factor"]
INNER_KEYS += ["original_max_position_embeddings", "mrope_section", "short_factor"]
TYPES = st.sampled_from([*METHODS, "resonance", "resonance_yarn", "mrope", "su", "nothing"])


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(NAMES),
    changes=st.dictionaries(
        st.sampled_from(ROPE_KEYS),
        JSON | st.dictionaries(st.sampled_from(INNER_KEYS), JSON | TYPES, max_size=5),
        max_size=3,
    ),
    request=st.sampled_from(["resonance", "default", "yarn:factor=2", "longrope:replace=true"]),
)
@example(
    name="apertus", changes={"rope_parameters": {"": None, "0": {}, "00": {}}}, request="resonance"
)
def test_whatever_config_json_holds_is_read_or_refused(tmp_path_factory, name, changes, request):
    folder = tmp_path_factory.mktemp("config")
    config = json.loads((FAMILIES / name / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    try:
        read = ModelPositions.of_checkpoint(str(folder))
        length_limit(read)
        spec = read.complete(RopeRequest.parse(request))
        hf_overrides(spec, read)
        vllm_hf_overrides(spec, read, 4096)
    except RopeConfigError as error:
        assert str(error)  # noqa: PT017 - the message is the point


def test_methods_on_layer_types_of_another_kind_are_refused():
    """DeepSeek V4 names its rotations `main` and `compress`: Resonance alone is for both."""
    one = {"rope_type": "default", "rope_theta": 10000.0}
    content = {"model_type": "deepseek_v4", "max_position_embeddings": 4096, "rope_theta": 1e4}
    model = ModelPositions.of({**content, "rope_parameters": {"main": one, "compress": one}})
    with pytest.raises(RopeConfigError, match="for each of main, compress, and not one"):
        model.complete(RopeRequest.parse("yarn:factor=4"))
    resonance = hf_overrides(model.complete(RopeRequest.parse("resonance")), model)
    written = {"rope_type": "resonance", "rope_theta": 10000.0}
    assert resonance["rope_parameters"] == {"main": written, "compress": written}


@pytest.mark.parametrize("place", ["text_config", "llm_config", "language_config"])
def test_a_language_model_is_found_where_code_of_its_own_nests_it(place):
    inner = {"model_type": "inner", "rope_theta": 5e5, "max_position_embeddings": 4096}
    content = {"model_type": "of_its_own", "vision_config": {"rope_theta": 7.0}, place: inner}
    nested = ModelPositions.of(content)
    written = vllm_hf_overrides(nested.complete(RopeRequest.parse("resonance")), nested)
    assert set(written) == {place}
    assert written[place]["rope_parameters"]["rope_theta"] == 5e5


def test_a_shipped_key_that_no_code_reads_is_not_taken_for_a_misspelt_one(tmp_path):
    from resonance_vllm.hf.build import report_of_checkpoint

    config = json.loads((FAMILIES / "yarn_llama2_128k" / "config.json").read_text())
    shipped = of(config, tmp_path)
    config["rope_scaling"] |= {"read_by_nobody": 1, "lists_of_nobody": [1, 2]}
    with_more = of(config, tmp_path)
    assert with_more.rope == shipped.rope
    spec = with_more.complete(RopeRequest.parse("resonance"))
    (held,) = report_of_checkpoint(str(tmp_path), hf_overrides(spec, with_more))
    assert held.exact_phase


def test_layers_without_a_window_get_the_request_whatever_their_type_is_called(tmp_path):
    """ZAYA1 has `hybrid` and `hybrid_sliding` layers."""
    from transformers import CONFIG_MAPPING

    from resonance_vllm.hf.build import report_of_checkpoint

    kinds = ["hybrid", "hybrid_sliding"]
    config = CONFIG_MAPPING["zaya"](num_hidden_layers=2, layer_types=kinds, sliding_window=64)
    config.save_pretrained(tmp_path)
    model = ModelPositions.of_checkpoint(str(tmp_path))
    spec = model.complete(RopeRequest.parse("resonance_yarn:factor=4"))
    shipped = {each.layer_type: each for each in report_of_checkpoint(str(tmp_path))}
    held = report_of_checkpoint(str(tmp_path), hf_overrides(spec, model))
    asked = {each.layer_type: each for each in held}
    assert asked["hybrid"].exact_phase
    assert asked["hybrid"].attention_factor == pytest.approx(spec.method.scale())
    assert asked["hybrid_sliding"] == shipped["hybrid_sliding"]


@pytest.mark.parametrize("shipped", ["proportional", "resonance_yarn", "default"])
@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_types_of_the_libraries_do_not_fit_a_head_of_which_a_part_turns(method, shipped, tmp_path):
    """Gemma 4 pairs dimensions over its whole head; stock types make features for a quarter.

    Also of a checkpoint that was saved with another type in place of `proportional`.
    """
    config = json.loads((FAMILIES / "gemma4_text" / "config.json").read_text())
    keys = {"factor": 2.0, "original_max_position_embeddings": 4096}
    there = config["rope_parameters"]["full_attention"]
    there |= {"rope_type": shipped, **(keys if shipped == "resonance_yarn" else {})}
    gemma = of(config, tmp_path)
    rope = asked(method) | {"replace": True}
    if method.name in OWN_TYPES or method.name == "proportional":
        assert gemma.complete(rope).rope_type == method.name
    else:
        with pytest.raises(RopeConfigError, match="does not fit this 'gemma4_text' model"):
            gemma.complete(rope)
        whole = gemma.complete({**rope, "partial_rotary_factor": 1.0})
        assert whole.rope_type == method.name


PART = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0, "partial_rotary_factor": 0.25}
PART |= {"original_max_position_embeddings": 4096}
SLIDING = {"rope_type": "default", "rope_theta": 10000.0}
BY_LAYER = {"full_attention": PART, "sliding_attention": SLIDING}


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("gemma4_text", {"rope_parameters": PART}),
        ("gemma4_text", {"rope_parameters": BY_LAYER}),
        ("gemma4", {"text_config": {"rope_parameters": BY_LAYER}}),
    ],
)
@pytest.mark.parametrize("backend", ["hf", "vllm"])
def test_raw_model_args_of_a_type_for_a_part_of_a_head_are_not_told_to_say_replace(
    backend, name, overrides
):
    given = {"hf_overrides": overrides} if backend == "vllm" else overrides
    args = json.dumps({"pretrained": str(FAMILIES / name), **given})
    with pytest.raises(RopeConfigError, match=r"does not fit.*allowed: resonance_yarn"):
        lm_eval_asked.asked("--model", backend, "--model_args", args)
