"""vLLM general plugin: our rope types in every process of the engine, and their swap.

vLLM calls `register` in each of its processes before a model file is imported; there `get_rope` and
`initialize_model` are wrapped. Model files copy RoPE dictionaries, pick keys from them and decide
by the names of types (DeepSeek's softmax scale). So while a model is built its config shows a type
of vLLM's own, and the base in it is a `TaggedBase`, a float that knows our settings: whatever
dictionary a model file makes for `get_rope`, it has the base. Then every module is compared.
"""

import contextlib
import copy
import dataclasses
import functools
import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import nn

from resonance_vllm.checkpoint.config import (
    VERIFY_ROPE_KEY,
    PositionConfig,
    is_windowed,
    length_limit,
    model_specific_keys,
    rope_by_layer_type,
    rope_of_present_layers,
    unscaled_rope_type,
)
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.frequencies import base_inv_freq, closed_form_rotation, rotation_from_base
from resonance_vllm.core.phase import cos_sin_table
from resonance_vllm.core.spec import NATIVE_LENGTH_KEY, OWN_TYPES, RESONANCE, RopeSpec, RopeType
from resonance_vllm.verify import RELATIVE_TOLERANCE, RotaryState, compare_states, mismatch_error

# Named after the package, below vLLM's own logger: that one has a handler in every process.
logger = logging.getLogger("vllm.resonance_vllm")

