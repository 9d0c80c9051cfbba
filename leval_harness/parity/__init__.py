"""`diff`: does this setup still read like that one?

- `setups`: what a user writes for A and B. `texts`: which texts they read.
- `side`: lets one setup read, in a process of its own; keeps and loads what it has read.
- `local`, `server`: readers, one interface (`side.Reader`).
- `compare`: the comparison. `result`: its numbers, findings and sentences.
"""
