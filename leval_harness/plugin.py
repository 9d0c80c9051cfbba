"""Everything of ours in stock lm-eval, by importing this module: `--plugins leval_harness.plugin`.

Our RoPE types then stand in transformers and our backends in lm-eval's registry, so that
`lm_eval run --model hf --model_args '{"rope_parameters": ...}'` knows them. Tasks need no plugin:
lm-eval finds them where they are installed, or by the entry point `lm_eval.tasks`; vLLM loads its
own. In releases without `--plugins` (0.4.13 has none), `leval-harness lm-eval` does the same.

Raises:
    ImportError: torch or transformers is not installed; `pip install 'leval-harness[hf]'`.
"""

import leval_harness.backends
from resonance_vllm.hf.registration import register

register()
leval_harness.backends.register()
