"""How a model is asked: lm-eval backends."""

# Name in lm-eval's model registry -> class; the same as the entry points in pyproject.toml.
BACKENDS = {
    "hf-long": "leval_backends.hf_long:HFLong",
    "vllm-long": "leval_backends.vllm_long:VLLMLong",
}


def register() -> None:
    """Make our backends known to lm-eval's registry; any number of times, no torch needed."""
    import lm_eval.models  # noqa: F401 - lm-eval adds its own only to an empty registry
    from lm_eval.api.registry import model_registry

    for alias, target in BACKENDS.items():
        if alias not in model_registry:
            model_registry.register(alias, target=target)
