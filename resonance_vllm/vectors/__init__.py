"""Versioned test vectors of rotary position embeddings, and a runner that needs nothing else."""
