"""The adapter for transformers: gives a model what was requested, reports what its modules hold."""
