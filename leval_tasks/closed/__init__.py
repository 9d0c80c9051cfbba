"""L-Eval closed-ended tasks: prompts, document budget, official scoring."""
