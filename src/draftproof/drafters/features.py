"""One pass of the target over all texts: the states that heads read, and the tokens that the target would choose.

All drafters are trained from these files; the target is not run again. A state is kept in bfloat16, the precision of
the engine, and read through a memory map, since all of them together are larger than the memory of a small machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from draftproof.building import Say
from draftproof.drafters.corpus import Text

FINAL = 3
"""Index of the last state; the ones before it are the auxiliary states of EAGLE-3."""
STATES = 4
ROWS_TOKENS = 4096
"""Tokens that the target sees at once."""


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """``index.json``: what lies where in the arrays; a text of n tokens takes n rows."""

    offsets: list[int]
    """First row of each text; one more at the end."""
    prompt_tokens: list[int]
    kinds: list[str]
    hidden_size: int


@dataclass(frozen=True)
class Features:
    """Arrays over all tokens of all texts, text after text."""

    index: Index
    tokens: np.ndarray[Any, np.dtype[np.int32]]
    top: np.ndarray[Any, np.dtype[np.int32]]
    """The target's greedy choice *after* each token."""
    states: np.ndarray[Any, np.dtype[np.uint16]]
    """[rows, 4, hidden], bfloat16 bits: the inputs of layers 2, n/2 and n-3, and the last layer's output before the
    final norm."""

    def rows(self, text: int) -> slice:
        return slice(self.index.offsets[text], self.index.offsets[text + 1])

    def state(self, rows: slice, which: slice) -> torch.Tensor:
        """[tokens, states * hidden] of a text, in bfloat16."""
        part = np.ascontiguousarray(self.states[rows, which])
        return torch.from_numpy(part.view(np.int16)).view(torch.bfloat16).flatten(1)


def auxiliary_layers(layers: int) -> tuple[int, int, int]:
    """The layers whose inputs vLLM hands to an EAGLE-3 head (``get_eagle3_default_aux_hidden_state_layers``)."""
    return 2, layers // 2, layers - 3


def open_features(folder: Path) -> Features | None:
    """The finished features of `folder`; None where there are none (the index is written last)."""
    path = folder / "index.json"
    if not path.is_file():
        return None
    index = msgspec.json.decode(path.read_bytes(), type=Index)
    rows = index.offsets[-1]
    return Features(
        index,
        np.fromfile(folder / "tokens.bin", dtype=np.int32),
        np.fromfile(folder / "top.bin", dtype=np.int32),
        np.memmap(folder / "states.bin", np.uint16, "r", shape=(rows, STATES, index.hidden_size)),
    )


def write_features(texts: list[Text], model: Any, folder: Path, say: Say) -> Features:
    """Run `model` (a transformers Llama) over `texts` and leave what it saw in `folder`.

    Texts of like length run together; a causal model does not see what stands after a token, so padding needs no mask.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ids = [[*text.prompt, *text.answer] for text in texts]
    offsets = [0, *np.cumsum([len(row) for row in ids]).tolist()]
    hidden = model.config.hidden_size
    tokens = np.concatenate([np.array(row, dtype=np.int32) for row in ids])
    tokens.tofile(folder / "tokens.bin")
    top = np.zeros(offsets[-1], dtype=np.int32)
    states = np.memmap(folder / "states.bin", np.uint16, "w+", shape=(offsets[-1], STATES, hidden))
    order = sorted(range(len(ids)), key=lambda text: len(ids[text]))
    device = model.device
    seen: dict[int, torch.Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda _, given, at=at: seen.__setitem__(at, given[0]))
        for at, layer in enumerate(
            [*(model.model.layers[i] for i in auxiliary_layers(len(model.model.layers))), model.model.norm]
        )
    ]
    done = 0
    try:
        with torch.inference_mode():
            while done < len(order):
                group = group_of(order[done:], ids)
                batch = torch.zeros(len(group), len(ids[group[-1]]), dtype=torch.long)
                for row, text in enumerate(group):
                    batch[row, : len(ids[text])] = torch.tensor(ids[text])
                last = model.model(batch.to(device), use_cache=False).last_hidden_state
                choice = model.lm_head(last).argmax(-1).to("cpu", torch.int32).numpy()
                stack = torch.stack([seen[at] for at in range(STATES)], 2).to("cpu", torch.bfloat16)
                bits = stack.view(torch.int16).numpy().view(np.uint16)
                for row, text in enumerate(group):
                    place = slice(offsets[text], offsets[text + 1])
                    top[place] = choice[row, : len(ids[text])]
                    states[place] = bits[row, : len(ids[text])]
                done += len(group)
                say(f"features of {done}/{len(order)} texts")
    finally:
        for hook in hooks:
            hook.remove()
    states.flush()
    top.tofile(folder / "top.bin")
    index = Index(
        offsets=offsets,
        prompt_tokens=[len(text.prompt) for text in texts],
        kinds=[text.kind for text in texts],
        hidden_size=hidden,
    )
    temporary = folder / f"index.{os.getpid()}.part"
    temporary.write_bytes(msgspec.json.encode(index))
    temporary.replace(folder / "index.json")
    found = open_features(folder)
    assert found is not None
    return found


def group_of(order: list[int], ids: list[list[int]]) -> list[int]:
    """The next texts, shortest first, that fit `ROWS_TOKENS` together (one at least)."""
    group: list[int] = []
    for text in order:
        if group and (len(group) + 1) * len(ids[text]) > ROWS_TOKENS:
            break
        group.append(text)
    return group
