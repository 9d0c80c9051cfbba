"""The reference of the RoPE test vectors: their configs, closed forms, and what writes the file."""
