"""`diff`: does this setup still read like that one?

- `setups`: what a user writes for A and B.
- `local`, `server`, `gguf`, `saved`: readers, one interface (`reading.Reader`).
- `texts`, `inputs`: pinned texts; tokenizers, BOS and templates compared as token ids.
- `compare`: reads until it is decided. `result`: numbers, sentence, exit code.
"""
