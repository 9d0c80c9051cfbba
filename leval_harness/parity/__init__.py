"""`diff`: does this setup still read like that one?

- `setups`: what a user writes for A and B.
- `local`, `server`, `gguf`, `saved`: readers, one interface (`reading.Reader`).
- `texts`: pinned texts. `findings`: tokenizers, BOS and templates as token ids; generated tokens.
- `sides`: how to compare, and what each setup has read so far.
- `compare`: reads until it is decided. `result`: numbers, sentence, exit code.
"""
