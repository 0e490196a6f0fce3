"""Prompts of a workload: read from a file of JSON lines or from the Hugging Face hub, and dealt into prompt sets.

No chat template is applied here: that is the target's, and so the engine's matter.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from draftproof.errors import DraftproofError, rule, scrub, unknown
from draftproof.spec import Workload, require

ROLES = ("system", "user", "assistant")
LINE_KEYS = ("id", "messages", "text", "answer")
UNREACHABLE = {"ConnectionError", "ConnectError", "TimeoutException", "TimeoutError", "HTTPError", "TransportError"}
"""Names of exception types (their modules differ between versions) that mean: the hub did not answer."""


class WorkloadUnavailable(DraftproofError):  # noqa: N818  (a skip reason, no fault)
    """A workload that this machine cannot get now; the message is a skip reason."""

    def __init__(self, needs: str, found: str, enable: str) -> None:
        super().__init__(f"needs {needs}; found {found}; enable with {enable}")


class Prompt(msgspec.Struct, frozen=True):
    """One prompt: a chat that ends with a user turn, or plain text that gets no chat template."""

    id: str
    messages: list[dict[str, str]] | None
    """Turns of ``role`` and ``content``."""
    text: str | None

    def __post_init__(self) -> None:
        given = (self.messages is not None) + (self.text is not None)
        require(given == 1, "prompt", "exactly one of messages and text", given)


class LoadedWorkload(msgspec.Struct, frozen=True):
    """The prompts of a workload in their final order, and what they were read from."""

    prompts: tuple[Prompt, ...]
    revision: str | None
    """``file``: ``sha256:<hex>`` of its bytes; ``hub``: the commit hash that was read, None where unknown."""
    source: str
    """Data set id, or the name of the file or folder; never an absolute path."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    content: str


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a workload file. `answer` is allowed and not used."""

    id: str | None = None
    messages: list[Message] | None = None
    text: str | None = None
    answer: Any = None


def load_workload(workload: Workload, path: Path | None, *, num_prompts: int | None = None) -> LoadedWorkload:
    """The prompts of `workload`: shuffled if it has a `shuffle_seed`, then the first `num_prompts`.

    `path` is what ``Catalog.workload_path`` gives: the file, or for ``hub`` the folder of the workload's entry, to
    which a `dataset` that is a local folder is relative. `num_prompts` goes before the workload's own; where fewer
    prompts exist, all are taken. The order of a shuffled stream is fixed by its seed, revision *and* the version of
    ``datasets``, whose algorithm has changed: compare prompt ids and contents of runs, not seeds.
    """
    if num_prompts is not None and num_prompts < 1:
        raise rule("num_prompts", "at least 1", num_prompts)
    limit = num_prompts or workload.num_prompts
    if workload.source == "file":
        return load_file(workload, path or Path(), limit)
    return load_hub(workload, path, limit)


def file_workload(name: str, path: Path) -> Workload:
    """A workload for the user's own file of prompts (``--sd-prompts FILE``).

    `path` of the workload is the bare file name: the folder stays out of records; hand it to `load_workload`.
    """
    if not path.is_file():
        raise rule("--sd-prompts", "a file of JSON lines", path.name, LINE_KEYS)
    return Workload(name=name, kind="custom", title=f"prompts of {path.name}", source="file", path=path.name)


def deal(num_prompts: int, batch_size: int, rotation: int, seed: int) -> tuple[int, ...]:
    """Indices of the prompt set of one rotation; pure, so that any rotation can be run again alone.

    An epoch shuffles all prompts once and deals them batch after batch, so that its sets are disjoint. What is left
    at its end is too short for a batch and is not dealt: the next rotation starts the next epoch with a new order. A
    batch larger than the workload repeats the epoch's order cyclically.
    """
    if num_prompts < 1:
        raise rule("num_prompts", "at least 1 (the workload is empty)", num_prompts)
    if batch_size < 1 or rotation < 0:
        raise rule("batch_size, rotation", "at least 1 and at least 0", (batch_size, rotation))
    epoch, batch = divmod(rotation, max(1, num_prompts // batch_size))
    order = list(range(num_prompts))
    random.Random(f"{seed}-{epoch}").shuffle(order)
    return tuple(order[(batch * batch_size + slot) % num_prompts] for slot in range(batch_size))


def load_file(workload: Workload, path: Path, limit: int | None) -> LoadedWorkload:
    if path.is_dir():
        path = path / workload.path
    try:
        content = path.read_bytes()
    except OSError as error:
        do = f"it could not be read: {error.strerror}"
        raise rule(f"workload {workload.name!r}: path", "a file of JSON lines", path.name, do=do) from None
    prompts: list[Prompt] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            prompt = parse_line(line, f"{workload.name}-{number:04d}")
            if prompt.id in lines:
                raise rule("id", "unique", prompt.id, do=f"line {lines[prompt.id]} has it already")
        except DraftproofError as error:
            raise DraftproofError(f"{path.name}:{number}: {error}") from None
        lines[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise DraftproofError(f"{path.name}: the file has no prompts; give one JSON object a line")
    if workload.shuffle_seed is not None:
        random.Random(workload.shuffle_seed).shuffle(prompts)
    revision = "sha256:" + hashlib.sha256(content).hexdigest()
    return LoadedWorkload(prompts=tuple(prompts[:limit]), revision=revision, source=path.name)


def parse_line(line: bytes, default_id: str) -> Prompt:
    try:
        parsed = msgspec.json.decode(line, type=Line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        known = "unknown field" in str(error) and "$." not in str(error)
        raise DraftproofError(f"{error}; known: {', '.join(LINE_KEYS)}" if known else str(error)) from None
    if parsed.id is not None and not parsed.id.strip():
        raise rule("id", "a non-empty string", parsed.id)
    prompt_id = default_id if parsed.id is None else parsed.id
    if (parsed.messages is None) == (parsed.text is None):
        raise DraftproofError("a line must have exactly one of 'messages' and 'text'")
    if parsed.messages is None:
        if not (parsed.text or "").strip():
            raise rule("text", "a non-empty string", parsed.text)
        return Prompt(id=prompt_id, messages=None, text=parsed.text)
    for place, message in enumerate(parsed.messages):
        if message.role not in ROLES:
            raise unknown(f"messages[{place}].role", message.role, ROLES)
        if not message.content.strip():
            raise rule(f"messages[{place}].content", "a non-empty string", message.content)
    last = parsed.messages[-1].role if parsed.messages else None
    if last != "user":
        raise rule("the last message", "by 'user'", last)
    return Prompt(id=prompt_id, messages=[msgspec.structs.asdict(message) for message in parsed.messages], text=None)


def load_hub(workload: Workload, path: Path | None, limit: int | None) -> LoadedWorkload:
    columns = needed_columns(workload)
    datasets = import_datasets()
    folder = local_folder(workload, path)
    source = folder.resolve().name if folder else workload.dataset
    try:
        with ExitStack() as on_exit:
            # Its warnings name the folders of its cache.
            on_exit.callback(datasets.utils.logging.set_verbosity, datasets.utils.logging.get_verbosity())
            datasets.utils.logging.set_verbosity_error()
            # The builder is load_dataset's own first half; it alone knows which commit is read, from net or cache.
            builder = datasets.load_dataset_builder(
                str(folder or workload.dataset),
                workload.subset,
                data_files=workload.data_files,
                revision=None if folder else workload.revision,
            )
            revision = commit(builder.hash) or (commit(folder.name) if folder else None)
            pinned = None if folder else commit(workload.revision)
            if pinned and revision not in (None, pinned):
                # Offline, `datasets` takes whatever commit it has cached, not the one asked for.
                needs = f"revision {pinned} of data set {source!r}"
                raise WorkloadUnavailable(needs, f"revision {revision} in the local cache", "network access")
            if workload.streaming:
                rows = builder.as_streaming_dataset(split=workload.split)
            else:
                builder.download_and_prepare()
                rows = builder.as_dataset(split=workload.split)
            if workload.shuffle_seed is not None:
                rows = rows.shuffle(seed=workload.shuffle_seed)
            prompts = tuple(islice(hub_prompts(workload, columns, rows), limit))
    except DraftproofError:
        raise
    except Exception as error:
        raise upstream_error(workload, source, error) from None
    if not prompts:
        filters = f"min_turns {workload.min_turns}, first_role {workload.first_role!r}"
        raise DraftproofError(f"workload {workload.name!r}: no row of {source!r} is left; filters: {filters}")
    return LoadedWorkload(prompts=prompts, revision=revision, source=source)


def hub_prompts(workload: Workload, columns: set[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[Prompt]:
    """One user turn per row that passes the filters. Rows whose turn is blank are left out: they ask nothing."""
    number = 0
    for row in rows:
        for column in sorted(columns - set(row)):
            raise unknown(f"workload {workload.name!r}: column", column, row, "mend prompt, min_turns or first_role")
        if not wanted_turns(workload, row):
            continue
        # An absent value must not become the word "None" in a prompt.
        values = {name: "" if value is None else value for name, value in row.items()}
        try:
            content = workload.prompt.format_map(values)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise rule(f"workload {workload.name!r}: prompt", "a template that fits each row", problem, row) from None
        if content.strip():
            number += 1
            messages = [{"role": "user", "content": content}]
            yield Prompt(id=f"{workload.name}-{number:04d}", messages=messages, text=None)


def wanted_turns(workload: Workload, row: Mapping[str, Any]) -> bool:
    if not (workload.min_turns or workload.first_role):
        return True
    turns = row["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise rule(f"workload {workload.name!r}: column 'conversations'", "a list of turns", type(turns).__name__)
    speaker = turns[0].get("from") if turns else None
    return len(turns) >= workload.min_turns and workload.first_role in ("", speaker)


def needed_columns(workload: Workload) -> set[str]:
    """The columns that the template and the filters read; known before anything is downloaded."""
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(workload.prompt) if field is not None]
        names = {re.split(r"[.\[]", field, maxsplit=1)[0] for field in fields}
        if any(name == "" or name.isdigit() for name in names):
            raise ValueError("a field lacks its column's name")
    except ValueError as error:
        must_be = f"a str.format template over the columns ({error})"
        raise rule(f"workload {workload.name!r}: prompt", must_be, workload.prompt) from None
    return names | ({"conversations"} if workload.min_turns or workload.first_role else set())


def local_folder(workload: Workload, path: Path | None) -> Path | None:
    """The folder that `dataset` names, or None for an id on the hub."""
    named = Path(workload.dataset).expanduser()
    if path is not None or named.is_absolute():
        folder = named if path is None else path / named
        if folder.is_dir():
            return folder
    # A namesake in the current folder would be read by `datasets` in place of the hub's data set, without a word.
    if named.is_absolute() or workload.dataset.startswith(".") or named.exists():
        must_be = "a data set id (no file of that name here) or a folder, relative to the workload's entry"
        raise rule(f"workload {workload.name!r}: dataset", must_be, one_line(workload.dataset))
    return None


def commit(text: str | None) -> str | None:
    """`text` if it is a full commit hash; the builder of a local folder has a hash of another kind."""
    return text if text and re.fullmatch(r"[0-9a-f]{40}", text) else None


def import_datasets() -> Any:
    """The package, at a version that can no longer run a data set's own Python code."""
    needs, enable = "the package datasets, version 4 or later", "pip install 'draftproof[hub]'"
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise WorkloadUnavailable(needs, one_line(f"{type(error).__name__}: {error}"), enable) from None
    if int(datasets.__version__.split(".")[0]) < 4:
        raise WorkloadUnavailable(needs, f"version {datasets.__version__}", enable)
    return datasets


