"""What makes a drafter unfit for its target, found before an engine starts: names, shapes, hashes, vocabularies, k."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from draftproof.building import MANIFEST, WEIGHTS, file_sha256, read_manifest
from draftproof.drafters.layout import (
    EXTENSIONS,
    FLOATS,
    MASK,
    OFFSETS,
    check_shipped_config,
    check_tensors,
    check_token_map,
    check_vocabulary,
    dimensions,
    folder_layout,
    shipped_layout,
)
from draftproof.drafters.weights import Stored, place, read_folder, read_header
from draftproof.errors import rule
from draftproof.spec import DrafterKind, Target, TrainedDrafter

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
HETEROGENEOUS = "use_heterogeneous_vocab"
"""Option of ``speculative_config`` with which vLLM takes a draft model of another vocabulary."""


def read_json(path: Path) -> dict[str, Any]:
    """A model's JSON file: an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise rule(path.name, "a readable JSON file", place(path), do=f"{error}; restore the file") from error
    if not isinstance(value, dict):
        raise rule(path.name, "a JSON object", place(path), do="restore the file")
    return value


def check_k(entry: TrainedDrafter, k: int | None) -> None:
    if k is not None and k > entry.max_k:
        raise rule(
            "k",
            f"at most {entry.max_k}",
            k,
            do=f"drafter {entry.name!r} supports no more; lower k in the variant's entry",
        )


def target_sha256(target: Target, folder: Path) -> str:
    """SHA-256 of the target's weights: its entry's, else the built folder's own record, else the file's."""
    if target.weights_sha256:
        return target.weights_sha256
    if (folder / MANIFEST).is_file():
        return read_manifest(folder)[0].files[WEIGHTS].sha256
    if not (folder / WEIGHTS).is_file():
        raise rule(
            f"target {target.name!r}",
            f"a folder that holds {WEIGHTS}",
            place(folder),
            do="a trained drafter is tied to the weights of its target, and these cannot be told",
        )
    return file_sha256(folder / WEIGHTS)


def check_target(entry: TrainedDrafter, target: Target, folder: Path) -> None:
    """A drafter serves the very weights that it was trained on."""
    check_stated(entry, target.name, target_sha256(target, folder))


def check_stated(entry: TrainedDrafter, target: str, found: str) -> None:
    """`found`: SHA-256 of the target's weights."""
    if found != entry.target_sha256:
        raise rule(
            "target_sha256",
            f"that of the weights of target {target!r}, {found!r}",
            entry.target_sha256,
            do=f"drafter {entry.name!r} was trained on other weights; train it again on these",
        )


def read_shipped(entry: TrainedDrafter, weights: Path) -> dict[str, Stored]:
    """The tensors of a trained drafter's file, once it is whole and of the stated hash."""
    if not weights.is_file():
        raise rule("weights", "a file beside the drafter's entry", place(weights), do="restore it, or train again")
    tensors = read_header(weights)
    found = file_sha256(weights)
    if found != entry.weights_sha256:
        raise rule(
            "weights_sha256",
            f"the SHA-256 of {place(weights)}, {found!r}",
            entry.weights_sha256,
            do="restore the file, or correct the drafter's entry",
        )
    return tensors


def check_shipped(entry: TrainedDrafter, weights: Path, target_config: Mapping[str, Any]) -> dict[str, Stored]:
    """The tensors of a trained drafter's file, once they are its own and what its kind must hold."""
    tensors = read_shipped(entry, weights)
    where = f"drafter {entry.name!r}"
    sizes = dimensions({**target_config, **entry.config}, where)
    check_shipped_config(where, entry.kind, sizes, dimensions(target_config, f"target {entry.target!r}"))
    check_tensors(place(weights), tensors, shipped_layout(entry.kind, sizes))
    check_map(place(weights), tensors, sizes.vocabulary)
    return tensors


def check_map(where: str, tensors: Mapping[str, Stored], vocabulary: int) -> None:
    """The draft vocabulary's ids, where the tensors hold any."""
    if OFFSETS in tensors:
        offsets = np.frombuffer(tensors[OFFSETS].read(), dtype="<i8")
        mask = np.frombuffer(tensors[MASK].read(), dtype=np.bool_) if MASK in tensors else None
        check_token_map(where, offsets, mask, vocabulary)


