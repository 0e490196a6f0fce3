"""Bytes of weights and of KV cache, from a configuration and a list of tensors: no file is read here. Pure.

Static bytes are the weights alone (arXiv 2601.11580, Table 2: activations excluded). What a drafter shares with its
target in vLLM is counted once, with the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from draftproof.drafters.layout import (
    DTYPES,
    EMBEDDING,
    EXTENSIONS,
    FLOATS,
    LM_HEAD,
    MASK,
    UNREAD,
    Dimensions,
    Tensor,
    dimensions,
    draft_model,
    eagle,
    eagle3,
    mtp,
)
from draftproof.drafters.weights import ITEM_BYTES
from draftproof.errors import rule

GIB = 2**30
KIB = 2**10
METHODS = ("draft_model", "eagle", "eagle3", "mtp")
"""vLLM's methods whose drafter is a model."""
MODEL_TYPES = ("glm4_moe", "llama", "mimo", "qwen2", "qwen3")
"""Whose weights can be counted without their files."""
QUERY_KEY_VALUE = ("q_proj", "k_proj", "v_proj")
MTP_PREFIXES = ("model.mtp_layers.", "model.mtp.", "mtp.")
SHARED = {
    "eagle": ("embed_tokens.weight", LM_HEAD),
    "eagle3": ("embed_tokens.weight",),
    "mtp": ("embed_tokens.weight", "shared_head.head.weight", LM_HEAD),
}
"""Ends of the names of what a drafter has in common with its target in vLLM. An MTP module has no tables of its own; an
EAGLE head shares those that it lacks, and those that equal the target's. Equal shapes are taken to mean equal numbers,
but for the LM head of EAGLE-3, which is trained."""


class Sized(Protocol):
    """A tensor, in a file or not."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def size_bytes(self) -> int: ...


Tensors = Mapping[str, Sized]


class Expected(NamedTuple):
    """A tensor that a configuration implies."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Footprint(NamedTuple):
    """What a model takes, over all GPUs together."""

    static_bytes: int
    """Weights."""
    kv_bytes_per_token: int

    def plus(self, other: Footprint) -> Footprint:
        return Footprint(self.static_bytes + other.static_bytes, self.kv_bytes_per_token + other.kv_bytes_per_token)


NOTHING = Footprint(0, 0)
"""Of a drafter that is no model: n-gram lookup, or a proposer of our own."""


# --- KV cache ---------------------------------------------------------------------------------------------------------


def kv_bytes(layers: int, key_value: int, item_bytes: int, tokens: int = 1) -> int:
    """KV cache of that many tokens, in bytes.

    2 (key and value) x layers x `key_value` (heads x size of a head) x bytes of a number: arXiv 2601.11580, A.3. Every
    layer keeps every token; the padding of blocks is left out.
    """
    return 2 * layers * key_value * item_bytes * tokens


def mtp_modules(config: Mapping[str, Any]) -> int:
    """Multi-token-prediction modules in a model's own files; each is a layer with its own KV cache."""
    modules = config.get("num_nextn_predict_layers")
    return modules if isinstance(modules, int) else 0


def check_attention(config: Mapping[str, Any], where: str) -> None:
    """The formula holds where every layer keeps the keys and values of every token."""
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    window = config.get("sliding_window") and config.get("use_sliding_window", True)
    found = "kv_lora_rank" if config.get("kv_lora_rank") else "sliding_window" if window else ", ".join(sorted(kinds))
    if found:
        raise rule(
            f"{where}: attention",
            "full, with a key and a value for every token and layer",
            found,
            do="use vLLM's own log line on the KV cache for this model",
        )


# --- weights that a configuration implies -----------------------------------------------------------------------------


def biased(config: Mapping[str, Any]) -> bool:
    """Whether query, key and value have biases."""
    return config.get("model_type") in ("qwen2", "mimo") or bool(config.get("attention_bias"))


def normed(config: Mapping[str, Any]) -> bool:
    """Whether query and key have norms."""
    return config.get("model_type") == "qwen3" or bool(config.get("use_qk_norm"))


