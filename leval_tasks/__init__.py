"""lm-eval task definitions and their pure scoring."""