def check_folder(method: str, folder: Path, target: Path | None, options: Mapping[str, Any]) -> None:
    """A drafter's folder that is not ours: whole files always; tensors and vocabularies where the method is known.

    `target`: the folder of the target, absent where it is not on this machine. `options`: of ``speculative_config``.
    """
    tensors = read_folder(folder)
    if method not in get_args(DrafterKind):
        return
    kind = cast("DrafterKind", method)
    config, where = read_json(folder / CONFIG), place(folder / CONFIG)
    target_config = read_json(target / CONFIG) if target else {}
    if tensors and kind != "mtp":
        check_known(kind, folder, config, tensors)
    if kind == "draft_model" and not options.get(HETEROGENEOUS):
        check_same_vocabulary(where, config, target_config)
        if target:
            check_tokenizers(folder, target)
    elif kind in ("eagle", "eagle3"):
        check_head(where, config, target_config)


def check_known(kind: DrafterKind, folder: Path, config: Mapping[str, Any], tensors: dict[str, Stored]) -> None:
    """The tensors of a folder whose architecture is known."""
    layout = folder_layout(kind, config, place(folder / CONFIG))
    if layout is None:
        return
    if kind == "eagle3":  # vLLM takes either name
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    check_tensors(folder.name, tensors, layout)
    check_map(folder.name, tensors, config["vocab_size"])


def check_same_vocabulary(where: str, config: Mapping[str, Any], target_config: Mapping[str, Any]) -> None:
    found, wanted = config.get("vocab_size"), target_config.get("vocab_size")
    if None not in (found, wanted) and found != wanted:
        raise rule(
            f"{where}: vocab_size",
            f"the target's {wanted}",
            found,
            do=f"use a draft model of the target's family, or set {HETEROGENEOUS} = true in the drafter's options",
        )


def check_head(where: str, config: Mapping[str, Any], target_config: Mapping[str, Any]) -> None:
    """A head reads the target's states and embedding, and drafts ids of the target."""
    if any(config.get(key) for key in EXTENSIONS) or "vocab_size" not in config or "vocab_size" not in target_config:
        return
    check_vocabulary(where, dimensions(config, where, floats=FLOATS), target_config["vocab_size"])
    found, wanted = config["hidden_size"], target_config.get("hidden_size")
    if wanted is not None and found != wanted:
        raise rule(f"{where}: hidden_size", f"the target's {wanted}", found, do="use a head for this target")


def check_tokenizers(folder: Path, target: Path) -> None:
    """Drafts are token ids: each id must mean the same in both, where both folders hold a tokenizer."""
    if not ((folder / TOKENIZER).is_file() and (target / TOKENIZER).is_file()):
        return
    own, theirs = token_ids(folder / TOKENIZER), token_ids(target / TOKENIZER)
    differ = sorted(token for token in own.keys() | theirs.keys() if own.get(token) != theirs.get(token))
    if differ:
        first = differ[0]
        raise rule(
            f"{place(folder / TOKENIZER)}: vocabulary",
            "the target's own",
            f"{len(differ)} tokens differ, such as {first!r}: {own.get(first)}, the target's {theirs.get(first)}",
            do=f"use a draft model with the target's tokenizer, or set {HETEROGENEOUS} = true in the drafter's options",
        )


def token_ids(path: Path) -> dict[str, int]:
    """Token -> id of a ``tokenizer.json``, added tokens included."""
    table = read_json(path)
    try:
        vocabulary = table["model"]["vocab"]
        # Unigram models list [token, score] pairs in the order of their ids.
        ids = vocabulary if isinstance(vocabulary, dict) else {row[0]: i for i, row in enumerate(vocabulary)}
        return {**ids, **{row["content"]: row["id"] for row in table.get("added_tokens") or ()}}
    except (KeyError, TypeError, IndexError) as error:
        raise rule(TOKENIZER, "a tokenizer with a vocabulary", place(path), do="restore the file") from error
