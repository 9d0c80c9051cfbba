"""How a model is asked: lm-eval backends."""

ALIAS = "hf-long"


def register() -> None:
    """Make `hf-long` known to lm-eval's model registry; any number of times, no torch needed."""
    import lm_eval.models  # noqa: F401 - lm-eval adds its own only to an empty registry
    from lm_eval.api.registry import model_registry

    if ALIAS not in model_registry:
        model_registry.register(ALIAS, target="leval_backends.hf_long:HFLong")
