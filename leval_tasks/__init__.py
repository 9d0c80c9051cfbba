"""What is asked: lm-eval task definitions and their pure scoring."""
