"""Real faults, planted into one side: each is found, and named by its position where it has one.

The models copy (`train_tiny.py`), so that a fault costs them loss where it acts.
"""

import contextlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import leval_harness as lh
from leval_harness.parity.compare import save_reference
from leval_harness.parity.setups import Setup
from resonance_vllm.errors import UserError

pytestmark = pytest.mark.hf
LENGTH = 128
ORIGINAL = WINDOW = 32
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}


def compare(a, b, texts, **options):
    more = {"texts": str(texts), "lengths": (LENGTH,), "count": 16, "isolated": False}
    return lh.diff(a, b, **{**more, **options})


def first_worse(found):
    """The first bin that is worse."""
    return next(each for each in found.lengths[0].bins if each.verdict == "worse")


@pytest.fixture
def reference(tmp_path):
    """Saves what a setup reads, before a fault is planted into all that follows."""

    def save(setup, texts, lengths=(LENGTH,), **more):
        path = tmp_path / "base.npz"
        save_reference(setup, path, texts=str(texts), lengths=lengths, isolated=False, **more)
        return str(path)

    return save


def with_rope(folder, rope, **arguments):
    """A setup of the checkpoint with another RoPE dictionary, as a wrong config would give it."""
    return setup(folder, rope_parameters=rope, max_length=LENGTH, **arguments)


def setup(folder, **arguments):
    return Setup("hf", str(folder), {"dtype": "float32", **arguments})


def weights_changed(folder, target, change):
    """A copy of a checkpoint whose weight matrices are changed."""
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            tensors[name] = change(name, tensor.float()).to(tensor.dtype).contiguous()
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def rounded_to(bits):
    """Round to nearest with one scale a row."""

    def change(name, weight):
        scale = weight.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
        return (weight / scale).round() * scale

    return change


def interleaved(name, weight):
    """Rows of a head in the order of GPT-J's rotation, as a wrong conversion leaves them."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    heads, size = 4, weight.shape[0] // 4
    pairs = weight.view(heads, 2, size // 2, -1).transpose(1, 2)
    return pairs.reshape(weight.shape)


def repeated(path, period, length, count=12):
    """Texts of `length` tokens that repeat a string of `period` words."""
    made = torch.Generator().manual_seed(1)
    strings = [torch.randint(29, (period,), generator=made).tolist() for _ in range(count)]
    rows = [" ".join(f"w{word}" for word in (string * length)[: length - 1]) for string in strings]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return path


ROPE_FAULTS = {
    "wrong theta": {**YARN, "rope_theta": 500.0},
    "YaRN dropped": {"rope_type": "default", "rope_theta": 10000.0},
    "YaRN taken for linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "wrong factor": {**YARN, "factor": 2.0},
    "attention factor missing": {**YARN, "attention_factor": 1.0},
    "wrong original length": {**YARN, "original_max_position_embeddings": 128},
    "wrong ramp": {**YARN, "beta_fast": 4.0, "beta_slow": 0.5},
}


@pytest.mark.parametrize("fault", ROPE_FAULTS)
def test_wrong_rope_settings(copying_model, copying_texts, fault):
    folder = copying_model("yarn")
    found = compare(setup(folder), with_rope(folder, ROPE_FAULTS[fault]), copying_texts("yarn"))
    assert (found.verdict, found.exit_code) == ("worse", 4)
    assert found.lengths[0].loss_b - found.lengths[0].loss_a > 0.01


@pytest.mark.parametrize("table", ["short_factor", "long_factor"])
def test_the_wrong_table_of_longrope(copying_model, copying_texts, table):
    """A text is longer than the original length, so that the long table counts."""
    folder = copying_model("yarn")
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = AutoConfig.from_pretrained(folder)
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    plain = 1.0 / (10000.0 ** (torch.arange(0, 16, 2) / 16))
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "attention_factor": factor,
        "original_max_position_embeddings": ORIGINAL,
        "short_factor": [1.0] * 8,
        "long_factor": (plain / frequencies).tolist(),
    }
    wrong = {
        **longrope,
        table: longrope["long_factor" if table == "short_factor" else "short_factor"],
    }
    found = compare(with_rope(folder, longrope), with_rope(folder, wrong), copying_texts("yarn"))
    if table == "short_factor":  # not used at this length: no fault that a text of it can meet
        assert found.verdict == "same"
    else:
        assert found.verdict == "worse"


@contextlib.contextmanager
def shifted(monkeypatch, by):
    """Positions of tokens that are read after a cache are too large."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    stock = LlamaRotaryEmbedding.forward

    def forward(self, x, position_ids, **more):
        return stock(self, x, position_ids + by * (position_ids.min() > 0), **more)

    with monkeypatch.context() as patch:
        patch.setattr(LlamaRotaryEmbedding, "forward", forward)
        yield


