"""The cells of shipped sweeps: which, in which order, with what they are reckoned to cost."""

import json

import pytest
from golden_access import SAMPLE, TOKENIZER, fine, run

SMOLLM2 = "models.SmolLM2-135M.path={root}/smollm2"
POSGEN = [f"{encoding}-{seed}" for encoding in ("yarn", "resonance_yarn") for seed in range(3)]
LLAMA2 = ["chat", "yarn-ft32k", "resonance-yarn-ft32k", "yarn-ft4k", "resonance-yarn-ft4k"]
IN_SECOND = ("tasks.1.metadata.data_dir={sample}", "tasks.1.metadata.own_data=true")
IN_ALL = ("metadata.data_dir={sample}", "metadata.own_data=true")
SWEEPS = {
    "quickstart": (SMOLLM2, *IN_SECOND),
    "all_methods": (SMOLLM2, *IN_SECOND),
    "leval_smollm2": (SMOLLM2, *IN_ALL),
    "posgen_crossed": tuple(f"models.{name}.path={{root}}/{name}" for name in POSGEN),
    "llama2_7b": (*(f"models.{name}.path={{root}}/{name}" for name in LLAMA2), *IN_ALL),
}
# name -> trained length, base
MODELS = {
    "smollm2": (8192, 1e5),
    **dict.fromkeys(POSGEN, (65, 1e4)),
    **dict.fromkeys(LLAMA2, (4096, 1e4)),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, save_llama):
    """Random models of a few kilobytes, no two the same."""
    root = tmp_path_factory.mktemp("models")
    for at, (name, (length, theta)) in enumerate(MODELS.items()):
        rope = {"rope_type": "default", "rope_theta": theta}
        save_llama(
            root / name,
            vocab_size=1500 + at,
            max_position_embeddings=length,
            rope_parameters=rope,
        )
        for file in TOKENIZER.iterdir():
            (root / name / file.name).write_bytes(file.read_bytes())
    return {"sample": SAMPLE, "root": root}


def test_cells(golden, folders, tmp_path):
    lines = []
    for sweep, settings in SWEEPS.items():
        flags = [f"--set={text.format(**folders)}" for text in settings]
        plan = json.loads(fine("sweep", sweep, *flags, "--out", tmp_path, "--dry-run", "--json"))
        for cell in plan["cells"]:
            del cell["cell_id"]
        rows = [*plan["cells"], {"title": "total", **plan["total"]}]
        lines += [f"{sweep}: {json.dumps(row)}" for row in rows]
    golden("dry_run.txt", "\n".join([*lines, ""]))
    assert not any(tmp_path.iterdir())


def test_ids_stay_apart_and_the_same(folders, tmp_path):
    flags = [f"--set={text.format(**folders)}" for text in SWEEPS["all_methods"]]
    command = ("sweep", "all_methods", *flags, "--out", tmp_path, "--dry-run", "--json")
    first, second = (json.loads(run(*command).out)["cells"] for _ in range(2))
    ids = [cell["cell_id"] for cell in first]
    assert len(set(ids)) == len(ids)
    assert ids == [cell["cell_id"] for cell in second]
