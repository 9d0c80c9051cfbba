"""Single PosGen models as Hugging Face checkpoints, and the stack that trains many of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from leval_harness.training.posgen_settings import PosGenRun, Recipe, rope_parameters
from leval_harness.training.stacked import StackedDecoder
from leval_tasks.posgen.vocabulary import PREFIX, build_tokenizer, special_id, vocabulary_size

WEIGHTS = "model.safetensors"


def build_config(recipe: Recipe, run: PosGenRun) -> Any:
    """The transformers configuration of a run, with its full RoPE settings.

    `posgen` in it says what the model was trained on; the lm-eval tasks read it.
    """
    from transformers import LlamaConfig

    from leval_harness.training.t5_layer import PosGenT5Config
    from resonance_vllm.hf.registration import register
    from resonance_vllm.model_config.model_positions import ModelPositions
    from resonance_vllm.model_config.overrides import hf_overrides

    register()
    a, data = recipe.architecture, recipe.settings(run.subtask)
    end = special_id(PREFIX, data.modulus)
    plain = ModelPositions(max_position_embeddings=data.length + 4)
    asked = plain.complete(rope_parameters(run.encoding, recipe))
    rope = hf_overrides(asked, plain)
    # A default RoPE has no limit of its own; all models are tested at the same length.
    rope["max_position_embeddings"] = max(rope["max_position_embeddings"], data.length + 4)
    common = {
        "vocab_size": vocabulary_size(data.modulus),
        "hidden_size": a.hidden,
        "intermediate_size": a.feed_forward,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.heads,
        "head_dim": a.head_dim,
        "rms_norm_eps": 1e-6,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": special_id("[PAD]", data.modulus),
        "posgen": {**data.model_dump(), "encoding": run.encoding, "run_seed": run.seed},
        **rope,
    }
    if a.kind == "t5":
        return PosGenT5Config(dropout=a.dropout, **common)
    return LlamaConfig(tie_word_embeddings=False, **common)


def build_model(recipe: Recipe, run: PosGenRun) -> Any:
    """A freshly initialised single model; the weights follow from the run's seed alone."""
    from transformers import LlamaForCausalLM

    from leval_harness.training.t5_layer import PosGenT5ForCausalLM

    config = build_config(recipe, run)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        kind = PosGenT5ForCausalLM if recipe.architecture.kind == "t5" else LlamaForCausalLM
        return kind(config)


def build_stack(recipe: Recipe, runs: Sequence[PosGenRun]) -> StackedDecoder:
    """The models of several runs as one module, each with its run's own encoding."""
    return stack_of(recipe, runs, [build_model(recipe, run).state_dict() for run in runs])


def load_stack(recipe: Recipe, runs: Sequence[PosGenRun], folder: Path) -> StackedDecoder:
    """The trained models of several runs of a folder as one module."""
    from safetensors.torch import load_file

    return stack_of(recipe, runs, [load_file(folder / run.folder / WEIGHTS) for run in runs])


def stack_of(
    recipe: Recipe, runs: Sequence[PosGenRun], states: Sequence[Mapping[str, torch.Tensor]]
) -> StackedDecoder:
    """Models with given weights as one module."""
    length = recipe.settings(runs[0].subtask).length + 1
    ropes = [rope_parameters(run.encoding, recipe) for run in runs]
    return StackedDecoder(recipe.architecture, states, ropes, length, recipe.keep == "best")


def save_models(
    stack: StackedDecoder, recipe: Recipe, runs: Sequence[PosGenRun], folder: Path
) -> None:
    """Write each model of a stack as a checkpoint of its own, with the number tokenizer."""
    for index, run in enumerate(runs):
        model = build_model(recipe, run)
        model.load_state_dict(stack.state_of(index))
        target = folder / run.folder
        model.save_pretrained(target)
        build_tokenizer(recipe.settings(run.subtask).modulus).save_pretrained(target)
