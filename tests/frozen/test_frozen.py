"""The product's numbers are the stored ones: files beside this one, compared by pytest-regressions.

A number that moves on purpose is a decision: `pytest tests/frozen -k NAME --force-regen`, a
reviewed difference of the files, and a line of CHANGELOG.md with the reason.
"""

from contextlib import chdir

import frozen_models
import frozen_rows
import pytest

RESULT_FOLDERS = frozen_rows.result_folders()
every_folder = pytest.mark.parametrize("name", RESULT_FOLDERS)

VLLM_ON_A_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


# RoPE


@pytest.mark.slow(long=True)
def test_rope_methods(check_rows):
    check_rows(frozen_rows.rope_methods())


@pytest.mark.slow(long=True)
def test_rope_in_transformers(check_rows):
    check_rows(frozen_rows.rope_in_transformers(), rtol=1e-6, atol=0)


@pytest.mark.slow(long=True)
@pytest.mark.engine("vllm")
@pytest.mark.timeout(3600)
def test_rope_in_vllm(check_rows):
    check_rows(frozen_rows.rope_in_vllm(), rtol=1e-6, atol=0)


# Tasks and scores


@pytest.mark.slow(long=True)
def test_prompts(check_rows):
    check_rows(frozen_rows.prompts_of_sample())


@pytest.mark.slow(long=True)
@pytest.mark.data
def test_prompts_published(check_rows, real_data):
    check_rows(frozen_rows.prompts_of_published_documents(real_data))


def test_scores(check_rows):
    check_rows(frozen_rows.scores_of_golden_predictions())


@pytest.mark.slow
@pytest.mark.data
def test_scores_published(check_rows, real_data):
    check_rows(frozen_rows.scores_of_published_predictions(real_data))


def test_posgen_sequences(check_rows):
    check_rows(frozen_models.posgen_sequences())


# Results: the compared DataFrame, and tables whole


@every_folder
def test_compared(check_rows, name):
    check_rows(frozen_rows.compared(RESULT_FOLDERS[name]))


def test_compared_posgen(check_rows):
    check_rows(frozen_rows.compared_posgen())


@every_folder
def test_tables(file_regression, name):
    with chdir(RESULT_FOLDERS[name]):
        ran = frozen_rows.run("table", ".", "--format", "md")
    # 1 where a number is not finite: the tables are printed all the same
    assert ran.code == ("(not finite)" in ran.out)
    file_regression.check(ran.out, extension=".md")


def test_tables_published(file_regression):
    with chdir(frozen_rows.RESULTS):
        text = frozen_rows.fine("table", "sweep", "--format", "md", "--published")
        text += frozen_rows.fine("posgen", "table", "posgen_train", "--format", "md")
    file_regression.check(text, extension=".md")


# Training


@pytest.mark.slow(long=True)
def test_posgen_training(check_rows, forks):
    check_rows(frozen_models.posgen_training(forks.command), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_finetuning(check_rows, forks):
    check_rows(frozen_models.finetuning(forks.command), rtol=1e-4, atol=1e-6)


# A real model


@pytest.mark.slow(long=True)
@pytest.mark.parametrize("backend", ["hf", "hf-long"])
def test_token_losses(check_rows, backend):
    check_rows(frozen_models.token_losses(backend), rtol=1e-4, atol=2e-4)


@pytest.mark.slow(long=True)
@pytest.mark.engine("vllm")
def test_token_losses_vllm(check_rows, monkeypatch):
    on_a_cpu(monkeypatch)
    losses = frozen_models.token_losses("vllm", ",enforce_eager=true")
    check_rows(losses, rtol=1e-4, atol=2e-4)


@pytest.mark.slow(long=True)
@pytest.mark.parametrize("backend", ["hf", "hf-long"])
def test_answers(check_rows, forks, backend):
    check_rows(frozen_models.answers(forks.command, backend))


@pytest.mark.slow(long=True)
@pytest.mark.engine("vllm")
def test_answers_vllm(check_rows, monkeypatch):
    on_a_cpu(monkeypatch)  # vLLM cannot be imported in a fork
    answers = frozen_models.answers(frozen_models.run_command, "vllm", ",enforce_eager=True")
    check_rows(answers)


@pytest.mark.slow(long=True)
def test_diff(check_rows):
    check_rows(frozen_models.diff_of_yarn(), rtol=1e-4, atol=2e-4)


def on_a_cpu(monkeypatch):
    for name, value in VLLM_ON_A_CPU.items():
        monkeypatch.setenv(name, value)
