"""How models are adapted: PosGen training and LLM fine-tuning."""
