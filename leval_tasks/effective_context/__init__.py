"""How far a model reads a text as well as in windows of its trained length, token by token."""