def layer_extras(prefix: str, config: Mapping[str, Any], sizes: Dimensions) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What a layer's attention has beyond Llama's."""
    attention = f"{prefix}self_attn."
    if biased(config):
        for name, size in zip(QUERY_KEY_VALUE, (sizes.query, sizes.key_value, sizes.key_value), strict=True):
            yield f"{attention}{name}.bias", (size,)
        if config.get("model_type") == "llama":
            yield f"{attention}o_proj.bias", (sizes.hidden,)
    if normed(config):
        head = sizes.query // config["num_attention_heads"]
        yield f"{attention}q_norm.weight", (head,)
        yield f"{attention}k_norm.weight", (head,)


def experts(prefix: str, config: Mapping[str, Any], where: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What stands in the place of an MLP: a router, routed experts (gates, ups and downs stacked), and shared ones."""

    def size(key: str) -> int:
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise rule(f"{where}: {key}", "an integer of at least 1", value, do="correct the configuration")
        return value

    hidden, inner, routed = size("hidden_size"), size("moe_intermediate_size"), size("n_routed_experts")
    yield f"{prefix}mlp.gate.weight", (routed, hidden)
    yield f"{prefix}mlp.gate.e_score_correction_bias", (routed,)
    for name in ("gate_proj", "up_proj", "down_proj"):
        yield f"{prefix}mlp.experts.{name}", (routed, inner, hidden)
        yield f"{prefix}mlp.shared_experts.{name}.weight", (size("n_shared_experts") * inner, hidden)


def mend_layer(rows: dict[str, Tensor], prefix: str, config: Mapping[str, Any], sizes: Dimensions, where: str) -> None:
    """Make the Llama layer with this prefix one of the configuration's model type."""
    new = dict(layer_extras(prefix, config, sizes))
    index = int(prefix.split(".")[-2])
    dense = "layers." in prefix and "mtp" not in prefix and index < config.get("first_k_dense_replace", 0)
    if config.get("model_type") == "glm4_moe" and not dense:
        for name in ("gate_proj", "up_proj", "down_proj"):
            del rows[f"{prefix}mlp.{name}.weight"]
        new |= dict(experts(prefix, config, where))
    rows |= {name: Tensor(sizes.floats, shape) for name, shape in new.items()}


def model_tensors(config: Mapping[str, Any], dtype: str, where: str) -> dict[str, Expected]:
    """The tensors of a whole model, its MTP modules included, as its configuration implies them."""
    check_countable(config, where, MODEL_TYPES, ("quantization_config", "mlp_bias"))
    sizes = dimensions(config, where, floats=(DTYPES[dtype],))
    rows = dict(draft_model(sizes, embedding=True).required)
    prefixes = [f"model.layers.{index}." for index in range(sizes.layers)]
    for module in range(mtp_modules(config)):
        prefix = f"model.mtp_layers.{module}."
        rows |= {name.replace("model.mtp_layers.0.", prefix): tensor for name, tensor in mtp(sizes).required.items()}
        prefixes.append(prefix)
    for prefix in prefixes:
        mend_layer(rows, prefix, config, sizes, where)
    return {name: Expected(tensor.dtypes[0], tensor.shape) for name, tensor in rows.items()}


def head_tensors(method: str, config: Mapping[str, Any], dtype: str, where: str) -> dict[str, Expected]:
    """The tensors of an EAGLE or EAGLE-3 head that are its own."""
    check_countable(config, where, ("llama",), EXTENSIONS)
    sizes = dimensions(config, where, floats=(DTYPES[dtype],))
    rows = (eagle(sizes) if method == "eagle" else eagle3(sizes)).required
    return {name: Expected(tensor.dtypes[0], tensor.shape) for name, tensor in rows.items()}


def check_countable(config: Mapping[str, Any], where: str, types: tuple[str, ...], without: tuple[str, ...]) -> None:
    """Refuse configurations whose weights these rules do not describe; headers of files need no rules."""
    do = "put the model's safetensors files on this machine: their headers are read then"
    if config.get("model_type") not in types:
        raise rule(f"{where}: model_type", "a type whose weights can be counted", config.get("model_type"), types, do)
    for key in without:
        if config.get(key):
            raise rule(f"{where}: {key}", "absent where weights are counted", config[key], do=do)


