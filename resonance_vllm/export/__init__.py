"""Checkpoints that stock libraries run: a config in longrope form, or a GGUF file."""
