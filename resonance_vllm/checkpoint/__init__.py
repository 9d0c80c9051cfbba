"""What a checkpoint's config says about positions, and writing RoPE settings into it."""
