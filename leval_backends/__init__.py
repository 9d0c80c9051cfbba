"""How a model is asked: lm-eval backends."""