def upstream_error(workload: Workload, source: str, error: Exception) -> DraftproofError:
    """What `datasets` met, told without tokens and home folders; the original stays out of the traceback with them."""
    chain: list[BaseException] = [error]
    while inner := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(inner)
    kinds = {kind.__name__ for link in chain for kind in type(link).__mro__}
    # "An error occurred while generating the dataset" says nothing; its cause does.
    told = chain[1] if type(error).__name__ == "DatasetGenerationError" and len(chain) > 1 else error
    text = one_line(f"{type(told).__name__}: {told}")
    name, shown = workload.dataset, f"data set {source!r}"
    if "GatedRepoError" in kinds or "gated dataset" in text or (workload.gated and "DatasetNotFoundError" in kinds):
        enable = f"`hf auth login`, once its terms are accepted at https://huggingface.co/datasets/{name}"
        return WorkloadUnavailable(f"access to the gated {shown}", text, enable)
    if "DatasetNotFoundError" in kinds:
        enable = "a name and revision that exist, or `hf auth login` for a private data set"
        return WorkloadUnavailable(shown, text, enable)
    if kinds & UNREACHABLE or "find cache for" in text:
        download = f"`hf download {name} --repo-type dataset --local-dir DIR` elsewhere and dataset = 'DIR' here"
        enable = f"network access and HF_HUB_OFFLINE unset, or with {download}"
        return WorkloadUnavailable(f"{shown} in the local cache, or the hub", text, enable)
    return DraftproofError(f"workload {workload.name!r}: {shown} could not be read: {text}")


def one_line(text: str, max_chars: int = 400) -> str:
    """Scrubbed text of others on one line, without leading folders either."""
    text = re.sub(r"(?<![\w/:.~>-])~?(?:/[^\s/'\",:;]+)+/(?=[^\s/'\",:;])", ".../", scrub(text))
    text = " ".join(text.split())
    return text if len(text) <= max_chars else text[:max_chars] + "..."
