"""How positions are encoded: RoPE scaling and Resonance, in transformers and vLLM."""
