"""What a config says about positions, and what is refused, over all families' configs."""

import json
import logging
from dataclasses import replace

import pytest
from families_record import folders

from resonance_vllm.checkpoint.limits import check_length, length_limit, length_notes
from resonance_vllm.checkpoint.overrides import hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig, complete_rope
from resonance_vllm.checkpoint.reading import read_config
from resonance_vllm.checkpoint.rope_dict import is_per_layer_type, is_windowed
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import RopeRequest, RopeSpec

QWEN = {
    "model_type": "qwen3",
    "max_position_embeddings": 262144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def saved(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize("nested", [(), ("text_config",)])
def test_two_rope_dicts_are_refused(tmp_path, nested):
    config = {**QWEN, "rope_scaling": YARN}
    for key in nested:
        config = {"model_type": "qwen3_vl", key: config}
    words = r"rope_scaling: .* beside .*rope_parameters.*write one key: \"rope_parameters\""
    with pytest.raises(RopeConfigError, match=words) as caught:
        PositionConfig.from_checkpoint(saved(tmp_path, config))
    assert '"rope_theta": 1000000.0' in str(caught.value)
    assert '"rope_type": "yarn"' in str(caught.value)


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_two_rope_dicts_are_refused_in_every_family(folder):
    """`rope_scaling` added beside the dictionary of a published config, at whichever depth."""
    content = json.loads((folder / "config.json").read_text())
    parts = [content, *(value for key, value in content.items() if key.endswith("_config"))]
    own = [part for part in parts if part.get("rope_parameters") or part.get("rope_scaling")]
    PositionConfig.from_dict(content)
    for part in own:
        key = "rope_scaling" if part.get("rope_parameters") else "rope_parameters"
        saved_value = part.get(key)
        part[key] = {"type": "linear", "factor": 3.0}
        with pytest.raises(RopeConfigError, match="write one key"):
            PositionConfig.from_dict(content)
        part[key] = saved_value


@pytest.mark.parametrize("beside", [None, {}, {"type": "default", "rope_theta": 1e6}])
def test_two_rope_dicts_that_agree_are_read(tmp_path, beside):
    path = saved(tmp_path, {**QWEN, "rope_scaling": beside})
    assert PositionConfig.from_checkpoint(path).rope["rope_theta"] == 1e6


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_theta": 5e5}, r"rope_theta: 500000.0 is given beside rope_parameters.rope_theta"),
        ({"rope_parameters": None, "rope_theta": 5e5, "rope_scaling": {**YARN, "rope_theta": 1e6}},
         r"rope_theta: 500000.0 is given beside rope_scaling.rope_theta"),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", **YARN}},
         "rope_parameters: has rope_type 'linear' and type 'yarn'"),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default", **YARN}},
         "rope_parameters: has rope_type 'default' and type 'yarn'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
def test_contradictions_are_refused(tmp_path, config, words, nested):
    content = {**QWEN, **config}
    if nested:
        content = {"model_type": "qwen3_vl", "text_config": content}
        words = words.replace("beside ", "beside text_config.")
    with pytest.raises(RopeConfigError, match=words):
        PositionConfig.from_checkpoint(saved(tmp_path, content))


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("inner", [{}, {"rope_scaling": {"type": "linear", "factor": 2.0}}])
def test_settings_outside_of_the_language_model_are_refused(tmp_path, key, inner):
    plain = {"model_type": "qwen3_vl_text", "rope_theta": 1e6, **inner}
    content = {"model_type": "qwen3_vl", "text_config": plain, key: {**YARN, "rope_theta": 1e6}}
    words = rf"{key}: .* beside the settings of text_config, .* write it as text_config"
    with pytest.raises(RopeConfigError, match=words):
        PositionConfig.from_checkpoint(saved(tmp_path, content))


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 1e6},
        {"rope_parameters": {"rope_type": "default", "type": "mrope", "rope_theta": 1e6}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN}},
    ],
)
def test_two_places_that_agree_are_read(tmp_path, config):
    content = {**QWEN, **config}
    assert PositionConfig.from_checkpoint(saved(tmp_path, content)).rope["rope_theta"] == 1e6
    both = {**content, "model_type": "qwen3_vl", "text_config": content}
    assert PositionConfig.from_checkpoint(saved(tmp_path, both)).rope["rope_theta"] == 1e6


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_read_config_changes_no_logger(folder):
    """Whatever a config is, loggers are afterwards as they were."""
    read_config(str(folder))  # what a first import changes is not this function's
    loggers = logging.Logger.manager.loggerDict
    before = {name: vars(logger).get("level") for name, logger in loggers.items()}
    read_config(str(folder))
    assert {name: vars(logger).get("level") for name, logger in loggers.items()} == before
    assert logging.getLogger("transformers.modeling_rope_utils").level == logging.NOTSET


