"""Register this package in lm-eval: `lm_eval run --plugins leval_harness.backends.plugin`.

Importing this module adds our RoPE types to transformers and our backends to lm-eval, so that
`lm_eval run --model hf --model_args '{"rope_parameters": ...}'` accepts them. Tasks need no plugin:
lm-eval finds them in its own folder or by the entry point `lm_eval.tasks`; vLLM loads its own
plugin. lm-eval 0.4.13 has no `--plugins`; there, use `leval-harness lm-eval`.

Raises:
    ImportError: torch or transformers is not installed; the extra `hf` has them.
"""

import leval_harness.backends
from resonance_vllm.hf import register

register()
leval_harness.backends.register()
