"""Acceptance traces: what each drafter would have had accepted at every position of a committed output.

One request is one line of JSON or one row of Parquet. `lengths[variant][i]` is the number of tokens that a step would
emit from `i` committed output tokens with the longest draft (accepted drafts plus the bonus or correcting token, so
1..limit + 1); entry 0 is the prefill, which emits one token without a draft.

Two layouts, told apart by the key ``schema`` of the first line:

* ours, ``{"schema": 1, "dataset", "id", "prompt_tokens" or "prompt_token_ids", "limit", "variants": {name:
  {"lengths", "token_ids", "drafted"}}}``; ``token_ids`` (the committed output) and ``drafted`` (tokens proposed at each
  position, 0 where the lookup found nothing) are optional and as long as ``lengths``, and ``provenance`` may say where
  they come from;
* that of the public traces of arXiv 2601.11580, ``{"id", "prompt_token_ids", "generated_token_ids", "acc_ngram":
  {"acc_len"}, "acc_eagle": {"acc_len"}}``: a limit of 20, and the ids of the n-gram run only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from draftproof.analysis.lookup import LIMIT, MAX_N, MIN_N, suffix_matches
from draftproof.catalog import known_keys
from draftproof.errors import DraftproofError, rule
from draftproof.spec import Entry

SCHEMA = 1
AUTHORS_LIMIT = LIMIT
LIMITS = range(1, 255)
"""A length is one more, and is kept in 8 bits."""
SUFFIXES = (".jsonl", ".parquet")


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Arrays have one entry per output token."""

    origin: str
    """``file:line``, for messages."""
    dataset: str
    id: str
    prompt_tokens: int
    limit: int
    """Longest draft that was tried: no k beyond it can be simulated."""
    lengths: dict[str, NDArray[np.uint8]]
    outputs: dict[str, str]
    """Variant -> digest of the committed ids that its lengths belong to, where they are recorded."""
    found: NDArray[np.uint8] | None = None
    """Length of the longest suffix (0, or 3..7) of the context that occurs earlier in it: known before the step."""
    drafted: dict[str, NDArray[np.uint8]] = {}
    """Variant -> tokens that it proposed, 0 where it found nothing."""

    def same_tokens(self, variants: tuple[str, ...]) -> bool:
        """Whether the traces of these variants belong to one output: equal ids, or equal lengths where ids lack."""
        digests = [self.outputs.get(name) for name in variants]
        if None not in digests:
            return len(set(digests)) == 1
        return len({len(self.lengths[name]) for name in variants}) == 1


class OurVariant(Entry, frozen=True, kw_only=True):
    lengths: list[int]
    token_ids: list[int] | None = None
    drafted: list[int] | None = None
    provenance: dict[str, Any] | None = None


class OurLine(Entry, frozen=True, kw_only=True):
    schema: int
    dataset: str
    id: str
    limit: int
    variants: dict[str, OurVariant]
    prompt_tokens: int | None = None
    prompt_token_ids: list[int] | None = None


class AuthorsLengths(Entry, frozen=True, kw_only=True):
    acc_len: list[int]
    acc_prob: msgspec.Raw = msgspec.Raw()
    acc_entropy: msgspec.Raw = msgspec.Raw()


class AuthorsLine(Entry, frozen=True, kw_only=True):
    id: str
    prompt_token_ids: list[int]
    generated_token_ids: list[int]
    acc_ngram: AuthorsLengths | None = None
    acc_eagle: AuthorsLengths | None = None
    acc_eagle_three: AuthorsLengths | None = None


AUTHORS_VARIANTS = {"acc_ngram": "ngram", "acc_eagle": "eagle", "acc_eagle_three": "eagle3"}
OURS = msgspec.json.Decoder(OurLine)
AUTHORS = msgspec.json.Decoder(AuthorsLine)


