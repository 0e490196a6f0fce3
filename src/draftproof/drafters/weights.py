"""Safetensors files without torch: their headers, the bytes of a tensor, and new files joined from old ones."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from draftproof.errors import rule

ITEM_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8, "F64": 8}
"""Bytes of one element, of the types that we write."""
LENGTH_BYTES = 8
"""A file begins with the length of its header."""
COPY_BYTES = 1 << 22
NUMBERED = re.compile(r"(.+)-(\d+)-of-(\d+)\.safetensors")
"""The name of one of several files of a model."""
INDEX = "model.safetensors.index.json"
"""Of a model in several files: which of them holds which tensor."""


class Stored(NamedTuple):
    """A tensor in a file."""

    dtype: str
    """As safetensors writes it: ``BF16``, ``I64``, ``BOOL``, ... ."""
    shape: tuple[int, ...]
    path: Path
    start: int
    """Of its data, in bytes from the file's begin."""
    size_bytes: int

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size_bytes)


class Made(NamedTuple):
    """A tensor in memory: row by row, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)


def zeros(dtype: str, *shape: int) -> Made:
    return Made(dtype, shape, bytes(ITEM_BYTES[dtype] * math.prod(shape)))


def place(path: Path) -> str:
    """A file in messages: its folder's name and its own."""
    return "/".join(path.parts[-2:])


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file by name; only its header is read, and checked against the file's size.

    The library refuses a file that is cut short or too long, data that overlap or leave gaps, and shapes that do not
    match their data.
    """
    try:
        with safe_open(str(path), framework="numpy"):
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            header = json.loads(file.read(length))
    except (OSError, SafetensorError, ValueError) as error:
        raise rule(
            "weights", "a whole safetensors file", place(path), do=f"{error}; copy or download the file again"
        ) from error
    header.pop("__metadata__", None)
    begin = LENGTH_BYTES + length
    return {
        name: Stored(
            facts["dtype"],
            tuple(facts["shape"]),
            path,
            begin + facts["data_offsets"][0],
            facts["data_offsets"][1] - facts["data_offsets"][0],
        )
        for name, facts in header.items()
    }


def shard_paths(folder: Path) -> list[Path]:
    """The safetensors files that an engine loads from a folder: those that its index names, else all.

    Files that are numbered as parts of a model must all be there, without an index too.
    """
    index = folder / INDEX
    if not index.is_file():
        found = sorted(folder.glob("*.safetensors"))
        check_numbers(folder, [path.name for path in found])
        return found
    try:
        paths = [
            folder / name for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise rule("weights", f"named by {INDEX}", place(index), do="copy or download the file again") from error
    missing = ", ".join(path.name for path in paths if not path.is_file())
    if missing:
        do = f"copy or download {missing} into {folder.name!r} again"
        raise rule("weights", f"all files that {place(index)} names", f"without {missing}", do=do)
    return paths


def check_numbers(folder: Path, names: list[str]) -> None:
    """``model-00001-of-00003.safetensors`` says that there are three."""
    for name in names:
        numbered = NUMBERED.fullmatch(name)
        if numbered is None:
            continue
        stem, _, count = numbered.groups()
        parts = [f"{stem}-{number:0{len(count)}d}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
        lacks = ", ".join(part for part in parts if part not in names)
        if lacks:
            do = f"copy or download {lacks} into {folder.name!r} again"
            raise rule("weights", f"all {int(count)} files of {stem!r}", f"without {lacks}", do=do)


def read_folder(folder: Path) -> dict[str, Stored]:
    """The tensors of a folder's safetensors files, as an engine loads them; none where there are no such files."""
    tensors: dict[str, Stored] = {}
    for path in shard_paths(folder):
        for name, tensor in read_header(path).items():
            if name in tensors:
                raise rule(
                    "weights",
                    "files that hold each tensor once",
                    f"{name} in {tensors[name].path.name} and {path.name}",
                    do=f"remove one of them from {folder.name!r}",
                )
            tensors[name] = tensor
    return tensors


def write_file(path: Path, tensors: Mapping[str, Stored | Made]) -> None:
    """Write a safetensors file; tensors of other files are copied as bytes, so that it takes no memory.

    The order is that of the library (wider types first, then by name), and the same tensors give the same bytes.
    """
    names = sorted(tensors, key=lambda name: (-ITEM_BYTES.get(tensors[name].dtype, 1), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].size_bytes
        header[name] = {
            "dtype": tensors[name].dtype,
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)  # so that the data begin aligned
    with path.open("wb") as sink:
        sink.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for name in names:
            tensor = tensors[name]
            if isinstance(tensor, Made):
                sink.write(tensor.data)
            else:
                with tensor.path.open("rb") as source:
                    source.seek(tensor.start)
                    left = tensor.size_bytes
                    while chunk := source.read(min(left, COPY_BYTES)):
                        sink.write(chunk)
                        left -= len(chunk)
