"""How far a model reads a text as well as in windows of its native context length, token by token."""