# --- what vLLM holds of it --------------------------------------------------------------------------------------------


def is_mtp(name: str, layers: int) -> bool:
    """Whether a tensor is part of an MTP module: by its name, or as a layer behind the model's own."""
    if name.startswith(MTP_PREFIXES):
        return True
    parts = name.split(".")
    return parts[:2] == ["model", "layers"] and len(parts) > 2 and parts[2].isdigit() and int(parts[2]) >= layers


def target_part(tensors: Tensors, config: Mapping[str, Any], layers: int) -> dict[str, Sized]:
    """What vLLM loads of a model without speculation: no MTP modules, and a tied LM head once."""
    tied = bool(config.get("tie_word_embeddings")) and EMBEDDING in tensors
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not (is_mtp(name, layers) or name.endswith(UNREAD) or (tied and name == LM_HEAD))
    }


def drafter_part(method: str, tensors: Tensors, config: Mapping[str, Any], table: tuple[int, int]) -> dict[str, Sized]:
    """What a drafter adds to the weights of its target, whose embedding is `table` = [vocabulary, hidden size].

    `config` and `tensors`: those of the drafter's own folder, for ``mtp`` those of the target's.
    """
    if method == "draft_model":
        return target_part(tensors, config, config["num_hidden_layers"])
    if method == "mtp":
        own = {name: tensor for name, tensor in tensors.items() if is_mtp(name, config["num_hidden_layers"])}
    else:
        own = {name: tensor for name, tensor in tensors.items() if name != MASK and not name.endswith(UNREAD)}
    return {name: tensor for name, tensor in own.items() if not shares(method, name, tensor, table)}


def shares(method: str, name: str, tensor: Sized, table: tuple[int, int]) -> bool:
    """Whether a drafter's tensor is the target's own."""
    return name.endswith(SHARED[method]) and tensor.shape == table


def loaded_bytes(tensors: Tensors, dtype: str) -> int:
    """Bytes of these tensors once loaded: floats in the model's `dtype` whatever the file's, all else as stored."""
    item = ITEM_BYTES[DTYPES[dtype]]
    return sum(
        math.prod(tensor.shape) * item if tensor.dtype in FLOATS else tensor.size_bytes for tensor in tensors.values()
    )


def target_footprint(config: Mapping[str, Any], tensors: Tensors, dtype: str, where: str) -> Footprint:
    """What a target takes without speculation."""
    check_attention(config, where)
    sizes = dimensions(config, where, floats=FLOATS)
    part = target_part(tensors, config, sizes.layers)
    return Footprint(loaded_bytes(part, dtype), kv_bytes(sizes.layers, sizes.key_value, ITEM_BYTES[DTYPES[dtype]]))


def drafter_footprint(
    method: str, config: Mapping[str, Any], tensors: Tensors, dtype: str, table: tuple[int, int], where: str
) -> Footprint:
    """What a drafter adds to its target; `dtype`: the target's, which vLLM gives its drafter as well."""
    check_attention(config, where)
    sizes = dimensions(config, where, floats=FLOATS)
    part = drafter_part(method, tensors, config, table)
    layers = sizes.layers if method != "mtp" else mtp_modules(config)
    if not part or layers == 0:
        raise rule(
            f"{where}: weights",
            f"those of a drafter for the method {method!r}",
            "none",
            do="use a variant whose drafter this is",
        )
    return Footprint(loaded_bytes(part, dtype), kv_bytes(layers, sizes.key_value, ITEM_BYTES[DTYPES[dtype]]))


# --- what is left for tokens ------------------------------------------------------------------------------------------


def tokens_that_fit(budget_bytes: float, footprint: Footprint) -> int:
    """Tokens whose KV cache fits into what the weights leave of the budget; activations are not taken off."""
    return max(0, math.floor((budget_bytes - footprint.static_bytes) / footprint.kv_bytes_per_token))


def lost_share(tokens_without: int, tokens_with: int) -> float | None:
    """The part of the target's KV capacity that speculation takes, from 0 to 1; None where nothing fits anyway."""
    return 1 - tokens_with / tokens_without if tokens_without else None
