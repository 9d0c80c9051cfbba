import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leval_harness.backends.prompt_trie import divide


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=12), st.integers(1, 4)
)
def test_every_prompt_goes_to_one_process(prompts, parts):
    shares = divide(prompts, parts)
    assert len(shares) == parts
    assert sorted(i for share in shares for i in share) == list(range(len(prompts)))


def test_questions_of_a_document_stay_together_and_work_is_even():
    prompts = [f"{document}{'text ' * 50}{q}" for q in range(6) for document in "abcd"]
    shares = divide(prompts, 2)
    assert [len(share) for share in shares] == [12, 12]
    documents = [{prompts[i][0] for i in share} for share in shares]
    assert not documents[0] & documents[1]


SCRIPT = """
import json, sys
from lm_eval.api.instance import Instance
from leval_harness.backends.hf_long import HFLong

lm = HFLong(sys.argv[1], device="cpu", dtype="float32")
prompts = json.loads(sys.argv[2])
mine = list(range(lm.rank, len(prompts), lm.world_size))
options = {"until": [], "max_gen_toks": 6, "do_sample": False}
texts = lm.generate_until(
    [Instance("generate_until", {}, (prompts[i], dict(options)), 0, ("t", i, 1)) for i in mine]
)
ids = [lm.tok_encode(prompts[i]) for i in mine]
scores = lm._loglikelihood_tokens([(None, row[:5], row[5:]) for row in ids])
found = {i: (text, score[0]) for i, text, score in zip(mine, texts, scores)}
told = lm.telemetry()
with open(f"{sys.argv[3]}.{lm.rank}", "w") as out:
    json.dump([lm.world_size, told["tokens_prefilled"], told["tokens_unique"], found], out)
"""


@pytest.mark.slow
def test_two_processes_read_each_document_once_and_answer_as_one(
    make_model, tokenizer, tmp_path, monkeypatch, forks
):
    make_model("llama").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "ask.py").write_text(SCRIPT)
    generator = torch.Generator().manual_seed(0)

    def words(n):
        return " ".join(f"w{i}" for i in torch.randint(100, (n,), generator=generator).tolist())

    prompts = [f"{document} {words(4)}" for document in [words(60), words(60)] for _ in range(4)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    words = [str(tmp_path / "model"), json.dumps(prompts)]
    alone = forks.python(SCRIPT, *words, "one")
    assert alone.returncode == 0, alone.stderr
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run([*launcher, "--nproc_per_node=2", "ask.py", *words, "two"], check=True)
    found = {}
    for name in ("one", "two"):
        parts = [json.loads(p.read_text()) for p in sorted(tmp_path.glob(f"{name}.*"))]
        assert [part[0] for part in parts] == [len(parts)] * (1 if name == "one" else 2)
        found[name] = {key: value for part in parts for key, value in part[3].items()}
        found[name, "tokens"] = sum(part[1] for part in parts)
    assert found["two", "tokens"] == found["one", "tokens"]
    for index, (text, score) in found["one"].items():
        assert found["two"][index][0] == text
        assert found["two"][index][1] == pytest.approx(score, abs=1e-4)