LEARNED = {
    "opt": {"max_position_embeddings": 2048},
    "gpt2": {"n_positions": 1024},
    "gpt_neo": {"max_position_embeddings": 2048},
    "gpt_bigcode": {"n_positions": 1024},
    "biogpt": {"max_position_embeddings": 1024},
    "xglm": {"max_position_embeddings": 2048},
    "bert": {"max_position_embeddings": 512},
    "roberta": {"max_position_embeddings": 514},
    "electra": {"max_position_embeddings": 512},
    "gptj": {"n_positions": 2048},
    "codegen": {"n_positions": 2048},
}


@pytest.mark.parametrize("model_type", LEARNED)
def test_limit_of_a_position_table_is_its_length(tmp_path, model_type):
    (length,) = LEARNED[model_type].values()
    path = saved(tmp_path, {"model_type": model_type, **LEARNED[model_type]})
    model = PositionConfig.from_checkpoint(path)
    assert length_limit(model, None, 4 * length) == length
    with pytest.raises(RopeConfigError, match=f"limit of {length} tokens.* has a table"):
        check_length(model, None, length + 1)
    assert check_length(model, None, length) == length


@pytest.mark.parametrize(
    "model_type",
    ["mpt", "llama", "t5", "mamba", "nemotron_h", "bloom", "rwkv", "cpmant", "kimi_linear"],
)
def test_limit_without_a_position_table_may_be_exceeded(tmp_path, model_type):
    # A key that config classes without a length keep as it is.
    lengths = {"max_position_embeddings": 512, "seq_length": 512}
    path = saved(tmp_path, {"model_type": model_type, **lengths})
    assert length_limit(PositionConfig.from_checkpoint(path), None, 4096) >= 4096


def test_note_on_a_method_that_shortens():
    model = PositionConfig.from_dict(QWEN)
    short = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}
    (note,) = length_notes(model, model.complete(short))
    assert "yarn shortens the context: it allows 131,072 tokens (32,768 times 4)" in note
    assert "262,144" in note
    assert length_notes(model, model.complete({"rope_type": "yarn", "factor": 4})) == []


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_note_on_shortening_exactly_where_limits_say_so(folder):
    """A request that allows less than the unmodified checkpoint has a note, others have none."""
    model = PositionConfig.from_checkpoint(str(folder))
    for factor in (1.0, 2.0, 64.0):
        for length in (256, model.max_position_embeddings or 256):
            rope = {"rope_type": "linear", "factor": factor}
            rope["original_max_position_embeddings"] = length
            try:
                spec = model.complete(rope)
                shortens = length_limit(model, spec) < length_limit(model)
            except RopeConfigError:
                continue
            notes = length_notes(model, spec)
            assert any("shortens" in note for note in notes) == shortens


def test_linear_beside_one_length_names_both_readings():
    rope = {"type": "linear", "factor": 8.0, "rope_theta": 1e4}
    config = {"model_type": "llama", "max_position_embeddings": 4096, "rope_scaling": rope}
    model = PositionConfig.from_dict(config)
    (note,) = length_notes(model)
    for words in ("original context length 512", "limit 4,096", "limit 32,768"):
        assert words in note
    with pytest.raises(RopeConfigError, match="4,096 is the original context length") as caught:
        check_length(model, None, 16384)
    text = str(caught.value).partition("--rope ")[2].partition(" ")[0]
    named = model.complete(RopeRequest.parse(text))
    assert check_length(model, named, 16384) == 32768
    assert length_notes(model, named) == []


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_note_on_a_length_beyond_in_every_family(folder):
    """Eight times what a model without a scaling was released for is said, with a factor."""
    model = PositionConfig.from_checkpoint(str(folder))
    if model.is_scaled or model.has_position_table or model.max_position_embeddings is None:
        return
    notes = length_notes(model, None, 8 * model.max_positions)
    assert notes[-1].endswith("Try --rope yarn:factor=8")
    assert f"beyond the {model.max_positions:,} positions" in notes[-1]
    assert length_notes(model, None, model.max_positions) == []


