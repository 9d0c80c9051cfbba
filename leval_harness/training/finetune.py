"""Adapt a language model to a RoPE method on long text, with transformers' Trainer."""

import json
import logging
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate import PartialState
from torch import Tensor
from transformers import AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

from leval_harness.training import trainer as shared
from leval_harness.training.settings import FineTuneSettings
from leval_harness.training.text import Ids, prepare_document
from leval_tasks.perplexity.documents import Document
from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import SettingError
from resonance_vllm.common.files import read_json_object, write_json
from resonance_vllm.common.hub import loading_errors
from resonance_vllm.hf import load

logger = logging.getLogger(__name__)

REQUEST_FILE = "finetune.json"
RESULT_FILE = "finetune_result.json"
METRICS_FILE = "metrics.csv"
COLUMNS = ("step", "loss", "learning_rate", "grad_norm")


def reading_order(rows: Ids, sequences: int, seed: int) -> list[dict[str, Tensor]]:
    """Return all training sequences of a run in the order in which they are read.

    They are one epoch for the Trainer, so that a run resumed after its last step trains no further.

    Args:
        rows: token ids `[rows, length]`.
        sequences: number of sequences of the run; beyond the rows, they are read again in another
            order.
        seed: of the orders.
    """
    epochs = math.ceil(sequences / len(rows))
    orders = [np.random.RandomState(seed + epoch).permutation(len(rows)) for epoch in range(epochs)]
    order = np.concatenate(orders)[:sequences]
    return [{"input_ids": row, "labels": row} for row in torch.from_numpy(rows)[order]]


