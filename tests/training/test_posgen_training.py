"""PosGen training: against a plain loop, resuming, errors, and lm-eval's own view."""

import csv
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from leval_harness.backends import register
from leval_harness.cli.main import app
from leval_harness.training import posgen_models, posgen_train, settings, t5
from leval_harness.training.posgen_models import batches, build_model, cross, load_model
from leval_harness.training.posgen_train import train_all, train_run
from leval_harness.training.settings import Architecture, PosGenRun, Recipe
from leval_tasks.posgen.sequences import splits
from resonance_vllm.common.errors import UserError
from resonance_vllm.core.frequencies import closed_form_inv_freq
from resonance_vllm.core.spec import RopeSpec

pytestmark = [pytest.mark.slow]

SMALL = {"hidden": 32, "heads": 2, "head_dim": 16, "feed_forward": 48}
DATA = {"train": 96, "validation": 12, "test": 12, "train_length": 16, "length": 48}
RUN = PosGenRun("cot", "resonance_yarn", 1)
T5 = Architecture(kind="t5", **SMALL)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """On the CPU. Torch for CUDA names it on a machine without a GPU, too."""
    monkeypatch.setattr(
        torch.accelerator,
        "current_accelerator",
        lambda check_available=False: None if check_available else torch.device("cuda"),
    )
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _recipe(**changes):
    recipe = Recipe(
        architecture=Architecture(**SMALL),
        data=DATA,
        epochs=4,
        batch_size=40,
        learning_rate=3e-3,
    )
    return recipe.with_changes(**changes)


def test_t5_layer_is_plain_rope_maths():
    """One layer written out from the definition, angles from `inv_freq` alone."""
    run = PosGenRun("cot", "yarn", 3)
    recipe = _recipe(architecture=T5.with_changes(layers=1))
    model = build_model(recipe, run).eval().double()
    model.model.rotary_emb.float()
    weights = {k: v.double() for k, v in model.state_dict().items()}
    ids = torch.tensor([[21, 3, 5, 0, 16, 2]])
    spec = RopeSpec.from_dict(settings.rope_parameters("yarn", recipe))
    angles = torch.arange(6, dtype=torch.float64)[:, None] * closed_form_inv_freq(spec, 16)

    def norm(x, w):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w

    def turn(x):
        z = torch.complex(x[..., :8], x[..., 8:]) * torch.polar(torch.ones(6, 8).double(), angles)
        return torch.cat((z.real, z.imag), dim=-1) * spec.method.compute_attention_factor()

    def part(name):
        return weights[f"model.layers.0.{name}.weight"]

    x = weights["model.embed_tokens.weight"][ids[0]]
    h = norm(x, part("input_layernorm"))
    heads = []
    for head in range(2):
        rows = slice(16 * head, 16 * head + 16)
        q, k, v = (h @ part(f"self_attn.{n}_proj")[rows].T for n in "qkv")
        logits = turn(q) @ turn(k).T
        logits += torch.full((6, 6), -torch.inf).triu(1)
        heads.append(logits.softmax(-1) @ v)
    x = x + torch.cat(heads, -1) @ part("self_attn.o_proj").T
    h = norm(x, part("post_attention_layernorm"))
    x = x + (h @ part("mlp.up_proj").T).relu() @ part("mlp.down_proj").T
    expected = norm(x, weights["model.norm.weight"]) * 32**-0.5
    expected = expected @ weights["model.embed_tokens.weight"].T
    with torch.no_grad():
        got = model(input_ids=ids).logits[0]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_posgen_training_equals_a_plain_loop(tmp_path):
    recipe = _recipe()
    train_run(recipe, RUN, tmp_path)
    model = build_model(recipe, RUN).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-3, total_steps=recipe.steps + 1, pct_start=0.1
    )
    read = []
    for ids, labels in batches(recipe, RUN):
        assert torch.equal(ids[:, 5:], labels[:, :-1]), "a label is the number after its input"
        read += map(tuple, ids.tolist())
        logits = model(input_ids=ids).logits[:, 4:]
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    assert len(read) == 4 * len({*read}) == 4 * 96, "each sequence once an epoch"
    assert read[:96] != read[96:192]
    saved = load_file(tmp_path / RUN.folder / "model.safetensors")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(saved[name], value, atol=1e-5, rtol=1e-4, msg=name)


def test_posgen_killed_run_gives_the_same_result_again(tmp_path, killed):
    recipe = _recipe(architecture=T5.with_changes(dropout=0.2), evaluate_every=1, keep="best")

    def all_of(folder):
        return list(train_all(recipe, [RUN], folder))

    (unbroken,) = all_of(tmp_path / "a")
    with killed(posgen_train, "write_json", times=2):
        all_of(tmp_path / "b")
    assert not list((tmp_path / "b").glob("*/*/*/result.json"))
    (again,) = all_of(tmp_path / "b")
    for part in ("test", "steps", "kept_step"):
        assert again[part] == unbroken[part]
    curves = [(tmp_path / x / RUN.folder / "metrics.csv").read_text() for x in "ab"]
    assert curves[0] == curves[1]
    assert [r["step"] for r in csv.DictReader(curves[0].splitlines())] == ["3", "6", "9", "12"]