_YARN = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate")
# With these a scaled type that a model file names itself is plain RoPE.
_NEUTRAL = {"factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
_OF_VLLM = ("type", "rope_dim", "short_mscale", "long_mscale")
"""Keys that stand beside those of a method: names of vLLM for what we call otherwise."""
_SHARE = "partial_rotary_factor"
_AXES = "mrope_section"
"""Key of models whose positions have several axes."""

Wrapped = Callable[..., Any]


@functools.cache
def register() -> None:
    """Make our rope types known to vLLM in this process.

    A vLLM without the functions that are wrapped refuses our types as unknown, and these alone.
    """
    from resonance_vllm.hf import apply as hf

    try:
        core = importlib.import_module("vllm.v1.engine.core").EngineCore
        core.collective_rpc = _wrap_collective_rpc(core.collective_rpc)
        _put("vllm.model_executor.layers.rotary_embedding", "get_rope", _wrap_get_rope)
        loader = "vllm.model_executor.model_loader.utils"
        _put(loader, "initialize_model", _wrap_initialize_model)
    except (ImportError, AttributeError) as error:
        logger.warning("this vLLM is unknown to resonance_vllm and runs without it: %s", error)
        return
    hf.register()  # for configs that transformers reads, and models that vLLM runs through it


def _put(module: str, name: str, wrap: Callable[[Wrapped], Wrapped]) -> None:
    """Put a wrapper in place of a function, wherever vLLM references it already."""
    original = getattr(importlib.import_module(module), name)
    wrapper = functools.wraps(original)(wrap(original))
    for loaded_name, loaded in list(sys.modules.items()):
        if loaded_name.startswith("vllm") and vars(loaded).get(name) is original:
            setattr(loaded, name, wrapper)


# What a config asks for.


def is_ours(rope: object) -> bool:
    """Whether a RoPE dictionary has a type of ours, or a misspelt one, which is then refused."""
    rope_type = rope.get("rope_type") if isinstance(rope, Mapping) else None
    return rope_type in OWN_TYPES or str(rope_type).startswith(RESONANCE)


class Asked(NamedTuple):
    """What is asked of the layers of one type: settings, and the dictionary that they are from."""

    spec: RopeSpec
    rope: Mapping[str, Any]


def asked_of(rope: Mapping[str, Any], shipped: Mapping[str, Any], length: int) -> Asked:
    """The settings in a dictionary, with the frequencies of a served length in tokens.

    What is the model's own in the shipped dictionary stays, for vLLM replaces the whole.
    """
    own = {"rope_type", *RopeType.parse(rope.get("rope_type")).method.key_names()}
    spec = RopeSpec.from_dict(
        {k: v for k, v in rope.items() if k in own or k not in {*shipped, *_OF_VLLM}}
    )
    spec.method.to_vllm({"rope_type": spec.rope_type})  # refuses what vLLM cannot run
    spec = dataclasses.replace(spec, method=spec.method.at_length(length))
    kept = {k: v for k, v in shipped.items() if k in {*model_specific_keys(shipped), _SHARE}}
    return Asked(spec, {**kept, **rope} if is_ours(rope) else rope)


def asked_by(model: Any) -> dict[str | None, Asked]:
    """What vLLM's `ModelConfig` asks of each layer type; empty where no type is ours.

    Those of a stock type count where `vllm_hf_overrides` wrote them.
    """
    text, served = model.hf_text_config, int(model.max_model_len)
    ropes = rope_of_present_layers(text)
    if model.hf_config is not text and any(
        map(is_ours, rope_by_layer_type(model.hf_config).values())
    ):
        raise RopeConfigError(
            f"rope_parameters: they stand at the top of a config of model_type "
            f"{model.hf_config.model_type!r}, which nests its language model; allowed: the "
            "--hf-overrides that `leval-harness check MODEL --rope ...` prints"
        )
    if any(map(is_ours, ropes.values())):
        ropes = {kind: rope for kind, rope in ropes.items() if is_ours(rope)}
    elif getattr(model.hf_config, VERIFY_ROPE_KEY, False):
        ropes = {kind: rope for kind, rope in ropes.items() if not is_windowed(kind)}
    else:
        return {}
    shipped = shipped_config(model)
    before, positions = rope_by_layer_type(shipped), PositionConfig.from_config(shipped)
    asked = {
        kind: asked_of(rope, before.get(kind, before.get(None)) or {}, served)
        for kind, rope in ropes.items()
    }
    apart, requested = apart_now.get(), model.original_max_model_len
    for spec, _ in asked.values():
        limit = length_limit(positions, spec, requested)
        if spec.rope_type in OWN_TYPES and served > limit and not (apart and apart.for_running):
            raise RopeConfigError(
                f"max_model_len: {served} is above the limit of {limit} tokens of rope_type "
                f"{spec.rope_type!r}; allowed: --max-model-len {limit}, or a larger factor"
            )
    return asked


def shipped_config(model: Any) -> Any:
    """The text model's config as config.json has it, before overrides, of a `ModelConfig`."""
    from vllm.transformers_utils.config import get_config, get_hf_text_config

    path = getattr(model, "hf_config_path", None) or model.model
    found = get_config(path, model.trust_remote_code, model.revision, model.code_revision)
    return get_hf_text_config(found)


# What model files see, and what `get_rope` builds of it.


class TaggedBase(float):
    """A base of rotation that knows the settings it stands for, and the rows that are needed.

    vLLM's kernels do not check: a position without a row reads foreign memory.
    """

    spec: RopeSpec
    rows: int


def tagged(rope: Mapping[str, Any], spec: RopeSpec, rows: int, plain: str) -> dict[str, Any]:
    """The dictionary that model files see in place of ours.

    It is YaRN where ours is, because code of DeepSeek scales its softmax by it; not on positions of
    several axes, for which vLLM's YaRN takes another native context length. All other methods are shown as
    plain RoPE, under the family's name for it. It is complete: model files read keys unasked.
    """
    base = TaggedBase(spec.method.rope_theta)
    base.spec, base.rows = spec, max(rows, spec.method.length_limit(rows))
    yarn = spec.method.name == "yarn" and spec.method.is_stock_formula
    if yarn and plain == "default" and _AXES not in rope:
        seen = spec.method.to_vllm({**spec.method.to_settings(), "rope_type": "yarn"})
    else:
        seen = {
            **_NEUTRAL,
            NATIVE_LENGTH_KEY: spec.method.native_length or rows,
            "rope_type": plain,
        }
    share = {_SHARE: rope[_SHARE]} if _SHARE in rope else {}
    return {**seen, **model_specific_keys(rope), **share, "rope_theta": base}


@contextlib.contextmanager
def _shown_as_stock(config: Any, asked: Mapping[str | None, Asked], served: int) -> Iterator[None]:
    """The text model's config with `tagged` dictionaries in place of ours."""
    rope, rows = config.rope_parameters, max(config.max_position_embeddings, served)
    shown: dict[str | None, Any] = copy.deepcopy(rope_by_layer_type(config))
    for kind, (spec, own) in asked.items():
        shown[kind] = tagged(own, spec, rows, unscaled_rope_type(config, kind))
    changes = {
        "rope_parameters": shown.get(None, {**rope, **shown}),
        # Layers that keep a rotation of their own get a table of so many rows.
        "max_position_embeddings": rows,
    }
    before = {key: getattr(config, key) for key in changes}
    vars(config).update(changes)  # some config classes check what is set
    try:
        yield
    finally:
        vars(config).update(before)


@functools.cache
def resonance_yarn() -> Any:
    """The rotary embedding of Resonance YaRN."""
    from vllm.model_executor.layers.rotary_embedding import YaRNScalingRotaryEmbedding

    class ResonanceYaRNScalingRotaryEmbedding(YaRNScalingRotaryEmbedding):
        """YaRN with wavelengths rounded to integers, and exact phase (arXiv 2403.00071)."""

        def __init__(self, spec: RopeSpec, rows: int, *args: Any, **kwargs: Any) -> None:
            self.spec, self.rows = spec, rows
            super().__init__(*args, **kwargs)

        def _compute_cos_sin_cache(self) -> torch.Tensor:
            """The table, float32 `[rows, rotary_dim]`: cos of every feature, then sin."""
            made, scale = (
                closed_form_rotation(self.spec, self.rotary_dim),
                self.spec.method.compute_attention_factor(),
            )
            self.resonance = RotaryState(made.inv_freq, scale, made.exact)
            return cos_sin_table(made, scale, self.rows, device=torch.get_default_device())

    return ResonanceYaRNScalingRotaryEmbedding


class Apart(NamedTuple):
    """Where tables are made, in float32, while a model is built without weights, and how long.

    An engine that runs may serve more than the settings that it gets allow.
    """

    device: torch.device
    rows: int
    for_running: bool = False


apart_now: ContextVar[Apart | None] = ContextVar("apart_now", default=None)


def _wrap_get_rope(original: Wrapped) -> Wrapped:
    """`get_rope`: an embedding whose base is tagged turns by our settings."""
    signature = inspect.signature(original)

    def get_rope(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given, apart = call.arguments, apart_now.get()
        rope = given["rope_parameters"] or {}
        given["dtype"] = given["dtype"] or torch.get_default_dtype()
        if apart is not None:
            given["dtype"] = torch.float32
            if rope.get("rope_type", "default") in ("default", "proportional", "llama3"):
                given["max_position"] = min(given["max_position"], apart.rows)
        with apart.device if apart else contextlib.nullcontext():
            if isinstance(rope.get("rope_theta"), TaggedBase):
                return _own_rope(original, given)
            return original(*call.args, **call.kwargs)

    return get_rope


def _own_rope(original: Wrapped, given: dict[str, Any]) -> Any:
    """Build (or find) the embedding for a call of `get_rope` with a tagged base."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    rope, apart = given["rope_parameters"], apart_now.get()
    base: TaggedBase = rope["rope_theta"]
    rows = min(base.rows, apart.rows) if apart else max(base.rows, given["max_position"])
    # vLLM keeps modules by their arguments, and plain layers may have the same.
    given = {**given, "rope_parameters": {**rope, "resonance": f"{base.spec} {rows}"}}
    key = ("resonance_vllm", str(given))
    if key not in _ROPE_DICT:
        if base.spec.method.name == rope["rope_type"] == "yarn":
            _ROPE_DICT[key] = _yarn(given, base, rows)
        else:
            _ROPE_DICT[key] = _changed(original(**given), base, rows)
    return _ROPE_DICT[key]


def _yarn(given: Mapping[str, Any], base: TaggedBase, rows: int) -> Any:
    """The class of Resonance YaRN for arguments of `get_rope`."""
    rope, head = given["rope_parameters"], given["head_size"]
    turned = rope.get("rope_dim") or int(head * rope.get(_SHARE, 1.0))
    return resonance_yarn()(
        base.spec, rows, head, turned, rope[NATIVE_LENGTH_KEY], float(base), given["is_neox_style"],
        rope["factor"], given["dtype"], **{name: rope[name] for name in _YARN if name in rope},
    )  # fmt: skip


def _changed(module: Any, base: TaggedBase, rows: int) -> Any:
    """A module that vLLM built, with another table."""
    turning = base_inv_freq(base.spec.method, held_turns(module).inv_freq)
    made, scale = (
        rotation_from_base(base.spec, turning),
        base.spec.method.compute_attention_factor(),
    )
    name, old = table_of(module)
    table = cos_sin_table(made, scale, max(rows, len(old)), dtype=old.dtype, device=old.device)
    setattr(module, name, table)
    if getattr(module, f"{name}_bf16", None) is not None:
        setattr(module, f"{name}_bf16", table.to(torch.bfloat16))
    module.base, module.resonance = (
        float(module.base),
        RotaryState(made.inv_freq, scale, made.exact),
    )
    return module


# What was built.


def table_of(module: Any) -> tuple[str, torch.Tensor]:
    """The buffer of a module that holds cos and sin by position, and its name."""
    for name, buffer in module.named_buffers(recurse=False):
        if name.endswith("cos_sin_cache") and buffer.ndim == 2 and buffer.is_floating_point():
            return name, buffer
    raise RopeConfigError(
        f"rope_type: vLLM's {type(module).__name__} has no table of cos and sin by position"
    )


def held_turns(module: Any) -> RotaryState:
    """What a module turns by, read from the second row of its table; frequencies are float64."""
    _, table = table_of(module)
    first = 0
    if getattr(module, "use_long_rope", False):  # that of long sequences is behind the other one
        first = min(int(module.original_max_position_embeddings), len(table) // 2)
    cos, sin = table[first : first + 2].double().cpu().chunk(2, dim=-1)
    return RotaryState(torch.atan2(sin[1], cos[1]), float(cos[0].max()))


def rotary_modules(model: nn.Module, config: Any) -> Iterator[tuple[str, str | None, Any]]:
    """Name, layer type and module of every rotary module of a model's text part, by each name.

    The layer type is as transformers names it; None where the config has none.
    """
    whole: Any = model
    text = whole.get_language_model() if hasattr(whole, "get_language_model") else model
    prefix = next((name for name, module in model.named_modules() if module is text), "")
    kinds = getattr(config, "layer_types", None) or []
    for name, module in text.named_modules(prefix=prefix, remove_duplicate=False):
        if "RotaryEmbedding" in type(module).__name__:
            index = re.search(r"\.(\d+)\.", name)
            known = index is not None and int(index[1]) < len(kinds)
            yield name, str(kinds[int(index[1])]) if known and index else None, module


def _wrap_initialize_model(original: Wrapped) -> Wrapped:
    """`initialize_model`: a model with requests is built from stock settings, then verified."""
    signature = inspect.signature(original)

    def initialize_model(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs).arguments
        config = call.get("model_config") or call["vllm_config"].model_config
        text = config.hf_text_config
        asked = asked_by(config)
        if not asked:
            return original(*args, **kwargs)
        first = next(iter(asked.values())).spec
        of_transformers = config.using_transformers_backend()
        shown: Any = contextlib.nullcontext()
        if first.rope_type in OWN_TYPES and not of_transformers:
            shown = _shown_as_stock(text, asked, int(config.max_model_len))
        try:
            with shown:
                model = original(*args, **kwargs)
        except (AttributeError, KeyError, TypeError) as error:  # code with a form of its own
            raise RopeConfigError(
                f"rope_type: {first.rope_type!r}: the code of {config.architecture} in vLLM does "
                f"not build with it: {type(error).__name__}: {error}"
            ) from error
        if of_transformers:
            from resonance_vllm.hf import apply as hf

            hf.apply_rope(model.model)  # compares, and puts exact phase behind modules
        else:
            _verify(model, text, asked)
        return model

    return initialize_model


def _verify(model: nn.Module, config: Any, asked: Mapping[str | None, Asked]) -> None:
    """Compare every rotary module of a language model with what was asked."""
    reached = False
    for name, kind, module in rotary_modules(model, config):
        wanted = asked.get(kind, asked.get(None))
        given: RotaryState | None = getattr(module, "resonance", None)
        if given is None and (wanted is None or is_windowed(kind)):
            continue  # keeps a rotation of its own
        reached, held = True, held_turns(module)
        close = max(RELATIVE_TOLERANCE, 2 * torch.finfo(table_of(module)[1].dtype).eps)
        if wanted is None:
            wrong = [f"layers of type {kind} were to keep theirs"] if kind else []
        elif given is None:
            wrong = _stock_differs(module, held, wanted, unscaled_rope_type(config, kind), close)
        else:
            wrong = compare_states(held, given, close=close)
        if wrong:
            where = f"{name} ({type(module).__name__}) in vLLM"
            raise mismatch_error(next(iter(asked.values())).spec, where, wrong)
    if not reached:
        raise RopeConfigError(f"rope_type: {type(model).__name__} has no rotary module in vLLM")


def _stock_differs(
    module: Any, held: RotaryState, asked: Asked, plain: str, close: float
) -> list[str]:
    """How a module that was given nothing of ours differs from what was asked."""
    method = asked.spec.method
    if is_ours(asked.rope):
        return ["the model's code fixes its rotation"]
    if _AXES in asked.rope and not getattr(module, _AXES, None):
        return ["positions of one axis turn it, and those of this model have several"]
    if "proportional" == plain != method.name:
        return ["dimensions of this family are paired over whole heads"]
    wanted = RotaryState(
        method.compute_inv_freq(2 * len(held.inv_freq)), method.compute_attention_factor()
    )
    return compare_states(held, wanted, close=close)


# Other settings in a running engine.


class RopeWorker:
    """Given to an engine as `worker_extension_cls`: other RoPE settings while it runs.

    `collective_rpc("set_rope", args=(rope,))` replaces the tables of cos and sin in each worker,
    and the engine forgets what it has cached of documents. Then numbers are those of a fresh engine.
    """

    get_model: Callable[[], nn.Module]
    vllm_config: Any

    def set_rope(self, rope: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Let every rotary module turn by other settings.

        Args:
            rope: what `--hf-overrides` takes as `rope_parameters`; None is config.json as it is.

        Returns:
            The fields of `RotaryReport` of each module.

        Raises:
            RopeConfigError: the settings are wrong, or only a new engine can have them.
        """
        from resonance_vllm.vllm.swap import swap

        if not register.cache_info().currsize:
            raise RopeConfigError(
                "set_rope: vLLM did not load the plugin resonance_rope; name it in VLLM_PLUGINS or "
                "install leval-harness again"
            )
        reports = swap(self.get_model(), self.vllm_config, rope)
        return [dataclasses.asdict(each) for each in reports]


def _wrap_collective_rpc(original: Wrapped) -> Wrapped:
    """`EngineCore.collective_rpc`: the engine forgets cached documents before an swap."""

    @functools.wraps(original)
    def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        if method == "set_rope" and not self.reset_prefix_cache(reset_connector=True):
            raise RopeConfigError("set_rope: requests are running; allowed: after the last answer")
        return original(self, method, *args, **kwargs)

    return collective_rpc
