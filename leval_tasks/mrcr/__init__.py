"""OpenAI's MRCR: find one of several answers to the same request in a long conversation."""
