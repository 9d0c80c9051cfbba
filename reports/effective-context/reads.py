"""Losses of two models on documents read in full, with and without YaRN x2, and in windows.

    python reads.py smollm2 DATA MODEL WORK    # SmolLM2-135M-Instruct, trained to 8,192
    python reads.py small DATA MODEL WORK      # trains the small model in MODEL first, to 2,048

One process; each read is a file in WORK, a second start resumes where the first one ended.
`blocks-NAME.csv` beside this script gets the sums of clipped differences over blocks of 64 tokens.
DATA is a folder with `pg19.jsonl` and `proofpile.jsonl`, one JSON object with `text` a line.
"""

import csv
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from leval_tasks.effective_context.task import REFERENCE, windows_of
from leval_tasks.perplexity.corpora import language_reference
from leval_tasks.statistics.effective_context import block_sums, clipped_difference

HERE = Path(__file__).parent
NATIVE = {"smollm2": 8192, "small": 2048}
ROWS = {  # documents that the models are measured on: corpus -> rows
    "smollm2": {"pg19": (2, 5, 6, 7, 9), "proofpile": (5, 10, 14, 19)},
    "small": {"pg19": (1, 3, 5, 7, 9, 11), "proofpile": (1, 3, 5, 7, 9, 11, 13, 15, 17, 19)},
}
PYDOCS = {"smollm2": (45_056, 56_320, 78_848), "small": ()}
SKIPPED = 30_000  # characters at the beginning of a text, which other reads may have used


def say(text):
    """Print what happened, with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def rows(data, corpus):
    """Documents of a corpus."""
    return [json.loads(line)["text"] for line in (data / f"{corpus}.jsonl").open(encoding="utf-8")]


def documents(name, data, tokenizer, longest):
    """Name and ids of each text, BOS first, `longest` ids each."""
    bos = [tokenizer.bos_token_id]
    for corpus, chosen in ROWS[name].items():
        all_rows = rows(data, corpus)
        for row in chosen:
            part = all_rows[row][SKIPPED : SKIPPED + 12 * longest]
            ids = tokenizer(part, add_special_tokens=False)["input_ids"]
            yield f"{corpus}-{row}", (bos + ids)[:longest]
    if PYDOCS[name]:
        ids = tokenizer(language_reference()[0], add_special_tokens=False)["input_ids"]
        for start in PYDOCS[name]:
            yield f"pydocs-{start}", bos + ids[start : start + longest - 1]


def train_small(data, folder, length, stages=((400, 16, 256), (100, 4, 2048))):
    """A Llama of 4 million parameters, from the documents with even numbers.

    Each of the `stages` is (steps, rows a step, tokens a row); the last is at the native context
    length.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    parts = [text for corpus in ROWS["small"] for text in rows(data, corpus)[::2]]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=4096, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([part[:300_000] for part in parts], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")
    ids = torch.tensor([i for part in parts for i in inner.encode(part).ids])
    say(f"training on {len(ids):,} tokens")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=256, intermediate_size=704, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=length,
        bos_token_id=0, eos_token_id=0, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    plan = [(batch, tokens) for steps, batch, tokens in stages for _ in range(steps)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=len(plan))
    for step, (batch, tokens) in enumerate(plan):
        starts = torch.randint(len(ids) - tokens, (batch,))
        rows_of = torch.stack([ids[at : at + tokens] for at in starts.tolist()])
        rows_of[:, 0] = 0
        loss = model(input_ids=rows_of, labels=rows_of).loss  # bfloat16 is slow on most CPUs
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 20 == 19:
            say(f"step {step + 1}: {float(loss):.3f}")
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def losses(model, ids, start, end, score_start):
    """Nats of tokens `score_start..end-1`, from a window that begins with BOS."""
    window = torch.tensor([[ids[0], *ids[max(start, 1) : end]]])
    with torch.inference_mode():
        hidden = model.model(input_ids=window).last_hidden_state[0]
        found = []
        offset = max(start, 1) - 1  # place of a token in the window: its position less this
        for first in range(score_start, end, 512):
            last = min(first + 512, end)
            logits = model.lm_head(hidden[first - offset - 1 : last - offset - 1]).float()
            aims = torch.tensor(ids[first:last])
            found.append(torch.nn.functional.cross_entropy(logits, aims, reduction="none"))
    return torch.cat(found).numpy()


def main(name, data, folder, work):
    """Read what is missing, and write the sums over blocks."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    trained = NATIVE[name]
    longest, start = trained * 11 // 8, trained // 4
    work.mkdir(parents=True, exist_ok=True)
    if name == "small" and not (folder / "tokenizer.json").is_file():
        train_small(data, folder, trained)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    of_text = list(documents(name, data, tokenizer, longest))
    shipped = json.loads((folder / "config.json").read_text(encoding="utf-8"))["rope_parameters"]
    for method in ("rope", "yarn"):
        scaling = {
            "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": trained,
            "rope_theta": shipped["rope_theta"],
        }  # fmt: skip
        more = {} if method == "rope" else {"rope_parameters": scaling}
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, max_position_embeddings=longest, **more
        ).eval()
        say(f"{method}: {model.config.rope_parameters}")
        for text, ids in of_text:
            target = work / f"{name}-{text}-{method}.npy"
            if not target.is_file():
                np.save(target, losses(model, ids, 0, len(ids), start))
                say(target.name)
            target = work / f"{name}-{text}-windows.npy"
            if method == "rope" and not target.is_file():
                full = np.load(work / f"{name}-{text}-rope.npy")
                parts = [full[: trained - start]]  # the first window is the full read's beginning
                moving = windows_of(len(ids) - 1, start - 1, trained, REFERENCE, bos=True)
                for _, window in moving[1:]:
                    places = (window.start + 1, window.end + 1, window.score_start + 1)
                    parts.append(losses(model, ids, *places))
                np.save(target, np.concatenate(parts))
                say(target.name)
    with (HERE / f"blocks-{name}.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["text", "position", "tokens", "rope", "yarn"])
        for text, _ in of_text:
            read = {
                kind: np.load(work / f"{name}-{text}-{kind}.npy").astype(np.float64)
                for kind in ("windows", "rope", "yarn")
            }
            lost = [clipped_difference(read[kind], read["windows"]) for kind in ("rope", "yarn")]
            (rope, tokens), (yarn, _) = map(block_sums, lost)
            places = start + np.cumsum(tokens) - tokens
            for at, *sums in zip(places, tokens, rope, yarn, strict=True):
                out.writerow([text, int(at), int(sums[0]), *(f"{each:.4f}" for each in sums[1:])])
    say(f"blocks-{name}.csv is written")


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
