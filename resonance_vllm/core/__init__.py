"""RoPE maths: one class a method, Resonance as a modifier, and what both do to features."""