class _StopAtInfiniteLoss(TrainerCallback):
    """Stop when the loss is NaN or infinite."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        shared.refuse_infinite(float((logs or {}).get("loss", 0.0)), f"step {state.global_step}")


def load_model(model_path: str, settings: FineTuneSettings) -> Any:
    """Load a model in float32 with the requested RoPE settings in its config.

    Args:
        model_path: folder or hub name.
        settings: RoPE settings, sequence length and LoRA of the fine-tuning.

    Returns:
        The model of transformers, or that of PEFT around it.

    Raises:
        SettingError: the RoPE settings do not fit the model, or the sequences are longer than
            they allow.
    """
    positions = PositionConfig.from_checkpoint(model_path)
    rope = None
    if settings.rope is not None:
        rope = positions.complete(settings.rope)
    if rope or positions.max_position_embeddings is not None:
        limit = length_limit(positions, rope, settings.sequence_length)
        if settings.sequence_length > limit:
            raise SettingError(
                f"sequence_length: {settings.sequence_length} is above the {limit} positions of "
                f"{settings.rope or positions.rope}; use a larger factor"
            )
    with loading_errors(model_path):
        model = load(model_path, rope, limit=settings.sequence_length, dtype=torch.float32)
    model.config.use_cache = False
    if not settings.lora_rank:
        return model
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(settings.seed)  # decides the initial weights of the adapters
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=2 * settings.lora_rank,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    if settings.gradient_checkpointing:
        model.enable_input_require_grads()
    return get_peft_model(model, config)


def finetune(
    model_path: str, sources: Sequence[str], out: Path, settings: FineTuneSettings
) -> dict[str, Any]:
    """Fine-tune a model, and write a checkpoint that loads in transformers and vLLM.

    An interrupted fine-tuning is continued; a finished one is not repeated. `metrics.csv`,
    `held_out/<source>.jsonl` and `finetune_result.json` are written beside the checkpoint.

    Args:
        model_path: folder or hub name of a causal language model with RoPE.
        sources: files and folders of training text.
        out: output folder.
        settings: settings of the fine-tuning.

    Returns:
        What `finetune_result.json` holds: steps, tokens, epochs, mean loss in nats/token, seconds.

    Raises:
        UserError: a setting does not fit the model, or the loss is NaN or infinite.
    """
    request = {
        "schema_version": 1,
        "model": model_path,
        "data": [*sources],
        **settings.model_dump(),
    }
    shared.refuse_other(out / REQUEST_FILE, request)
    if (finished := read_json_object(out / RESULT_FILE)) is not None:
        logger.info("%s holds the finished training", out)
        return finished
    # on a machine without an accelerator, accelerate counts the processes only if cpu is set
    processes = PartialState(cpu=not torch.accelerator.is_available())
    if settings.lora_rank and processes.num_processes > 1:
        raise SettingError(
            f"--lora-rank: {settings.lora_rank} is not allowed in {processes.num_processes} "
            "processes, because adapters are merged in one; allowed: 0"
        )
    sequences_per_step = settings.batch_size * settings.accumulation * processes.num_processes
    sequences = settings.steps * sequences_per_step
    with loading_errors(model_path):
        tokenizer = AutoTokenizer.from_pretrained(model_path)
    rows, held_out = prepare_document(sources, tokenizer, settings)
    model = load_model(model_path, settings)
    if processes.is_main_process:  # written only now that all settings are known to fit
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / REQUEST_FILE, request)
    order = reading_order(rows, sequences, settings.seed)
    states = out / "states"
    arguments = _arguments(states, settings)
    trainer = Trainer(model, arguments, train_dataset=order, callbacks=[_StopAtInfiniteLoss()])
    done = trainer.train(resume_from_checkpoint=_last_state(states))
    _save(trainer, tokenizer, out, settings)
    steps = pd.DataFrame([row for row in trainer.state.log_history if "loss" in row])
    result = {
        "schema_version": 1,
        "steps": trainer.state.global_step,
        "tokens": sequences * settings.sequence_length,
        "epochs": sequences / len(rows),
        "mean_loss": float(steps["loss"].mean()),
        "held_out": [document.sha256 for document in held_out],
        "seconds": done.metrics["train_runtime"],
        **shared.made_by(),
    }
    if trainer.is_world_process_zero():
        _write_held_out(out / "held_out", held_out)
        steps.reindex(columns=COLUMNS).to_csv(out / METRICS_FILE, index=False)
        write_json(out / RESULT_FILE, result)
        shutil.rmtree(states, ignore_errors=True)
    return result


def _last_state(states: Path) -> str | None:
    """Return the folder of the newest complete state of transformers' Trainer, if there is one.

    The Trainer writes `trainer_state.json` last, but would resume from a state that lacks it.
    """
    files = states.glob("checkpoint-*/trainer_state.json")
    complete = [file.parent for file in files if read_json_object(file)]
    newest = max(complete, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)
    if newest is None:
        return None
    return str(newest)


def _arguments(states: Path, settings: FineTuneSettings) -> TrainingArguments:
    """Return the arguments of transformers' Trainer."""
    return TrainingArguments(
        output_dir=str(states),
        train_sampling_strategy="sequential",  # `reading_order` is the order
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulation,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adam_beta2=settings.adam_beta2,
        warmup_steps=math.ceil(settings.warmup * settings.steps),
        lr_scheduler_type=settings.schedule,
        max_grad_norm=settings.max_grad_norm,
        bf16=settings.bf16,
        gradient_checkpointing=settings.gradient_checkpointing,
        logging_steps=1,
        logging_nan_inf_filter=False,  # else an infinite loss is logged as the one before
        save_steps=settings.save_steps,
        save_total_limit=1,
        seed=settings.seed,
        # the Trainer refuses bf16 on a CPU unless use_cpu is set
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=False,
        report_to=[],
    )


def _save(trainer: Trainer, tokenizer: Any, out: Path, settings: FineTuneSettings) -> None:
    """Write the checkpoint, with LoRA merged into the weights, so that no library needs peft."""
    if trainer.args.world_size == 1:
        model = trainer.accelerator.unwrap_model(trainer.model)
        if settings.lora_rank:
            model = model.merge_and_unload()
        model.config.use_cache = True
        dtype = torch.float32
        if settings.bf16:
            dtype = torch.bfloat16
        model.to(dtype).save_pretrained(out)
    else:
        trainer.save_model(str(out))
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(out)


def _write_held_out(folder: Path, documents: Sequence[Document]) -> None:
    """Write the held-out documents, a JSONL file per source."""
    folder.mkdir(exist_ok=True)
    for source in {document.name for document in documents}:
        lines = [
            json.dumps({"text": document.text}) for document in documents if document.name == source
        ]
        (folder / f"{source}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
