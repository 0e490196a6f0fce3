"""Which tensors a drafter's file must hold: names, shapes and types by kind, as vLLM's Llama drafters read them. Pure.

vLLM leaves a tensor that is missing as it was initialised, so that a drafter with a wrong name drafts noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import rule
from draftproof.spec import DrafterKind

FLOATS = ("BF16", "F16", "F32")
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""``dtype`` of a configuration -> the name in safetensors."""
MAX_LAYERS = 3
"""Of a draft model that is shipped."""
OFFSETS = "d2t"
"""int64: target id of draft id i = i + offset i."""
MASK = "t2d"
"""bool: whether the draft vocabulary holds the target's id."""
EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
UNREAD = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
"""Ends of names that older exports carry and that vLLM skips."""
EXTENSIONS = (
    *("attention_bias", "mlp_bias", "quantization_config", "norm_before_fc", "fc_norm", "eagle_config"),
    *("num_aux_hidden_states", "target_hidden_size", "parallel_drafting", "ptd_token_id"),
)
"""Keys of a configuration under which the tensors are others than those described here."""
ARCHITECTURES: dict[DrafterKind, tuple[str, ...]] = {
    "eagle": ("LlamaForCausalLM", "EagleLlamaForCausalLM"),
    "eagle3": ("LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"),
    "draft_model": ("LlamaForCausalLM",),
}
"""Architectures of folders whose layout is known, by method."""


class Tensor(NamedTuple):
    """What a tensor must be."""

    dtypes: tuple[str, ...]
    shape: tuple[int, ...]


class Found(Protocol):
    """What a tensor is."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class Dimensions(NamedTuple):
    """The sizes of a Llama model that its tensors' shapes are made of."""

    hidden: int
    intermediate: int
    query: int
    """Heads x size of a head."""
    key_value: int
    """Key and value heads x size of a head."""
    vocabulary: int
    draft_vocabulary: int
    layers: int
    tied: bool
    floats: tuple[str, ...]
    """Types that a weight may have."""


class Layout(NamedTuple):
    """Tensors by name."""

    required: dict[str, Tensor]
    optional: dict[str, Tensor]


