"""What all tasks share: metadata, documents, metrics, model limits."""
