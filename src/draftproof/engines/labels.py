"""Configuration classes for models under a label that transformers lacks, though vLLM has the model.

Loaded by the worker under any interpreter with a vLLM, so it imports the standard library alone; transformers comes
with vLLM. vLLM reads a model's ``config.json`` through ``AutoConfig``, which must know its ``model_type``; a registered
class does, and no code of the model's folder is run.
"""

from __future__ import annotations

import importlib
import json
import os

BASES = {"mimo": "Qwen2Config"}
"""``model_type`` -> the class of transformers that its configuration is read as. Further keys are kept as they are."""


def model_type(model: str) -> str | None:
    """Of a model's folder; None for an id of a hub, an unreadable configuration, and one that brings its own code."""
    try:
        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError):
        return None
    return config.get("model_type") if isinstance(config, dict) and "auto_map" not in config else None


def register(model: str) -> str | None:
    """Make the label of the model's folder known where it is one of ours and still unknown; the label, or None."""
    label = model_type(model)
    if label is None or label not in BASES:
        return None
    transformers = importlib.import_module("transformers")
    known = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    if label in known:
        return None
    base = getattr(transformers, BASES[label])
    transformers.AutoConfig.register(label, type(f"{label.title()}Config", (base,), {"model_type": label}))
    return label
