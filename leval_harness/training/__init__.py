"""Trainings: PosGen models from scratch, and fine-tuning of language models."""
