"""Small real models from a package registry, prepared as ordinary checkpoints."""