def dimensions(config: Mapping[str, Any], where: str, *, floats: tuple[str, ...] = ()) -> Dimensions:
    """Read a Llama configuration; `floats` absent: weights are of the configuration's own type alone."""

    def size(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise rule(f"{where}: {key}", "an integer of at least 1", value, do="correct config.json")
        return value

    heads, hidden, vocabulary = size("num_attention_heads"), size("hidden_size"), size("vocab_size")
    head = size("head_dim", hidden // heads)
    dtype = config.get("dtype", config.get("torch_dtype", "bfloat16"))
    if not floats and dtype not in DTYPES:
        raise rule(f"{where}: dtype", "a type that is known", dtype, DTYPES, "correct config.json")
    return Dimensions(
        hidden=hidden,
        intermediate=size("intermediate_size"),
        query=heads * head,
        key_value=size("num_key_value_heads", heads) * head,
        vocabulary=vocabulary,
        draft_vocabulary=size("draft_vocab_size", vocabulary),
        layers=size("num_hidden_layers"),
        tied=bool(config.get("tie_word_embeddings", False)),
        floats=floats or (DTYPES[dtype],),
    )


def attention(prefix: str, sizes: Dimensions, inputs: int) -> dict[str, Tensor]:
    """Shapes [out, in]; `inputs`: size of what query, key and value are made of."""
    rows = {"q_proj": (sizes.query, inputs), "k_proj": (sizes.key_value, inputs), "v_proj": (sizes.key_value, inputs)}
    rows["o_proj"] = (sizes.hidden, sizes.query)
    return {f"{prefix}self_attn.{name}.weight": Tensor(sizes.floats, shape) for name, shape in rows.items()}


def mlp(prefix: str, sizes: Dimensions) -> dict[str, Tensor]:
    wide, narrow = (sizes.intermediate, sizes.hidden), (sizes.hidden, sizes.intermediate)
    rows = {"gate_proj": wide, "up_proj": wide, "down_proj": narrow}
    return {f"{prefix}mlp.{name}.weight": Tensor(sizes.floats, shape) for name, shape in rows.items()}


def norms(prefix: str, sizes: Dimensions, *names: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}.weight": Tensor(sizes.floats, (sizes.hidden,)) for name in names}


def block(prefix: str, sizes: Dimensions, *norm_names: str, inputs: int | None = None) -> dict[str, Tensor]:
    """A decoder layer with these norms."""
    return {
        **attention(prefix, sizes, inputs or sizes.hidden),
        **mlp(prefix, sizes),
        **norms(prefix, sizes, *norm_names),
    }


def eagle(sizes: Dimensions) -> Layout:
    """The first layer has no norm before its attention; embedding and head are the target's."""
    required = {"fc.weight": Tensor(sizes.floats, (sizes.hidden, 2 * sizes.hidden))}
    for index in range(sizes.layers):
        own = ("post_attention_layernorm",) if index == 0 else ("input_layernorm", "post_attention_layernorm")
        required |= block(f"layers.{index}.", sizes, *own)
    shared = Tensor(sizes.floats, (sizes.vocabulary, sizes.hidden))
    return Layout(required, {"embed_tokens.weight": shared, LM_HEAD: shared})


def eagle3(sizes: Dimensions) -> Layout:
    """Attention reads the embedding beside the hidden state; the head is the drafter's own, of its own vocabulary."""
    required = {
        "fc.weight": Tensor(sizes.floats, (sizes.hidden, 3 * sizes.hidden)),
        **block(
            "midlayer.",
            sizes,
            *("input_layernorm", "hidden_norm", "post_attention_layernorm"),
            inputs=2 * sizes.hidden,
        ),
        **norms("", sizes, "norm"),
        LM_HEAD: Tensor(sizes.floats, (sizes.draft_vocabulary, sizes.hidden)),
    }
    for index in range(1, sizes.layers):
        required |= block(f"layers.{index}.", sizes, "input_layernorm", "hidden_norm", "post_attention_layernorm")
    offsets = {OFFSETS: Tensor(("I64",), (sizes.draft_vocabulary,))}
    optional = {
        MASK: Tensor(("BOOL",), (sizes.vocabulary,)),
        "embed_tokens.weight": Tensor(sizes.floats, (sizes.vocabulary, sizes.hidden)),
    }
    if sizes.draft_vocabulary != sizes.vocabulary:
        return Layout(required | offsets, optional)
    return Layout(required, optional | offsets)


def mtp(sizes: Dimensions) -> Layout:
    """One module: [hidden state, next token's embedding] -> a decoder layer -> the target's own head."""
    prefix = "model.mtp_layers.0."
    return Layout(
        {
            f"{prefix}input_proj.weight": Tensor(sizes.floats, (sizes.hidden, 2 * sizes.hidden)),
            **block(prefix, sizes, "input_layernorm", "post_attention_layernorm"),
            **norms(prefix, sizes, "token_layernorm", "hidden_layernorm", "final_layernorm"),
        },
        {},
    )


def draft_model(sizes: Dimensions, *, embedding: bool) -> Layout:
    """A Llama model; `embedding`: whether the file holds it (a shipped one does not, it is the target's)."""
    required = norms("model.", sizes, "norm")
    for index in range(sizes.layers):
        required |= block(f"model.layers.{index}.", sizes, "input_layernorm", "post_attention_layernorm")
    table = Tensor(sizes.floats, (sizes.vocabulary, sizes.hidden))
    if embedding:
        required[EMBEDDING] = table
    if not sizes.tied:
        required[LM_HEAD] = table
        return Layout(required, {})
    return Layout(required, {LM_HEAD: table} if embedding else {})


def shipped_layout(kind: DrafterKind, sizes: Dimensions) -> Layout:
    """What the file of a trained drafter holds: only what is not the target's."""
    if kind == "eagle":
        return Layout(eagle(sizes).required, {})
    if kind == "eagle3":
        required, optional = eagle3(sizes)
        return Layout(required, {name: tensor for name, tensor in optional.items() if name in (OFFSETS, MASK)})
    return mtp(sizes) if kind == "mtp" else draft_model(sizes, embedding=False)


def folder_layout(kind: DrafterKind, config: Mapping[str, Any], where: str) -> Layout | None:
    """What a folder that vLLM loads holds; None where its architecture or configuration is none that we know."""
    known = ARCHITECTURES.get(kind, ())
    if config.get("model_type") != "llama" or not set(config.get("architectures") or ()) & set(known):
        return None
    if any(config.get(key) for key in EXTENSIONS):
        return None
    sizes = dimensions(config, where, floats=FLOATS)
    if kind == "draft_model":
        return draft_model(sizes, embedding=True)
    return eagle(sizes) if kind == "eagle" else eagle3(sizes)


def check_tensors(where: str, found: Mapping[str, Found], layout: Layout) -> None:
    """Refuse names that are missing or too many, then the first tensor of another type or shape."""
    known = layout.required | layout.optional
    missing = sorted(layout.required.keys() - found.keys())
    unexpected = sorted(name for name in found.keys() - known.keys() if not name.endswith(UNREAD))
    lists = {"missing": missing, "unexpected": unexpected}
    wrong = [f"{word} {', '.join(names)}" for word, names in lists.items() if names]
    if wrong:
        raise rule(
            f"{where}: tensor names",
            "those that the engine reads",
            "; ".join(wrong),
            do="export the drafter's weights with these names",
        )
    for name in sorted(found.keys() & known.keys()):
        tensor, given = known[name], found[name]
        if given.dtype not in tensor.dtypes or given.shape != tensor.shape:
            raise rule(
                f"{where}: tensor {name}",
                f"{' or '.join(tensor.dtypes)} {list(tensor.shape)}",
                f"{given.dtype} {list(given.shape)}",
                do="export it as the configuration says, or correct config.json",
            )


def check_token_map(where: str, offsets: NDArray[np.int64], mask: NDArray[np.bool_] | None, vocabulary: int) -> None:
    """`offsets` [draft vocabulary] must give rising ids of the target, and `mask` [vocabulary] name the same ids."""
    ids = target_ids(offsets)
    falls = np.flatnonzero(np.diff(ids) <= 0)
    do = "derive it again from the draft vocabulary's target ids, sorted"
    if falls.size:
        index = int(falls[0]) + 1
        value = f"{ids[index - 1]}, then {ids[index]} at {index}"
        raise rule(f"{where}: i + {OFFSETS}[i]", "target ids that rise", value, do=do)
    if ids.size and (ids[0] < 0 or ids[-1] >= vocabulary):
        value = f"{ids[0]} to {ids[-1]}"
        raise rule(f"{where}: i + {OFFSETS}[i]", f"target ids below {vocabulary}", value, do=do)
    if mask is not None and not np.array_equal(np.flatnonzero(mask), ids):
        differ = np.setxor1d(np.flatnonzero(mask), ids)
        value = f"{differ.size} ids differ, the first is {differ[0]}"
        raise rule(f"{where}: {MASK}", f"true for the ids of {OFFSETS} alone", value, do=f"derive it from {OFFSETS}")


def target_ids(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Target ids of the draft vocabulary, in its order: [draft vocabulary]."""
    return np.arange(offsets.size, dtype=np.int64) + offsets


def target_mask(offsets: NDArray[np.int64], vocabulary: int) -> NDArray[np.bool_]:
    """``t2d`` [vocabulary] of ``d2t``."""
    mask = np.zeros(vocabulary, dtype=np.bool_)
    mask[target_ids(offsets)] = True
    return mask


def check_vocabulary(where: str, sizes: Dimensions, target_vocabulary: int) -> None:
    """No draft may be a token that the target does not have."""
    for key, found in (("vocab_size", sizes.vocabulary), ("draft_vocab_size", sizes.draft_vocabulary)):
        if found > target_vocabulary:
            raise rule(
                f"{where}: {key}",
                f"at most the target's vocabulary of {target_vocabulary}",
                found,
                do="use a drafter for this target's vocabulary",
            )


def check_shipped_config(where: str, kind: DrafterKind, sizes: Dimensions, target: Dimensions) -> None:
    """A shipped drafter shares the target's embedding, and so its hidden size and vocabulary."""
    check_vocabulary(where, sizes, target.vocabulary)
    for key, found, wanted in (
        ("hidden_size", sizes.hidden, target.hidden),
        ("vocab_size", sizes.vocabulary, target.vocabulary),
    ):
        if found != wanted:
            raise rule(f"{where}: config.{key}", f"the target's {wanted}", found, do="correct the drafter's entry")
    if kind == "draft_model" and sizes.layers > MAX_LAYERS:
        do = "set config.num_hidden_layers in the drafter's entry"
        raise rule(f"{where}: config.num_hidden_layers", f"at most {MAX_LAYERS}", sizes.layers, do=do)
