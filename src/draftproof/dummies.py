"""Models without weights: a committed shape's configuration, which vLLM fills with random numbers.

Speed follows from shapes, not from values: such a model costs what the real one costs, and nothing is downloaded. What
it writes is nobody's answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.building import Recipe, Say
from draftproof.drafters.assembly import FindFolder, copy_tokenizer, write_config
from draftproof.drafters.checks import CONFIG, TOKENIZER, read_json, token_ids
from draftproof.drafters.weights import place
from draftproof.errors import rule
from draftproof.spec import Dummy, Shape, digest

SIZES = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
)
"""Keys of a shape's ``config`` without which transformers would take its own defaults for the size."""
LOADING = ("architectures", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta")
"""The same of its ``loading``, for the kernels that run."""
ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Keys of ``config.json`` that belong to the tokenizer."""


def config_of(shape: Shape, layers: int | None = None) -> dict[str, Any]:
    """The whole ``config.json`` of a shape, with `layers` of its layers (absent: all)."""
    for table, needed in (("config", SIZES), ("loading", LOADING)):
        given: Mapping[str, Any] = getattr(shape, table)
        missing = [key for key in needed if key not in given]
        if missing:
            raise rule(
                f"shape {shape.name!r}: {table}",
                f"given {', '.join(missing)} for a model to be built from it",
                sorted(given),
                do=f"complete shapes/{shape.name}.toml",
            )
    config = {**shape.config, **shape.loading}
    if layers is not None:
        most = config["num_hidden_layers"]
        if not 1 <= layers <= most:
            must_be = f"from 1 to the {most} of shape {shape.name!r}"
            raise rule("dummy.layers", must_be, layers, do="leave it out for all of them")
        config["num_hidden_layers"] = layers
    return config


def target_recipe(name: str, dummy: Dummy, shape: Shape, tokenizer: FindFolder) -> Recipe:
    """The folder of a dummy target: a configuration and a tokenizer. `tokenizer`: finds the folder that has one."""
    config = config_of(shape, dummy.layers)

    def make(model: Path, scratch: Path, say: Say) -> None:
        source = tokenizer(say)
        check_vocabulary(shape, source)
        copy_tokenizer(source, model)
        ends = {key: value for key, value in read_json(source / CONFIG).items() if key in ENDS}
        write_config(model, {**config, **ends})

    inputs = {"shape": shape.name, "config_sha256": digest(config), "tokenizer": dummy.tokenizer}
    origin = f"the shape of {shape.model} and the tokenizer of {dummy.tokenizer}"
    return Recipe(name=name, key_sha256=digest(inputs), origin=origin, inputs=inputs, make=make, holds=CONFIG)


def drafter_recipe(shape: Shape) -> Recipe:
    """The folder of a dummy drafter: a configuration."""
    config = config_of(shape)

    def make(model: Path, scratch: Path, say: Say) -> None:
        write_config(model, config)

    inputs = {"shape": shape.name, "config_sha256": digest(config)}
    return Recipe(
        name=f"{shape.name}-dummy",
        key_sha256=digest(inputs),
        origin=f"the shape of {shape.model}",
        inputs=inputs,
        make=make,
        holds=CONFIG,
    )


def check_vocabulary(shape: Shape, tokenizer: Path) -> None:
    """Every id of the tokenizer needs a row of the embedding."""
    needed = 1 + max(token_ids(tokenizer / TOKENIZER).values(), default=-1)
    if shape.config["vocab_size"] < needed:
        raise rule(
            f"shape {shape.name!r}: vocab_size",
            f"at least the {needed} ids of {place(tokenizer / TOKENIZER)}",
            shape.config["vocab_size"],
            do="take a larger shape, or a tokenizer with fewer tokens (dummy.tokenizer)",
        )
