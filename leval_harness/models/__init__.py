"""Small real models that a package ships, prepared as ordinary checkpoints."""
