"""What a model's ``config.json`` says and vLLM would not know by itself.

A label that transformers lacks, though vLLM has the model; and the LM head of a draft head without a checkpoint.
Loaded by the worker under any interpreter with a vLLM, so it imports the standard library alone; transformers comes
with vLLM. vLLM reads a model's ``config.json`` through ``AutoConfig``, which must know its ``model_type``; a registered
class does, and no code of the model's folder is run.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

BASES = {"mimo": "Qwen2Config"}
"""``model_type`` -> the class of transformers that its configuration is read as. Further keys are kept as they are."""


def read_config(model: str) -> dict[str, Any]:
    """Of a model's folder; empty for an id of a hub and an unreadable configuration."""
    try:
        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def model_type(model: str) -> str | None:
    """Of a model's folder; None where it cannot be told, and for one that brings its own code."""
    config = read_config(model)
    return config.get("model_type") if "auto_map" not in config else None


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


def keep_own_head(load_format: str | None, drafter: str | None) -> bool:
    """Give an EAGLE-3 head with dummy weights the LM head of its own that its configuration says; whether it was told.

    vLLM learns from the tensors of a checkpoint whether a head has an LM head. A dummy one has no tensors, so it would
    get the target's: 128,256 rows instead of 32,000 for Llama-3.1, four times the bytes in every draft step.
    """
    if load_format != "dummy" or drafter is None:
        return False
    config = read_config(drafter)
    if config.get("draft_vocab_size", config.get("vocab_size")) == config.get("vocab_size"):
        return False
    importlib.import_module("vllm.model_executor.models.llama_eagle3").Eagle3LlamaForCausalLM.has_own_lm_head = True
    return True