class TraceFile(msgspec.Struct, frozen=True):
    """One file of traces: one data set."""

    path: Path

    @property
    def name(self) -> str:
        """The data set by the file's name: ``llama3.1-8B_gsm8k.jsonl`` and ``combined_gsm8k.jsonl`` are gsm8k."""
        return self.path.stem.rpartition("_")[2].lower()

    def count(self) -> int:
        """Requests in the file, without decoding them."""
        if self.path.suffix == ".parquet":
            return int(parquet_file(self.path).metadata.num_rows)
        with self.path.open("rb") as lines:
            return sum(1 for line in lines if line.strip())

    def read(self, *, matches: bool = False) -> Iterator[Trace]:
        """Every request in turn, checked; no more than one line is held. `matches`: also look for n-grams."""
        seen: set[str] = set()
        dataset = ""
        place = str(self.path)
        for place, payload in self.rows():
            trace = checked(place, payload, self.name, matches)
            if trace.id in seen:
                raise DraftproofError(f"{place}: id must be unique in its file (got {trace.id!r} again)")
            seen.add(trace.id)
            if dataset and trace.dataset != dataset:
                raise DraftproofError(
                    f"{place}: dataset must be the same in the whole file (got {trace.dataset!r} after {dataset!r})"
                )
            dataset = trace.dataset
            yield trace
        if len(seen) < 2:
            raise DraftproofError(f"{place}: a trace file must hold at least 2 requests (got {len(seen)})")

    def rows(self) -> Iterator[tuple[str, OurLine | AuthorsLine]]:
        """``file:line`` and what stands there."""
        if self.path.suffix == ".parquet":
            for number, row in enumerate(parquet_rows(self.path), start=1):
                place = f"{self.path}:{number}"
                layout = OurLine if "schema" in row else AuthorsLine
                yield place, decoded(place, partial(msgspec.convert, row, type=layout), layout)
            return
        with self.path.open("rb") as lines:
            ours: bool | None = None
            for number, line in enumerate(lines, start=1):
                place = f"{self.path}:{number}"
                if not line.strip():
                    raise DraftproofError(f"{place}: a line must be one JSON object (got an empty line)")
                if ours is None:
                    ours = re.search(rb'"schema"\s*:', line[:4096]) is not None
                decoder: Any = OURS if ours else AUTHORS
                yield place, decoded(place, partial(decoder.decode, line), decoder.type)


def trace_files(paths: list[Path]) -> list[TraceFile]:
    """The files named, and those in the folders named; each data set once."""
    found: list[TraceFile] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES)
            if not inside:
                raise rule("--traces", f"a folder with {' or '.join(SUFFIXES)} files", str(path))
            found += [TraceFile(p) for p in inside]
        elif path.is_file():
            if path.suffix not in SUFFIXES:
                raise rule("--traces", "a trace file", str(path), SUFFIXES)
            found.append(TraceFile(path))
        else:
            raise rule("--traces", "a file or folder that exists", str(path))
    return found


