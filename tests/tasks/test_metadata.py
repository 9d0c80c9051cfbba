"""Settings of our tasks in lm-eval's metadata: what is refused, and what passes."""

import dataclasses
import importlib.util
import inspect
from typing import Any

import pytest

from leval_tasks.common.metadata import (
    FAMILIES,
    ClosedSettings,
    ContextSettings,
    PerplexitySettings,
    PosGenSettings,
    read_metadata,
    refuse_near_misses,
)
from resonance_vllm.common.errors import SettingError
from resonance_vllm.common.settings import field_names


@pytest.mark.slow
def test_unknown_keys_of_others_pass():
    from lm_eval.models.api_models import TemplateAPI
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.vllm_causallms import VLLM
    from transformers import GenerationConfig, LlamaConfig

    names = {"max_seq_lengths", "tokenizer_mode", "num_samples_ruler", "seeds", "model", "node"}
    for backend in (HFLM, HFLM._create_model, VLLM, TemplateAPI):
        names |= set(inspect.signature(backend).parameters)
    names |= set(LlamaConfig().to_dict()) | set(GenerationConfig().to_dict())
    if importlib.util.find_spec("vllm"):
        from vllm import EngineArgs

        names |= {each.name for each in dataclasses.fields(EngineArgs)}
    assert {"pretrained", "softmax_dtype", "tokenized_requests"} <= names
    assert len(names) > 150
    refuse_near_misses(dict.fromkeys(names) | {5: 6})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("num_dosc", "num_docs"),
        ("trunctation", "truncation"),
        ("contxt_lenght", "context_length"),
        ("context_len", "context_length"),
        ("strides", "stride"),
        ("NUM-DOCS", "num_docs"),
    ],
)
def test_a_near_name_is_refused_with_the_setting_that_is_meant(key, meant):
    with pytest.raises(SettingError, match=f"^{key}: unknown setting; did you mean '{meant}'"):
        read_metadata(ClosedSettings, {"pretrained": "m", key: 1})


@pytest.mark.parametrize(
    ("family", "metadata", "message"),
    [
        (ClosedSettings, {"num_docs": "two"}, "num_docs: Input should be a valid integer ('two'"),
        (ClosedSettings, {"num_docs": 1.5}, "num_docs: Input should be a valid integer (1.5 g"),
        (ClosedSettings, {"truncation": "rigth"}, "truncation: Input should be 'middle'"),
        (PerplexitySettings, {"mode": "last"}, "mode: Input should be 'sliding' or"),
        (ClosedSettings, {"frame": "lama2"}, "('lama2' given)"),
        (ClosedSettings, {"data_dir": 1}, "data_dir: Input should be a valid string"),
        (PerplexitySettings, {"stride": 0}, "stride: Input should be greater than or"),
        (
            PerplexitySettings,
            {"context_length": [64, "x"]},
            "context_length.1: Input should be a valid",
        ),
        (PosGenSettings, {"subtask": "recursiv"}, "subtask: Input should be"),
        (PosGenSettings, {"subtask": "cot", "train_length": 4}, "train_length: 4 is not allowed"),
        (PosGenSettings, {"subtask": "cot", "length": 32}, "train_length: 64 is not allowed"),
        (ContextSettings, {"max_length": -1}, "max_length: Input should be greater"),
    ],
)
def test_values_are_refused(family, metadata, message):
    with pytest.raises(SettingError) as refused:
        read_metadata(family, metadata)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("family", "metadata", "expected"),
    [
        (ContextSettings, {"max_length": 8192, "context_length": None}, {"max_length": 8192}),
        (ClosedSettings, {"truncation": True}, {}),
        (ClosedSettings, {"truncation": None, "num_docs": None}, {}),
        (PerplexitySettings, {"context_length": [64, 128]}, {"context_length": (64, 128)}),
        (PerplexitySettings, {"context_length": [64, 8]}, {"context_length": (8, 64)}),
        (PerplexitySettings, {"context_length": 64}, {"context_length": (64,)}),
        (PerplexitySettings, {"context_length": []}, {}),
        (PerplexitySettings, {"seed": 1234, "dtype": "float32"}, {"seed": 1234}),
    ],
)
def test_what_may_be_written(family, metadata: dict[str, Any], expected):
    assert read_metadata(family, metadata) == family(**expected)


OF_NO_NUMBER = {
    "data_dir": "where the data lie: what was read is recorded by its digest",
    "file": "the same, of documents of one's own",
    "reads": "which of the same losses a run computes",
}


@pytest.mark.parametrize(
    ("family", "name"), [(each, name) for each in FAMILIES for name in field_names(each)]
)
def test_every_setting_is_recorded_or_has_a_reason_why_not(family, name):
    settings = family(**({"subtask": "cot"} if family is PosGenSettings else {}))
    assert (name in settings.recorded()) == (name not in OF_NO_NUMBER)