@pytest.mark.slow(long=True)
def test_posgen_parallel_processes_train_what_one_does(tmp_path):
    runs = [PosGenRun("cot", "rope", 0), RUN, PosGenRun("recursive", "yarn", 2)]

    def tests(folder, **how):
        results = train_all(_recipe(), runs, tmp_path / folder, **how)
        return {(r["subtask"], r["encoding"], r["seed"]): r["test"] for r in results}

    alone = tests("a")
    assert len(alone) == len(runs)
    assert tests("b", jobs=2) == alone


@pytest.mark.parametrize("keep", ["best", "best_scaled"])
def test_posgen_best_model_is_first_of_highest_accuracy(tmp_path, monkeypatch, keep):
    """With `best_scaled` validations rotate by the code's YaRN; training and the test do not."""
    recipe = _recipe(evaluate_every=1, keep=keep)
    turned, weights = [], []

    def evaluate(model, data, split, rows=None):
        turned.append(model.model.rotary_emb.inv_freq.clone())
        weights.append({name: value.clone() for name, value in model.state_dict().items()})
        return real(model, data, split, rows)

    real = posgen_models.evaluate
    monkeypatch.setattr(posgen_models, "evaluate", evaluate)
    run = PosGenRun("cot", "resonance", 0)
    result = train_run(recipe, run, tmp_path)
    *validated, tested = turned
    assert len(validated) == recipe.epochs
    assert all(torch.equal(each, tested) == (keep == "best") for each in validated)
    scaled = RopeSpec.from_dict(settings.rope_parameters("resonance_yarn_code", recipe))
    wanted = tested if keep == "best" else closed_form_inv_freq(scaled, 16).float()
    torch.testing.assert_close(validated[0], wanted)
    with (tmp_path / run.folder / "metrics.csv").open() as file:
        accuracies = [float(row["id_accuracy"]) for row in csv.DictReader(file)]
    at = accuracies.index(max(accuracies))
    assert result["kept_step"] == 3 * (at + 1)
    saved = load_file(tmp_path / run.folder / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in weights[at].items())


def test_posgen_keeps_finished_runs_refuses_other_settings(tmp_path):
    recipe = _recipe(epochs=1)
    (made,) = train_all(recipe, [RUN], tmp_path)
    kept = made | {"test": {"id_accuracy": 1.0, "ood_accuracy": 0.5}}
    (tmp_path / RUN.folder / "result.json").write_text(json.dumps(kept))
    assert list(train_all(recipe, [RUN], tmp_path)) == [kept]
    with pytest.raises(UserError, match="holds a training with other settings"):
        list(train_all(_recipe(epochs=2), [RUN], tmp_path))


def test_posgen_loss_that_is_nan_stops_the_run(tmp_path):
    recipe = _recipe(learning_rate=1e30, epochs=30)
    with pytest.raises(UserError, match=r"loss: (nan|inf) at step 6 in cot/resonance_yarn/seed-1"):
        train_run(recipe, RUN, tmp_path)


def test_posgen_frozen_feed_forward_is_not_trained(tmp_path):
    assert settings.preset(Recipe, "code").architecture.freeze_feed_forward
    recipe = _recipe(architecture=T5.with_changes(freeze_feed_forward=True), epochs=1)
    train_run(recipe, RUN, tmp_path)
    saved = t5.PosGenT5ForCausalLM.from_pretrained(tmp_path / RUN.folder).state_dict()
    for name, fresh in build_model(recipe, RUN).state_dict().items():
        frozen = ".mlp." in name or "post_attention" in name
        assert torch.equal(saved[name], fresh) == frozen, name


def test_posgen_code_preset_has_published_wavelengths():
    rope = settings.rope_parameters("resonance_yarn_code", settings.preset(Recipe, "code"))
    spec = RopeSpec.from_dict(rope)
    wavelengths = (2 * np.pi / closed_form_inv_freq(spec, 64)).round().long().tolist()
    # Read off a run of the authors' code; see docs/reference/posgen.md.
    assert wavelengths[8:16] == [63, 84, 112, 198, 396, 1048, 1397, 1863]
    assert wavelengths[-1] == 186294
    assert spec.method.compute_attention_factor() == pytest.approx(1.13747, abs=1e-5)
    # The authors' code ramps over the 257 positions of a test, we write it over the 65 trained.
    theirs = {**rope, "original_max_position_embeddings": 257, "beta_fast": 2.0, "beta_slow": 1.0}
    assert rope["original_max_position_embeddings"] == 65
    plain = [{**each, "rope_type": "yarn"} for each in (rope, theirs)]
    tables = [closed_form_inv_freq(RopeSpec.from_dict(each), 64) for each in plain]
    torch.testing.assert_close(*tables, rtol=1e-12, atol=0)


