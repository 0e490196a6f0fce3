"""From a trained drafter's file to folders that vLLM loads: what is the target's is joined in again."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.building import WEIGHTS, Recipe, Say, file_sha256, is_own
from draftproof.drafters.checks import CONFIG, check_shipped, read_json
from draftproof.drafters.layout import EMBEDDING, LM_HEAD, MASK, OFFSETS, Dimensions, dimensions, target_mask
from draftproof.drafters.weights import Made, Stored, place, read_folder, write_file, zeros
from draftproof.errors import rule
from draftproof.spec import Derived, TrainedDrafter, digest

RELABELLED = {
    "architectures": ["MiMoForCausalLM"],
    "model_type": "mimo",
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
}
"""A Llama model as a MiMo model: the same but for biases of query, key and value, and a module that predicts on."""
COPIED_SUFFIXES = (".json", ".jinja", ".txt", ".model")
"""Of tokenizers, chat templates and generation settings."""

FindFolder = Callable[[Say], Path]
"""Finds the folder of the target, and builds it where it must."""


def inputs_of(entry: TrainedDrafter) -> dict[str, str]:
    return {
        "drafter": entry.name,
        "kind": entry.kind,
        "drafter_sha256": entry.weights_sha256,
        "target_sha256": entry.target_sha256,
        "config_sha256": digest(entry.config),
    }


def drafter_recipe(entry: TrainedDrafter, weights: Path, target: FindFolder) -> Recipe:
    """The folder of an ``eagle``, ``eagle3`` or ``draft_model`` drafter."""

    def make(model: Path, scratch: Path, say: Say) -> None:
        make_drafter(entry, weights, target(say), model)

    inputs = inputs_of(entry)
    origin = f"{place(weights)} and target {entry.target}"
    return Recipe(name=entry.name, key_sha256=digest(inputs), origin=origin, inputs=inputs, make=make)


def derived_recipe(name: str, derived: Derived, entry: TrainedDrafter, weights: Path, target: FindFolder) -> Recipe:
    """The folder of a target that its ``mtp`` drafter is part of."""

    def make(model: Path, scratch: Path, say: Say) -> None:
        make_derived(entry, weights, target(say), model)

    inputs = {"target": derived.target, **inputs_of(entry)}
    return Recipe(
        name=name,
        key_sha256=digest({**inputs, "weights_sha256": derived.weights_sha256}),
        origin=f"target {derived.target} and {place(weights)}",
        inputs=inputs,
        make=make,
        weights_sha256=derived.weights_sha256,
        weights_field="derived.weights_sha256",
        weights_advice="correct the target's entry",
    )


def make_drafter(entry: TrainedDrafter, weights: Path, target: Path, model: Path) -> None:
    """Fill the folder `model`: EAGLE heads share embedding and head in the engine, a draft model is whole."""
    target_config = read_json(target / CONFIG)
    config = {**target_config, **entry.config}
    tensors: dict[str, Stored | Made] = dict(check_shipped(entry, weights, target_config))
    if entry.kind == "eagle3" and MASK not in tensors:
        tensors |= mask_of(tensors, config["vocab_size"])
    if entry.kind == "draft_model":
        tensors[EMBEDDING] = target_tensor(read_folder(target), EMBEDDING, target)
        copy_tokenizer(target, model)
    write_file(model / WEIGHTS, tensors)
    write_config(model, config)


def mask_of(tensors: Mapping[str, Stored | Made], vocabulary: int) -> dict[str, Made]:
    """``t2d`` [vocabulary] of ``d2t``; nothing where the draft vocabulary is the target's."""
    offsets = tensors.get(OFFSETS)
    if not isinstance(offsets, Stored):
        return {}
    mask = target_mask(np.frombuffer(offsets.read(), dtype="<i8"), vocabulary)
    return {MASK: Made("BOOL", (vocabulary,), mask.tobytes())}


def make_derived(entry: TrainedDrafter, weights: Path, target: Path, model: Path) -> None:
    """Fill the folder `model`: the target relabelled, with biases of zero, a head of its own, and the module."""
    target_config = read_json(target / CONFIG)
    check_relabelled(target_config, target)
    sizes = dimensions(target_config, place(target / CONFIG))
    tensors: dict[str, Stored | Made] = dict(read_folder(target))
    tensors.setdefault(LM_HEAD, target_tensor(tensors, EMBEDDING, target))
    for index in range(sizes.layers):
        tensors |= biases(f"model.layers.{index}.", sizes)
    tensors |= check_shipped(entry, weights, target_config)
    tensors |= biases("model.mtp_layers.0.", sizes)
    write_file(model / WEIGHTS, tensors)
    write_config(model, {**target_config, **RELABELLED, **entry.config})
    copy_tokenizer(target, model)


def derived_sha256(entry: TrainedDrafter, weights: Path, target: Path) -> str:
    """What a derived target's entry must state for this drafter; `target`: the folder of the target underneath."""
    with tempfile.TemporaryDirectory() as folder:
        make_derived(entry, weights, target, Path(folder))
        return file_sha256(Path(folder) / WEIGHTS)


def check_relabelled(config: Mapping[str, Any], target: Path) -> None:
    """Only a Llama model without biases is a MiMo model under another name."""
    found = "attention_bias" if config.get("attention_bias") else config.get("model_type")
    if found != "llama":
        raise rule(
            "derived.target", "a Llama model without attention biases", found, do=f"see {place(target / CONFIG)}"
        )


def biases(prefix: str, sizes: Dimensions) -> dict[str, Made]:
    """Zero biases of a layer's query, key and value."""
    rows = {"q_proj": sizes.query, "k_proj": sizes.key_value, "v_proj": sizes.key_value}
    return {f"{prefix}self_attn.{name}.bias": zeros(sizes.floats[0], size) for name, size in rows.items()}


def target_tensor(tensors: Mapping[str, Stored | Made], name: str, target: Path) -> Stored | Made:
    if name not in tensors:
        raise rule("target", f"a model that holds {name}", place(target), do="use the target that the entry names")
    return tensors[name]


def copy_tokenizer(target: Path, model: Path) -> None:
    """All that an engine reads of a target beside its weights and its configuration."""
    for path in sorted(target.iterdir()):
        wanted = path.suffix in COPIED_SUFFIXES and not path.name.endswith(".index.json")
        if wanted and path.is_file() and path.name != CONFIG and not is_own(path.name):
            shutil.copyfile(path, model / path.name)


def write_config(model: Path, config: Mapping[str, Any]) -> None:
    (model / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
