"""The adapter for vLLM: gives a model what was requested and reports what its modules hold."""