def decoded(place: str, decode: Callable[[], Any], layout: type[Entry]) -> Any:
    try:
        return decode()
    except msgspec.ValidationError as error:
        raise DraftproofError(f"{place}: {error}{known_keys(str(error), layout)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DraftproofError(f"{place}: a line must be one whole JSON object (got {error}); truncated?") from error


def parquet_file(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DraftproofError(f"{path}: not a whole Parquet file: {error}") from error


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of either layout; a column or a variant that a row leaves empty is absent."""
    for batch in parquet_file(path).iter_batches(batch_size=64):
        for row in batch.to_pylist():
            yield present({**row, "variants": dict(row["variants"])} if row.get("variants") else row)


def present(value: Any) -> Any:
    """Nested dictionaries without their empty entries."""
    if isinstance(value, dict):
        return {key: present(inner) for key, inner in value.items() if inner is not None}
    return value


def checked(place: str, line: OurLine | AuthorsLine, name: str, matches: bool) -> Trace:
    """The request of a line, or what is wrong with it."""
    if isinstance(line, AuthorsLine):
        return from_authors(place, line, name, matches)
    return from_ours(place, line, matches)


def from_authors(place: str, line: AuthorsLine, name: str, matches: bool) -> Trace:
    lengths: dict[str, NDArray[np.uint8]] = {}
    outputs: dict[str, str] = {}
    for field, variant in AUTHORS_VARIANTS.items():
        recorded: AuthorsLengths | None = getattr(line, field)
        if recorded is not None:
            lengths[variant] = length_array(place, f"{field}.acc_len", recorded.acc_len, AUTHORS_LIMIT)
    if not lengths:
        raise rule(f"{place}: the request", "traced by a variant", None, AUTHORS_VARIANTS)
    if "ngram" in lengths:
        expect_equal(place, "acc_ngram.acc_len", len(lengths["ngram"]), len(line.generated_token_ids))
        outputs["ngram"] = digest(line.generated_token_ids)
    if not line.prompt_token_ids:
        raise DraftproofError(f"{place}: prompt_token_ids must be at least one token (got [])")
    return Trace(
        origin=place,
        dataset=name,
        id=line.id,
        prompt_tokens=len(line.prompt_token_ids),
        limit=AUTHORS_LIMIT,
        lengths=lengths,
        outputs=outputs,
        found=match_lengths(line.prompt_token_ids, line.generated_token_ids) if matches else None,
    )


def from_ours(place: str, line: OurLine, matches: bool) -> Trace:
    if line.schema != SCHEMA:
        raise rule(f"{place}: schema", f"{SCHEMA}", line.schema)
    if line.limit not in LIMITS:
        raise rule(f"{place}: limit", f"in {LIMITS[0]}..{LIMITS[-1]}", line.limit)
    ids = line.prompt_token_ids
    prompt_tokens = line.prompt_tokens if line.prompt_tokens is not None else len(ids or [])
    if prompt_tokens < 1:
        raise rule(f"{place}: prompt_tokens", "at least 1", prompt_tokens)
    if ids is not None:
        expect_equal(place, "prompt_token_ids", len(ids), prompt_tokens, "prompt_tokens")
    if not line.variants:
        raise rule(f"{place}: variants", "at least one variant", {})
    lengths: dict[str, NDArray[np.uint8]] = {}
    outputs: dict[str, str] = {}
    drafted: dict[str, NDArray[np.uint8]] = {}
    found: NDArray[np.uint8] | None = None
    for variant, recorded in line.variants.items():
        field = f"variants.{variant}"
        lengths[variant] = length_array(place, f"{field}.lengths", recorded.lengths, line.limit)
        if recorded.token_ids is not None:
            expect_equal(place, f"{field}.lengths", len(recorded.lengths), len(recorded.token_ids), "token_ids")
            outputs[variant] = digest(recorded.token_ids)
            if matches and ids is not None and found is None:
                found = match_lengths(ids, recorded.token_ids)
        if recorded.drafted is not None:
            expect_equal(place, f"{field}.lengths", len(recorded.lengths), len(recorded.drafted), "drafted")
            drafted[variant] = length_array(place, f"{field}.drafted", recorded.drafted, line.limit - 1, least=0)
            short = np.flatnonzero(lengths[variant].astype(int) > drafted[variant].astype(int) + 1)
            if short.size:
                raise rule(f"{place}: {field}.lengths[{short[0]}]", "at most drafted + 1", recorded.lengths[short[0]])
    return Trace(
        origin=place,
        dataset=line.dataset,
        id=line.id,
        prompt_tokens=prompt_tokens,
        limit=line.limit,
        lengths=lengths,
        outputs=outputs,
        found=found,
        drafted=drafted,
    )


def length_array(place: str, field: str, values: list[int], limit: int, least: int = 1) -> NDArray[np.uint8]:
    """Values in least..limit + 1, at least one of them."""
    if not values:
        raise rule(f"{place}: {field}", "at least one length", values)
    if min(values) < least or max(values) > limit + 1:
        index = next(i for i, value in enumerate(values) if not least <= value <= limit + 1)
        raise rule(f"{place}: {field}[{index}]", f"in {least}..{limit + 1}", values[index])
    return np.array(values, dtype=np.uint8)


def expect_equal(place: str, field: str, got: int, expected: int, other: str = "generated_token_ids") -> None:
    if got != expected:
        raise DraftproofError(f"{place}: {field} must be as long as {other}, {expected} (got {got})")


def digest(ids: list[int]) -> str:
    try:
        return hashlib.blake2b(np.array(ids, dtype=np.int64).tobytes(), digest_size=16).hexdigest()
    except OverflowError as error:
        raise DraftproofError(f"token_ids must be 64-bit integers (got {max(ids)!r})") from error


def match_lengths(prompt: list[int], output: list[int]) -> NDArray[np.uint8]:
    """For each number of committed output tokens, the longest suffix of the context that occurs earlier in it.

    Returns shape (output tokens,), values 0 or 3..7. It is what the lookup of vLLM's n-gram proposer knows before the
    step; `draftproof.analysis.lookup` states the rule.
    """
    matched, _ = suffix_matches(np.array(prompt + output[:-1], dtype=np.int64), MIN_N, MAX_N)
    # The context of entry i is the prompt and i output tokens: it ends at prompt + i - 1.
    return matched[len(prompt) - 1 :].astype(np.uint8)
