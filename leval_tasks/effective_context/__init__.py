"""How far a text is worth reading: full context against short windows, token by token."""