def test_positions_shifted_from_a_chunk_on(copying_model, copying_texts, monkeypatch):
    folder = copying_model("yarn")
    with shifted(monkeypatch, by=4):
        found = compare(setup(folder), setup(folder, prefill_chunk=64), copying_texts("yarn"))
    assert found.verdict == "worse"
    assert (found.lengths[0].identical, first_worse(found).start) == (64, 64)


def test_a_shift_of_all_positions_cannot_be_seen(
    copying_model, copying_texts, reference, monkeypatch
):
    """RoPE depends on distances alone: queries and keys shifted alike give equal scores."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    folder, texts, stock = (
        copying_model("yarn"),
        copying_texts("yarn"),
        LlamaRotaryEmbedding.forward,
    )

    def forward(self, x, position_ids, **more):
        return stock(self, x, position_ids + 1, **more)

    base = reference(setup(folder), texts)
    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", forward)
    found = lh.diff(base, setup(folder), isolated=False)
    assert found.verdict == "same"
    assert abs(found.lengths[0].loss_b - found.lengths[0].loss_a) < 1e-4


def test_keys_one_position_late_after_a_cache(copying_model, copying_texts, monkeypatch):
    """The first 64 tokens are right; later keys are rotated for the position before theirs."""
    from transformers.models.llama import modeling_llama as llama

    rotation, apply, late = llama.LlamaRotaryEmbedding.forward, llama.apply_rotary_pos_emb, []

    def forward(self, x, position_ids, **more):
        late[:] = rotation(self, x, position_ids - (position_ids.min() > 0).int(), **more)
        return rotation(self, x, position_ids, **more)

    def rotate(q, k, *right, **more):
        return apply(q, k, *right, **more)[0], apply(q, k, *late, **more)[1]

    monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", forward)
    monkeypatch.setattr(llama, "apply_rotary_pos_emb", rotate)
    folder = copying_model("yarn")
    found = compare(setup(folder), setup(folder, prefill_chunk=64), copying_texts("yarn"))
    assert found.verdict == "worse"
    assert (found.lengths[0].identical, first_worse(found).start) == (64, 64)


def test_the_sliding_window_is_ignored(copying_model, copying_texts):
    folder = copying_model("window")
    found = compare(setup(folder), setup(folder, sliding_window=None), copying_texts("window"))
    assert found.verdict == "worse"
    assert first_worse(found).start >= WINDOW - 2


def test_the_window_is_off_by_one(copying_model, tmp_path):
    """Seen where what is copied lies at the edge of the window."""
    folder, texts = copying_model("window"), repeated(tmp_path / "edge.jsonl", WINDOW, LENGTH)
    found = compare(setup(folder), setup(folder, sliding_window=WINDOW - 1), texts)
    assert found.verdict == "worse"
    assert first_worse(found).start == pytest.approx(WINDOW, abs=3)


@pytest.mark.parametrize("bits", [4, 3])
def test_weights_of_few_bits(copying_model, copying_texts, tmp_path, bits):
    folder = copying_model("yarn")
    rounded = weights_changed(folder, tmp_path / "rounded", rounded_to(bits))
    found = compare(setup(folder), setup(rounded), copying_texts("yarn"))
    assert found.verdict == "worse"


def test_int8_weights_are_the_same_and_are_seen(copying_model, copying_texts, tmp_path):
    folder = copying_model("yarn")
    rounded = weights_changed(folder, tmp_path / "rounded", rounded_to(8))
    found = compare(setup(folder), setup(rounded), copying_texts("yarn"))
    assert found.verdict == "same"
    assert found.lengths[0].apart > 0


def test_heads_in_the_order_of_another_rotation(copying_model, copying_texts, tmp_path):
    folder = copying_model("yarn")
    wrong = weights_changed(folder, tmp_path / "wrong", interleaved)
    assert compare(setup(folder), setup(wrong), copying_texts("yarn")).verdict == "worse"


def test_a_cache_in_float8(copying_model, copying_texts, monkeypatch):
    from transformers.cache_utils import DynamicLayer

    folder, stock = copying_model("yarn"), DynamicLayer.update

    def update(self, keys, values, *arguments, **more):
        small = (each.to(torch.float8_e4m3fn).to(each.dtype) for each in (keys, values))
        return stock(self, *small, *arguments, **more)

    monkeypatch.setattr(DynamicLayer, "update", update)
    texts = copying_texts("yarn")
    found = compare(setup(folder), setup(folder, prefill_chunk=64), texts, count=64)
    assert found.verdict == "worse"


def test_a_wrong_epsilon_of_the_norms(copying_model, copying_texts):
    folder = copying_model("yarn")
    found = compare(setup(folder), setup(folder, rms_norm_eps=0.3), copying_texts("yarn"))
    assert found.verdict == "worse"


def test_bfloat16_against_float32_is_the_same(copying_model, copying_texts):
    folder = copying_model("yarn")
    found = compare(setup(folder), setup(folder, dtype="bfloat16"), copying_texts("yarn"))
    assert (found.verdict, found.exit_code) == ("same", 0)


@pytest.mark.slow
def test_rotation_angles_in_bfloat16(smollm2, reference, monkeypatch):
    """Between 256 and 512 they are multiples of 2 there, from 512 on of 4."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    def forward(self, x, position_ids, **more):
        angles = (
            (position_ids[..., None] * self.inv_freq).to(torch.bfloat16).float().repeat(1, 1, 2)
        )
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    model = setup(smollm2, dtype="bfloat16")
    base = reference(model, "pydocs", lengths=(640,), count=3)
    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", forward)
    found = lh.diff(base, model, isolated=False)
    assert (found.verdict, found.exit_code) == ("worse", 4)
    assert first_worse(found).end > 256


