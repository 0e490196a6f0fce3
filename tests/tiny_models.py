"""Models of a few hundred numbers, as files: a target, and trained drafters of each kind for it."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.catalog import Catalog
from draftproof.drafters.layout import Layout, Tensor, dimensions, draft_model, shipped_layout
from draftproof.drafters.weights import ITEM_BYTES, Made, write_file
from draftproof.spec import Derived, Drafter, DrafterKind, Target, TrainedDrafter, Variant

KINDS: tuple[DrafterKind, ...] = ("eagle", "eagle3", "mtp", "draft_model")
VOCABULARY, DRAFT_VOCABULARY = 16, 6
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "num_hidden_layers": 4,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
}
OWN_CONFIG: dict[DrafterKind, dict[str, Any]] = {
    "eagle": {"num_hidden_layers": 1},
    "eagle3": {
        "num_hidden_layers": 1,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DRAFT_VOCABULARY,
        "tie_word_embeddings": False,
    },
    "mtp": {},
    "draft_model": {"num_hidden_layers": 2},
}
IDS = (0, 2, 3, 7, 11, 15)
"""Target ids of the draft vocabulary."""
TOKENS = {f"token{index}": index for index in range(VOCABULARY)}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def noise(tensor: Tensor, seed: str) -> Made:
    """A tensor of the described type and shape, of bytes that `seed` gives."""
    size_bytes = math.prod(tensor.shape) * ITEM_BYTES[tensor.dtypes[0]]
    return Made(tensor.dtypes[0], tensor.shape, random.Random(seed).randbytes(size_bytes))


def offsets(ids: tuple[int, ...] = IDS) -> Made:
    """``d2t`` of these target ids."""
    values = np.array(ids, dtype="<i8") - np.arange(len(ids))
    return Made("I64", (len(ids),), values.astype("<i8").tobytes())


def mask(ids: tuple[int, ...] = IDS) -> Made:
    """``t2d`` of these target ids."""
    return Made("BOOL", (VOCABULARY,), bytes(index in ids for index in range(VOCABULARY)))


def fill(layout: Layout) -> dict[str, Made]:
    tensors = {name: noise(tensor, name) for name, tensor in layout.required.items()}
    if "d2t" in tensors:
        tensors["d2t"] = offsets()
    return tensors


def shipped_tensors(kind: DrafterKind) -> dict[str, Made]:
    """What a drafter's file holds."""
    return fill(shipped_layout(kind, dimensions({**CONFIG, **OWN_CONFIG[kind]}, kind)))


def tokenizer(tokens: Mapping[str, int] = TOKENS) -> str:
    return json.dumps({"model": {"vocab": dict(tokens)}, "added_tokens": [{"id": 0, "content": "token0"}]})


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Made]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer(), encoding="utf-8")
    return folder


def llama_tensors(config: Mapping[str, Any]) -> dict[str, Made]:
    """All tensors of a Llama model."""
    return fill(draft_model(dimensions(config, "tiny"), embedding=True))


class Shop:
    """A folder with target `tiny`, a drafter of each kind, target `tiny-mtp` derived from it, and their variants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.target_folder = write_model(folder / "tiny", CONFIG, llama_tensors(CONFIG))
        self.target_sha256 = sha256(self.target_folder / "model.safetensors")
        self.drafters = {kind: self.write_drafter(kind) for kind in KINDS}
        self.derived_sha256 = "0" * 64

    def write_drafter(
        self, kind: DrafterKind, tensors: Mapping[str, Made] | None = None, **fields: Any
    ) -> TrainedDrafter:
        """Write a drafter's file and make its entry; `tensors` replace those that it must hold."""
        weights = self.folder / f"tiny-{kind}.safetensors"
        write_file(weights, shipped_tensors(kind) if tensors is None else tensors)
        given: dict[str, Any] = {
            "name": f"tiny-{kind}",
            "title": kind,
            "kind": kind,
            "target": "tiny",
            "target_sha256": self.target_sha256,
            "weights": weights.name,
            "weights_sha256": sha256(weights),
            "max_k": 8,
            "config": OWN_CONFIG[kind],
        }
        return TrainedDrafter(**(given | fields))

    def target(self, name: str = "tiny") -> Target:
        if name == "tiny":
            return Target(name=name, title=name, source="path", model="tiny")
        derived = Derived(target="tiny", drafter="tiny-mtp", weights_sha256=self.derived_sha256)
        return Target(name="tiny-mtp", title=name, source="derived", model=name, derived=derived)

    def variant(self, kind: DrafterKind, k: int = 3, **fields: Any) -> Variant:
        target = "tiny-mtp" if kind == "mtp" else "tiny"
        drafter = Drafter(**({"source": "trained", "model": f"tiny-{kind}"} | fields))
        return Variant(name=kind, title=kind, method=kind, k=k, drafters={target: drafter})

    @property
    def catalog(self) -> Catalog:
        folders = {f"drafters/{entry.name}": self.folder for entry in self.drafters.values()}
        return Catalog(
            variants={kind: self.variant(kind) for kind in KINDS},
            targets={name: self.target(name) for name in ("tiny", "tiny-mtp")},
            workloads={},
            hardware={},
            studies={},
            thresholds={},
            folders={**folders, "targets/tiny": self.folder, **{f"variants/{kind}": self.folder for kind in KINDS}},
            drafters={entry.name: entry for entry in self.drafters.values()},
        )
