"""Small files of the schema of OpenAI's MRCR: two questions about each of two conversations."""

import json
from pathlib import Path
from typing import Any

TOPICS = ("tapirs", "rocks")


def conversation(topic: str, turns: int = 4) -> list[dict[str, str]]:
    """A chat with two poems about each topic, and several other requests."""
    messages = []
    for turn in range(turns):
        kind = "poem" if turn % 2 == 0 else "riddle"
        messages.append({"role": "user", "content": f"write a {kind} about {topic}"})
        messages.append(
            {"role": "assistant", "content": f"This is {kind} {turn} about {topic}. " * 4}
        )
    return messages


def rows() -> list[dict[str, Any]]:
    """Two questions about each of two conversations."""
    made = []
    for topic in TOPICS:
        messages = conversation(topic)
        for which, at in ((1, 1), (2, 5)):
            prefix = f"{topic[:3]}{which}XYZ"
            question = f"Prepend {prefix} to the {which}. poem about {topic}."
            prompt = [*messages, {"role": "user", "content": question}]
            made.append({
                "prompt": json.dumps(prompt),
                "answer": prefix + messages[at]["content"],
                "random_string_to_prepend": prefix,
                "n_needles": 2,
                "desired_msg_index": at,
                "total_messages": len(prompt),
                "n_chars": sum(len(message["content"]) for message in prompt),
                "date_added": "12-05-2025",
            })  # fmt: skip
    return made


def write_files(folder: Path, form: str = "parquet") -> Path:
    """Write the files of `mrcr_2needle` as the hub has them; the folder for `data_dir`."""
    from datasets import Dataset

    below = folder / "mrcr" / "2needle"
    below.mkdir(parents=True)
    for part in (0, 1):
        file = str(below / f"2needle_{part}.{form}")
        data = Dataset.from_list(rows()[2 * part : 2 * part + 2])
        if form == "parquet":
            data.to_parquet(file)
        else:
            data.to_json(file)
    return below.parent
