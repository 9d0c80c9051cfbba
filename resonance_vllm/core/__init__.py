"""RoPE mathematics: one class per method, Resonance as a modifier, and what both do to features."""