@pytest.mark.parametrize("architecture", [Architecture(**SMALL), T5])
def test_posgen_trains_once_and_tests_other_encodings(tmp_path, architecture):
    """Against a model that is built with those settings in its config."""
    recipe = _recipe(architecture=architecture, epochs=2)
    runs = [PosGenRun("cot", "rope", 0), PosGenRun("recursive", "rope", 1)]
    list(train_all(recipe, runs, tmp_path))
    files = [tmp_path / run.folder / "model.safetensors" for run in runs]
    weights = [file.read_bytes() for file in files]
    asked = {"rope": ["rope", "yarn_code", "resonance"]}
    results = list(cross(tmp_path, asked))
    made = [(r["subtask"], r["encoding"], r["tested_with"]) for r in results]
    assert sorted(made) == [
        (subtask, "rope", tested)
        for subtask in ("cot", "recursive")
        for tested in ("resonance", "yarn_code")
    ], "its own encoding was tested in training"
    assert weights == [file.read_bytes() for file in files]
    for result in results:
        run = PosGenRun(result["subtask"], "rope", result["seed"])
        model = build_model(recipe, PosGenRun(run.subtask, result["tested_with"], 0)).eval()
        model.load_state_dict(load_model(recipe, run, tmp_path).state_dict())
        numbers = splits(recipe.settings(run.subtask)).test
        ids = torch.from_numpy(np.pad(numbers, ((0, 0), (1, 0)), constant_values=21))
        with torch.no_grad():
            guess = model(input_ids=ids[:, :-1]).logits.argmax(-1)[:, 4:]
        share = (guess == ids[:, 5:]).double().mean(0)
        assert result["test"]["by_position"] == pytest.approx(share.tolist(), abs=0.09)
        assert result["test"]["ood_accuracy"] == pytest.approx(float(share[12:].mean()), abs=0.02)
    assert list(cross(tmp_path, asked)) == [], "what is tested is not tested again"
    with pytest.raises(UserError, match=r"holds no settings\.json"):
        list(cross(tmp_path / "cot", asked))


def _by_lm_eval(checkpoint):
    import lm_eval
    from lm_eval.tasks import TaskManager

    register()
    t5.register()
    output = lm_eval.simple_evaluate(
        model="hf-long",
        model_args={"pretrained": str(checkpoint), "device": "cpu", "dtype": "float32"},
        tasks=["posgen_cot"],
        task_manager=TaskManager(metadata={"pretrained": str(checkpoint)}),
        bootstrap_iters=0,
    )
    found = output["results"]["posgen_cot"].items()
    return {k.removesuffix(",none"): v for k, v in found if ",none" in k and "stderr" not in k}


@pytest.mark.parametrize("architecture", [Architecture(**SMALL), T5])
def test_posgen_accuracy_in_lm_eval_equals_the_trainers(tmp_path, architecture):
    data = {**DATA, "train": 400}
    recipe = _recipe(architecture=architecture, data=data, epochs=12)
    result = train_run(recipe, RUN, tmp_path)
    metrics = _by_lm_eval(tmp_path / RUN.folder)
    own = dict(result["test"])
    del own["loss"]
    by_position = own.pop("by_position")
    assert len(by_position) == 48 - 4
    assert np.mean(by_position[16 - 4 :]) == pytest.approx(metrics["ood_accuracy"])
    assert own.keys() == {"id_accuracy", "ood_accuracy"}
    assert metrics == pytest.approx(own, abs=1e-9)


def test_posgen_code_preset_trains_unscaled_tests_scaled(tmp_path):
    """By the command line: one training gives the published rows RoPE and YaRN, at any lengths."""

    def posgen(*words):
        command = ["posgen", *map(str, words)]
        return CliRunner().invoke(app, command, standalone_mode=False, catch_exceptions=False)

    shape = "--hidden 32 --heads 2 --head-dim 16 --feed-forward 48 --modulus 7 --train-sequences 96"
    words = [*shape.split(), "--train-length", 16, "--length", 32, "--epochs", 1, "--batch-size", 8]
    words = ["train", "--preset", "small", *words, "--subtask", "cot", "--out", tmp_path]
    written = posgen(*words, "--reading", "code", "--seed", 3).stdout
    assert "cot resonance seed 3, tested with resonance_yarn_code" in written
    found = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.glob("*/*/*/*/*.json"))
    assert found == [
        "cot/resonance/seed-3/tested/resonance_yarn_code.json",
        "cot/rope/seed-3/tested/yarn_code.json",
    ]
    more = posgen(*words, "--reading", "text", "--encoding", "rope", "--seed", 4).stdout
    assert "cot rope seed 4: " in more, "the folder takes more seeds, and the other reading"
    assert "tested with" not in more
    one = posgen("evaluate", tmp_path, "--encoding", "resonance:rope", "--json").stdout
    assert [(r["encoding"], r["seed"]) for r in json.loads(one)] == [("resonance", 3)]
    again = posgen("evaluate", tmp_path, "--encoding", "yarn_code", "--json").stdout
    assert [(r["encoding"], r["seed"]) for r in json.loads(again)] == [
        ("resonance", 3),
        ("rope", 4),
    ]
