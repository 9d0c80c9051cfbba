"""`diff`: does this setup still read like that one?

- `setups`: what a user writes for A and B. `texts`: which texts they read.
- `local`, `server`, `saved`: readers, one interface (`reading.Reader`).
- `worker`: a process for each side. `compare`: lets both read.
- `findings`: tokenizers, BOS, templates. `result`: numbers and sentences.
"""