def test_a_missing_bos_is_a_finding(copying_model, copying_texts):
    folder, texts = copying_model("yarn"), copying_texts("yarn")
    b = setup(folder, add_bos_token=False)
    found = compare(setup(folder), b, texts)
    assert [each.kind for each in found.findings] == ["bos"]
    assert found.exit_code == 4
    assert "A begins a text with tokens [1, " in found.sentences()[0]
    assert compare(setup(folder), b, texts, ignore=("bos",)).exit_code == 0


def edited_tokenizer(folder: Path, target: Path, file: str, change) -> Path:
    shutil.copytree(folder, target)
    content = json.loads((target / file).read_text())
    change(content)
    (target / file).write_text(json.dumps(content))
    return target


def test_another_tokenizer_is_a_finding(copying_model, copying_texts, tmp_path):
    folder = copying_model("yarn")

    def swap(content):
        words = content["model"]["vocab"]
        words["w3"], words["w4"] = words["w4"], words["w3"]

    other = edited_tokenizer(folder, tmp_path / "other", "tokenizer.json", swap)
    found = compare(setup(folder), setup(other), copying_texts("yarn"))
    assert [each.kind for each in found.findings] == ["tokenizer"]
    assert (found.verdict, found.exit_code) == ("same", 4)


def test_another_template_is_a_finding(copying_model, copying_texts, tmp_path):
    folder = copying_model("yarn")
    texts = {"a": "{% for m in messages %}w1 {{ m.content }}{% endfor %}", "b": "w2"}
    sides = [
        edited_tokenizer(
            folder, tmp_path / name, "tokenizer_config.json",
            lambda content, text=text: content.update(chat_template=text),
        )
        for name, text in texts.items()
    ]  # fmt: skip
    found = compare(*map(setup, sides), copying_texts("yarn"))
    assert [each.kind for each in found.findings] == ["template"]
    assert found.exit_code == 4
    found = compare(setup(folder), setup(sides[0]), copying_texts("yarn"))
    assert found.findings[0].sentence == "A has no chat template, B has one"


def test_a_shorter_limit_is_named(copying_model, copying_texts):
    folder = copying_model("yarn")
    with pytest.raises(UserError, match="B reads at most 64 tokens, fewer than the 128"):
        compare(setup(folder), setup(folder, max_length=64), copying_texts("yarn"))


def test_positions_shifted_in_the_middle_of_a_long_text(
    copying_model, reference, tmp_path, monkeypatch
):
    """The losses are equal bit for bit up to the fault; right after it they are worse."""
    from transformers.models.mistral.modeling_mistral import MistralRotaryEmbedding

    stock, start = MistralRotaryEmbedding.forward, 4096

    def forward(self, x, position_ids, **more):
        return stock(self, x, position_ids + 64 * (position_ids >= start), **more)

    length = start + 257
    model = setup(copying_model("window"), max_length=length)
    texts = repeated(tmp_path / "long.jsonl", 16, length)
    base = reference(model, texts, lengths=(length,))
    monkeypatch.setattr(MistralRotaryEmbedding, "forward", forward)
    found = lh.diff(base, model, isolated=False)
    assert (found.verdict, found.exit_code) == ("worse", 4)
    assert found.lengths[0].identical == first_worse(found).start == start