@pytest.mark.parametrize("rope_type", ["linear", "resonance_linear"])
@pytest.mark.parametrize("positions", [512, 4096, 32768])
def test_ambiguous_length_names_a_request_that_works(rope_type, positions):
    """The refusal of a length names a request that allows it."""
    rope = {"rope_type": rope_type, "factor": 8.0, "rope_theta": 1e4}
    config = {"model_type": "llama", "max_position_embeddings": positions, "rope_parameters": rope}
    model = PositionConfig.from_dict(config)
    with pytest.raises(RopeConfigError) as caught:
        check_length(model, None, 8 * positions)
    text = str(caught.value).partition("decides: --rope ")[2].partition(" ")[0]
    named = model.complete(RopeRequest.parse(text))
    assert check_length(model, named, 8 * positions) == 8 * positions


@pytest.mark.parametrize(
    "rope",
    [
        {"type": "yarn", "factor": 8.0},
        {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 4096},
        {"type": "dynamic", "factor": 8.0},
        {"rope_type": "resonance_yarn", "factor": 8.0, "original_max_position_embeddings": 4096},
        {"type": "longrope", "factor": 8.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
         "original_max_position_embeddings": 4096},
    ],
    ids=lambda rope: f"{rope.get('type') or rope['rope_type']}{len(rope)}",
)  # fmt: skip
def test_length_that_the_own_method_reaches_names_it(rope):
    """`max_position_embeddings` is unscaled; the refusal names a request that allows the length."""
    config = {"model_type": "llama", "max_position_embeddings": 4096, "rope_theta": 1e4}
    model = PositionConfig.from_dict({**config, "rope_scaling": rope})
    if length_limit(model) >= 16384:
        return
    with pytest.raises(RopeConfigError) as caught:
        check_length(model, None, 16384)
    text = str(caught.value).partition("or --rope ")[2].partition(", its own method")[0]
    assert check_length(model, model.complete(RopeRequest.parse(text)), 16384) >= 16384
    with pytest.raises(RopeConfigError, match=r"a --rope method with a larger factor|of the seq"):
        check_length(model, None, 10**6)


def test_note_on_a_length_beyond_the_native_one():
    config = {**QWEN, "max_position_embeddings": 512}
    (note,) = length_notes(PositionConfig.from_dict(config), None, 4096)
    assert note.startswith("4,096 tokens are beyond the 512 positions")
    assert note.endswith("Try --rope yarn:factor=8")


WINDOWED = {
    "model_type": "gemma3_text",
    "max_position_embeddings": 32768,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    },
    "layer_types": ["sliding_attention"] * 4,
}


@pytest.mark.parametrize("rope", ["yarn:factor=2", "resonance", "default", "ntk:factor=2"])
def test_request_that_reaches_no_layer_is_refused(rope):
    model = PositionConfig.from_dict(WINDOWED)
    with pytest.raises(RopeConfigError, match="layers 0 to 3 are sliding_attention"):
        model.complete(RopeRequest.parse(rope))
    one_global = {**WINDOWED, "layer_types": ["sliding_attention", "full_attention"]}
    assert PositionConfig.from_dict(one_global).complete(RopeRequest.parse(rope))


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_request_is_refused_where_all_layers_are_windowed(folder):
    """Every family with settings per layer type, with its windowed layers alone."""
    model = PositionConfig.from_checkpoint(str(folder))
    windowed = [name for name in model.rope_parameters if is_windowed(name)]
    if not is_per_layer_type(model.rope_parameters) or not windowed:
        return
    small = replace(model, layer_types=(windowed[0],) * 3)
    for rope in ("yarn:factor=2", "linear:factor=2", "resonance"):
        with pytest.raises(RopeConfigError, match=f"layers 0 to 2 are {windowed[0]}"):
            small.complete(RopeRequest.parse(rope))


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3", "longcat_flash", "minicpm3"])
def test_resonance_on_unscaled_mla_is_built(model_type):
    """Their attention reads `factor` under any type but `default`."""
    import transformers

    from resonance_vllm.checkpoint.overrides import with_rope

    config = transformers.AutoConfig.for_model(model_type)
    spec = PositionConfig.from_config(config).complete({"rope_type": "resonance"})
    assert with_rope(config, spec).rope_parameters["factor"] == 1.0
    assert PositionConfig.from_config(config).own_spec() == spec
    assert "factor" not in hf_overrides(spec, PositionConfig.from_dict(QWEN))["rope_parameters"]


@pytest.mark.parametrize(
    "rope",
    ["yarn:factor=2", {"rope_type": "yarn", "factor": 2.0}, RopeRequest.parse("yarn:factor=2")],
)
def test_complete_rope_takes_every_form(rope):
    model = PositionConfig.from_dict(QWEN)
    expected = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0}
    expected["original_max_position_embeddings"] = 262144
    spec = complete_rope(rope, model)
    assert spec == RopeSpec.from_dict(expected)
    assert complete_rope(spec, model) is spec
