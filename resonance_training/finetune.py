"""Adapt a language model to a RoPE method on long text, with transformers' Trainer."""

import csv
import dataclasses
import json
import logging
import math
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from leval_border.files import write_text
from resonance_training import resume, text
from resonance_training.errors import TrainingError
from resonance_training.finetune_data import Rows, prepare_text, processes
from resonance_training.finetune_settings import FineTuneSettings
from resonance_training.made_by import made_by
from resonance_vllm.hf import register
from resonance_vllm.limits import length_limit
from resonance_vllm.positions import ModelPositions
from resonance_vllm.settings import hf_overrides

logger = logging.getLogger(__name__)

REQUEST_FILE = "finetune.json"
RESULT_FILE = "finetune_result.json"
METRICS_FILE = "metrics.csv"
COLUMNS = ("step", "loss", "learning_rate", "grad_norm")


class _Metrics(TrainerCallback):
    """Writes one CSV row a step and stops when the loss is no number."""

    def __init__(self, file: Path, done: int) -> None:
        self.file = file
        if processes().is_main_process:
            resume.keep_rows(file, COLUMNS, done)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not logs or "loss" not in logs:
            return
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise TrainingError(
                f"loss: {loss} at step {state.global_step}; lower the learning rate "
                f"({args.learning_rate:g}), clip gradients (max_grad_norm), or train without bf16"
            )
        if state.is_world_process_zero:
            with self.file.open("a", newline="") as stream:
                values = {"step": state.global_step, **{k: logs.get(k) for k in COLUMNS[1:]}}
                csv.DictWriter(stream, COLUMNS, lineterminator="\n").writerow(values)


def _mean_loss(file: Path) -> float:
    """Mean over all steps, also those of sessions before this one."""
    with file.open(newline="") as stream:
        return statistics.mean(float(row["loss"]) for row in csv.DictReader(stream))


def load_model(model_path: str, settings: FineTuneSettings) -> Any:
    """The model with the requested rope settings in its config, in float32.

    Raises:
        RopeConfigError: the settings do not fit the model.
        TrainingError: the sequences are longer than the settings allow.
    """
    register()
    positions = ModelPositions.of_checkpoint(model_path)
    rope = None if settings.rope is None else positions.complete(settings.rope)
    overrides: dict[str, Any] = {}
    if rope is not None:
        overrides = hf_overrides(rope, positions, settings.sequence_length)
    if rope is not None or positions.max_position_embeddings is not None:
        limit = length_limit(positions, rope, settings.sequence_length)
        if settings.sequence_length > limit:
            raise TrainingError(
                f"sequence_length: {settings.sequence_length} is above the {limit} positions of "
                f"{settings.rope or positions.rope}; use a larger factor"
            )
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, **overrides)
    model.config.use_cache = False
    return model


def _with_lora(model: Any, settings: FineTuneSettings) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(settings.seed)
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
    """Train, and write a checkpoint that loads in transformers and vLLM as it is.

    A run that was stopped is continued; a finished one is not repeated.

    Args:
        model_path: folder or hub name of a causal language model with RoPE.
        sources: training text, see `text.read_documents`.
        out: output folder: the checkpoint, `metrics.csv`, `held_out/<source>.jsonl`.
        settings: how.

    Returns:
        What stands in `finetune_result.json`: steps, tokens, epochs, losses, documents,
        seconds, and what made it (`made_by`).

    Raises:
        TrainingError: see the functions above; also when the loss is no number.
    """
    request = {
        "schema_version": 1,
        "model": str(model_path),
        "data": list(sources),
        **settings.model_dump(),
    }
    if resume.is_claimed(out / REQUEST_FILE, request) and (out / RESULT_FILE).is_file():
        logger.info("%s is finished already", out)
        finished: dict[str, Any] = json.loads((out / RESULT_FILE).read_text(encoding="utf-8"))
        return finished
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    rows, held_out = prepare_text(sources, tokenizer, settings)
    model = load_model(model_path, settings)
    if settings.lora_rank:
        model = _with_lora(model, settings)
    if processes().is_main_process:  # claimed only now, when all that was asked for is possible
        resume.claim(out / REQUEST_FILE, request)
    states = out / "states"
    last, done = resume.last_state(states)
    clock = resume.Clock()
    sequences = settings.sequences(processes().num_processes)
    trainer = resume.InOrderTrainer(
        model=model,
        args=_arguments(states, settings),
        train_dataset=Rows(rows, sequences, settings.seed),
        callbacks=[_Metrics(out / METRICS_FILE, done), clock],
    )
    trainer.train(resume_from_checkpoint=last)
    _save(trainer, tokenizer, out, settings)
    if trainer.is_world_process_zero():
        _write_held_out(out / "held_out", held_out)
    result = {
        "schema_version": 1,
        "steps": trainer.state.global_step,
        "tokens": sequences * settings.sequence_length,
        "epochs": sequences / len(rows),
        "mean_loss": _mean_loss(out / METRICS_FILE),
        "held_out": [document.digest for document in held_out],
        "seconds": clock.seconds,
        **made_by(),
    }
    if trainer.is_world_process_zero():
        write_text(out / RESULT_FILE, json.dumps(result, indent=1))
        shutil.rmtree(states, ignore_errors=True)
    return result


def _arguments(states: Path, settings: FineTuneSettings) -> TrainingArguments:
    named = {field.name for field in dataclasses.fields(TrainingArguments)}
    new, old = "activation_checkpointing", "gradient_checkpointing"
    checkpointing = new if new in named else old  # newer transformers warn of the old
    return resume.training_arguments(
        states,
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
        **{checkpointing: settings.gradient_checkpointing},
        logging_steps=1,
        save_steps=settings.save_steps,
        seed=settings.seed,
    )


def _save(trainer: Trainer, tokenizer: Any, out: Path, settings: FineTuneSettings) -> None:
    """The checkpoint; LoRA is merged into the weights, so that no library needs peft."""
    alone = trainer.args.world_size == 1
    if settings.lora_rank and not alone:
        raise TrainingError(
            "lora_rank: adapters are merged in one process; resume this run with one, or train all "
            "weights"
        )
    if alone:
        model = trainer.accelerator.unwrap_model(trainer.model)
        if settings.lora_rank:
            model = model.merge_and_unload()
        model.config.use_cache = True
        model.to(torch.bfloat16 if settings.bf16 else torch.float32).save_pretrained(out)
    else:
        trainer.save_model(str(out))
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(out)
        _check_rope(out, settings)


def _check_rope(out: Path, settings: FineTuneSettings) -> None:
    """What was asked for must be what another library will read."""
    if settings.rope is not None:
        positions = ModelPositions.of_checkpoint(str(out))
        wanted, written = positions.complete(settings.rope), positions.shipped()
        if wanted != written:
            raise TrainingError(f"rope: {out}/config.json holds {written}, asked for {wanted}")


def _write_held_out(folder: Path, documents: Sequence[text.TrainingText]) -> None:
    folder.mkdir(exist_ok=True)
    for source in {document.source for document in documents}:
        lines = [json.dumps({"text": d.text}) for d in documents if d.source == source]
        (folder / f"{source}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
