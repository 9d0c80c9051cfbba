"""Real faults, planted into one side: each is found, and named by its position where it has one.

The models copy (`train_tiny.py`), so that a fault costs them loss where it acts.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral.modeling_mistral import MistralRotaryEmbedding

import leval_harness as lh
from leval_harness.diff.compare import save_reference
from leval_harness.diff.setups import Setup

pytestmark = [pytest.mark.slow]
LENGTH = 128
ORIGINAL = WINDOW = 32
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip


def compare(a, b, documents, **options):
    more = {"documents": str(documents), "length": LENGTH, "count": 16, "isolated": False}
    return lh.diff(a, b, **{**more, **options})


def first_worse(found):
    """The first bin that is worse."""
    return next(each for each in found.bins if each.verdict == "worse")


@pytest.fixture
def reference(tmp_path):
    """Saves what a setup reads, before a fault is planted into all that follows."""

    def save(setup, documents, length=LENGTH, **more):
        path = tmp_path / "base.npz"
        save_reference(setup, path, documents=str(documents), length=length, isolated=False, **more)
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
    """Documents of `length` tokens that repeat a string of `period` words."""
    made = torch.Generator().manual_seed(1)
    strings = [torch.randint(29, (period,), generator=made).tolist() for _ in range(count)]
    rows = [" ".join(f"w{word}" for word in (string * length)[: length - 1]) for string in strings]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return path


ROPES = {
    "wrong theta": {**YARN, "rope_theta": 500.0},
    "YaRN dropped": {"rope_type": "default", "rope_theta": 10000.0},
    "YaRN taken for linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "wrong factor": {**YARN, "factor": 2.0},
    "attention factor missing": {**YARN, "attention_factor": 1.0},
    "wrong original length": {**YARN, "original_max_position_embeddings": 128},
    "wrong ramp": {**YARN, "beta_fast": 4.0, "beta_slow": 0.5},
}


FAULTS = {name: {"rope_parameters": rope, "max_length": LENGTH} for name, rope in ROPES.items()}
FAULTS["wrong epsilon of the norms"] = {"rms_norm_eps": 0.3}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_settings(copying_model, copying_documents, fault):
    folder = copying_model("yarn")
    found = compare(setup(folder), setup(folder, **FAULTS[fault]), copying_documents("yarn"))
    assert (found.verdict, found.exit_code) == ("worse", 4)
    assert found.loss_b - found.loss_a > 0.01


@pytest.mark.parametrize(("table", "verdict"), [("short_factor", "same"), ("long_factor", "worse")])
def test_the_wrong_table_of_longrope(copying_model, copying_documents, table, verdict):
    """A text is longer than the original length, so that the long table alone counts."""
    folder = copying_model("yarn")
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](AutoConfig.from_pretrained(folder), "cpu")
    plain = 1.0 / (10000.0 ** (torch.arange(0, 16, 2) / 16))
    long, short = (plain / frequencies).tolist(), [1.0] * 8
    longrope = {**YARN, "rope_type": "longrope", "attention_factor": factor}
    longrope |= {"short_factor": short, "long_factor": long}
    wrong = {**longrope, table: long if table == "short_factor" else short}
    found = compare(
        with_rope(folder, longrope), with_rope(folder, wrong), copying_documents("yarn")
    )
    assert found.verdict == verdict


def moved(monkeypatch, rotary, move):
    """Let a rotary module rotate as if tokens stood at `move(positions)`."""
    stock = rotary.forward

    def forward(self, x, position_ids, **more):
        return stock(self, x, move(position_ids), **more)

    monkeypatch.setattr(rotary, "forward", forward)


def test_positions_shifted_from_a_chunk_on(copying_model, copying_documents, monkeypatch):
    """Tokens that are read after a cache stand too far behind."""
    folder = copying_model("yarn")
    moved(monkeypatch, llama.LlamaRotaryEmbedding, lambda at: at + 4 * (at.min() > 0))
    found = compare(setup(folder), setup(folder, prefill_chunk=64), copying_documents("yarn"))
    assert found.verdict == "worse"
    assert (found.identical, first_worse(found).start) == (64, 64)


def test_a_shift_of_all_positions_cannot_be_seen(
    copying_model, copying_documents, reference, monkeypatch
):
    """RoPE depends on distances alone: queries and keys shifted alike give equal scores."""
    folder = copying_model("yarn")
    base = reference(setup(folder), copying_documents("yarn"))
    moved(monkeypatch, llama.LlamaRotaryEmbedding, lambda at: at + 1)
    found = lh.diff(base, setup(folder), isolated=False)
    assert found.verdict == "same"
    assert abs(found.loss_b - found.loss_a) < 1e-4


def test_keys_one_position_late_after_a_cache(copying_model, copying_documents, monkeypatch):
    """The first 64 tokens are right; later keys are rotated for the position before theirs."""
    rotation, apply, late = llama.LlamaRotaryEmbedding.forward, llama.apply_rotary_pos_emb, []

    def forward(self, x, position_ids, **more):
        late[:] = rotation(self, x, position_ids - (position_ids.min() > 0).int(), **more)
        return rotation(self, x, position_ids, **more)

    def rotate(q, k, *right, **more):
        return apply(q, k, *right, **more)[0], apply(q, k, *late, **more)[1]

    monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", forward)
    monkeypatch.setattr(llama, "apply_rotary_pos_emb", rotate)
    folder = copying_model("yarn")
    found = compare(setup(folder), setup(folder, prefill_chunk=64), copying_documents("yarn"))
    assert found.verdict == "worse"
    assert (found.identical, first_worse(found).start) == (64, 64)


def test_the_sliding_window_is_ignored(copying_model, copying_documents):
    folder = copying_model("window")
    found = compare(setup(folder), setup(folder, sliding_window=None), copying_documents("window"))
    assert found.verdict == "worse"
    assert first_worse(found).start >= WINDOW - 2


def test_the_window_is_off_by_one(copying_model, tmp_path):
    """Seen where what is copied lies at the edge of the window."""
    folder, documents = copying_model("window"), repeated(tmp_path / "edge.jsonl", WINDOW, LENGTH)
    found = compare(setup(folder), setup(folder, sliding_window=WINDOW - 1), documents)
    assert found.verdict == "worse"
    assert first_worse(found).start == pytest.approx(WINDOW, abs=3)


CHANGES = {
    "3 bits": (rounded_to(3), "worse"),
    "4 bits": (rounded_to(4), "worse"),
    "8 bits": (rounded_to(8), "same"),
    "heads in the order of another rotation": (interleaved, "worse"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_weights(copying_model, copying_documents, tmp_path, name):
    folder, (change, verdict) = copying_model("yarn"), CHANGES[name]
    changed = weights_changed(folder, tmp_path / "changed", change)
    found = compare(setup(folder), setup(changed), copying_documents("yarn"))
    assert found.verdict == verdict
    assert found.apart > 0


def test_a_cache_in_float8(copying_model, copying_documents, monkeypatch):
    from transformers.cache_utils import DynamicLayer

    folder, stock = copying_model("yarn"), DynamicLayer.update

    def update(self, keys, values, *arguments, **more):
        small = (each.to(torch.float8_e4m3fn).to(each.dtype) for each in (keys, values))
        return stock(self, *small, *arguments, **more)

    monkeypatch.setattr(DynamicLayer, "update", update)
    documents = copying_documents("yarn")
    found = compare(setup(folder), setup(folder, prefill_chunk=64), documents, count=64)
    assert found.verdict == "worse"


def test_bfloat16_against_float32_is_the_same(copying_model, copying_documents):
    folder = copying_model("yarn")
    found = compare(setup(folder), setup(folder, dtype="bfloat16"), copying_documents("yarn"))
    assert (found.verdict, found.exit_code) == ("same", 0)


@pytest.mark.slow(long=True)
def test_rotation_angles_in_bfloat16(smollm2, reference, monkeypatch):
    """Between 256 and 512 they are multiples of 2 there, from 512 on of 4."""

    def forward(self, x, position_ids, **more):
        angles = (
            (position_ids[..., None] * self.inv_freq).to(torch.bfloat16).float().repeat(1, 1, 2)
        )
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    model = setup(smollm2)
    base = reference(model, "pydocs", length=640, count=3)
    monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", forward)
    found = lh.diff(base, model, isolated=False)
    assert (found.verdict, found.exit_code) == ("worse", 4)
    assert first_worse(found).end > 256


def test_a_missing_bos_is_a_finding(copying_model, copying_documents):
    folder, documents = copying_model("yarn"), copying_documents("yarn")
    b = setup(folder, add_bos_token=False)
    found = compare(setup(folder), b, documents)
    assert [each.kind for each in found.findings] == ["bos"]
    assert found.exit_code == 4
    assert "A begins a text with tokens [1, " in found.sentences()[0]
    assert compare(setup(folder), b, documents, ignore=("bos",)).exit_code == 0


def edited(folder: Path, target: Path, file: str, change) -> Setup:
    """A checkpoint of which a file of the tokenizer is changed."""
    shutil.copytree(folder, target)
    content = json.loads((target / file).read_text())
    change(content)
    (target / file).write_text(json.dumps(content))
    return setup(target)


def swapped_words(content):
    words = content["model"]["vocab"]
    words["w3"], words["w4"] = words["w4"], words["w3"]


def test_another_tokenizer_or_template_is_a_finding(copying_model, copying_documents, tmp_path):
    folder, documents = copying_model("yarn"), copying_documents("yarn")
    other = edited(folder, tmp_path / "other", "tokenizer.json", swapped_words)
    found = compare(setup(folder), other, documents)
    assert [each.kind for each in found.findings] == ["tokenizer"]
    assert (found.verdict, found.exit_code) == ("same", 4)
    a, b = (
        edited(folder, tmp_path / text, "tokenizer_config.json",
               lambda content, text=text: content.update(chat_template=text))
        for text in ("{% for m in messages %}w1 {{ m.content }}{% endfor %}", "w2")
    )  # fmt: skip
    found = compare(a, b, documents)
    assert [each.kind for each in found.findings] == ["template"]
    assert found.exit_code == 4
    found = compare(setup(folder), a, documents)
    assert found.findings[0].sentence == "A has no chat template, B has one"


def test_positions_shifted_in_the_middle_of_a_long_text(
    copying_model, reference, tmp_path, monkeypatch
):
    """The losses are bitwise equal up to the fault; right after it they are worse."""
    start = 1536
    length = start + 257
    model = setup(copying_model("window"), max_length=length)
    base = reference(model, repeated(tmp_path / "long.jsonl", 16, length), length)
    moved(monkeypatch, MistralRotaryEmbedding, lambda at: at + 64 * (at >= start))
    found = lh.diff(base, model, isolated=False)
    assert (found.verdict, found.exit_code) == ("worse", 4)
    assert found.identical == first_worse(found).start == start
