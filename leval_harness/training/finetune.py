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
    """All sequences of a run in the order in which they are read, epoch after epoch.

    Resumed after its last step, a run is then at the end of its one epoch and trains no further.
    """
    epochs = range(-(-sequences // len(rows)))
    orders = [np.random.RandomState(seed + e).permutation(len(rows)) for e in epochs]
    order = np.concatenate(orders)[:sequences]
    return [{"input_ids": row, "labels": row} for row in torch.from_numpy(rows)[order]]


class _Finite(TrainerCallback):
    """Stop when the loss is NaN or infinite."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        shared.refuse_infinite(float((logs or {}).get("loss", 0.0)), f"step {state.global_step}")


def load_model(model_path: str, settings: FineTuneSettings) -> Any:
    """The model with the requested rope settings in its config, in float32.

    Raises:
        SettingError: the rope settings do not fit the model, or the sequences are longer than
            they allow.
    """
    positions = PositionConfig.from_checkpoint(model_path)
    rope = None if settings.rope is None else positions.complete(settings.rope)
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

    torch.manual_seed(settings.seed)
    ranks = {"r": settings.lora_rank, "lora_alpha": 2 * settings.lora_rank}
    config = LoraConfig(**ranks, target_modules="all-linear", task_type="CAUSAL_LM")
    if settings.gradient_checkpointing:
        model.enable_input_require_grads()
    return get_peft_model(model, config)


def finetune(
    model_path: str, sources: Sequence[str], out: Path, settings: FineTuneSettings
) -> dict[str, Any]:
    """Train, and write a checkpoint that loads in transformers and vLLM as it is.

    A run that was stopped is continued; a finished one is not repeated. Beside the checkpoint stand
    `metrics.csv`, `held_out/<source>.jsonl` and, in `finetune_result.json`, what is returned.

    Args:
        model_path: folder or hub name of a causal language model with RoPE.
        sources: files and folders of training text.
        out: output folder.
        settings: of the run.

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
        logger.info("%s is finished already", out)
        return finished
    # accelerate finds the processes on a CPU only if it is named
    processes = PartialState(cpu=not torch.accelerator.is_available())
    if settings.lora_rank and processes.num_processes > 1:
        raise SettingError("lora_rank: adapters are merged in one process; allowed: 0 in several")
    sequences = settings.steps * settings.batch_size * settings.accumulation
    sequences *= processes.num_processes
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
    trainer = Trainer(model, arguments, train_dataset=order, callbacks=[_Finite()])
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
    """Folder of the newest whole state of transformers' Trainer.

    The Trainer writes `trainer_state.json` last, but would resume from a state that lacks it.
    """
    files = states.glob("checkpoint-*/trainer_state.json")
    whole = [file.parent for file in files if read_json_object(file)]
    newest = max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)


def _arguments(states: Path, settings: FineTuneSettings) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(states),
        train_sampling_strategy="sequential",
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
        logging_nan_inf_filter=False,
        save_steps=settings.save_steps,
        save_total_limit=1,
        seed=settings.seed,
        # bf16 on a CPU is refused unless the CPU is named.
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=False,
        report_to=[],
    )


def _save(trainer: Trainer, tokenizer: Any, out: Path, settings: FineTuneSettings) -> None:
    """The checkpoint; LoRA is merged into the weights, so that no library needs peft."""
    if trainer.args.world_size == 1:
        model = trainer.accelerator.unwrap_model(trainer.model)
        if settings.lora_rank:
            model = model.merge_and_unload()
        model.config.use_cache = True
        model.to(torch.bfloat16 if settings.bf16 else torch.float32).save_pretrained(out)
    else:
        trainer.save_model(str(out))
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(out)


def _write_held_out(folder: Path, documents: Sequence[Document]) -> None:
    folder.mkdir(exist_ok=True)
    for source in {document.name for document in documents}:
        lines = [json.dumps({"text": d.text}) for d in documents if d.name == source]
        (folder / f"{source}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
