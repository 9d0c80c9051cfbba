"""RoPE maths: one pure function a method, Resonance as a modifier, feature gap."""
