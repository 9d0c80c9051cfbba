"""What a checkpoint's config states about positions: shipped scaling, length limit, layer types."""
