"""Test a PosGen checkpoint as any other model is tested: through lm-eval."""

from pathlib import Path

from leval_border.errors import SettingError, UserError, one_of
from leval_border.files import read_object
from leval_tasks.metadata import SUBTASKS


def evaluate_checkpoint(
    checkpoint: str, *, subtask: str | None = None, limit: int | None = None, device: str = "cpu"
) -> dict[str, float]:
    """Accuracies on the test split that belongs to the checkpoint's training data.

    The fractions `ood_accuracy`, `id_accuracy` and `accuracy@a-b`, of the first `limit` sequences.
    Without `subtask` it is the one in the checkpoint's config.json.

    Raises:
        SettingError: the sub-task is unknown, or neither given nor in the checkpoint.
        UserError: the folder holds no checkpoint.
    """
    import lm_eval
    from lm_eval.tasks import TaskManager

    from leval_harness.backends.hf_long import HFLong
    from leval_harness.training import t5_layer
    from resonance_vllm.hf.registration import register

    file = Path(checkpoint) / "config.json"
    if not file.is_file():
        raise UserError(f"checkpoint: {checkpoint} has no config.json; give a checkpoint folder")
    config = read_object(file)
    if config is None:
        raise UserError(f"checkpoint: {file} is not a JSON object")
    stated = config.get("posgen")
    subtask = subtask or (stated.get("subtask") if isinstance(stated, dict) else None)
    if subtask is None:
        raise SettingError(f"subtask: not in {file}; give one of {', '.join(SUBTASKS)}")
    one_of("subtask", subtask, SUBTASKS)
    register()
    t5_layer.register()
    name = f"posgen_{subtask}"
    manager = TaskManager(metadata={"pretrained": checkpoint})
    model = HFLong(pretrained=checkpoint, device=device, dtype="float32", batch_size=32)
    output = lm_eval.simple_evaluate(
        model=model, tasks=[name], task_manager=manager, limit=limit, bootstrap_iters=0
    )
    return {
        key.removesuffix(",none"): value
        for key, value in output["results"][name].items()
        if key.endswith(",none") and "stderr" not in key
    }
