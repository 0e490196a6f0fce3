"""The one exception type that users meet, and the shape of its messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path


class DraftproofError(Exception):
    """Something that the user can mend; the message says what was found, what is known and what to do."""


class EngineError(DraftproofError):
    """An arm that could not start or did not answer. `kind` is ``crash``, ``timeout``, ``method``, ... ."""

    def __init__(self, kind: str, message: str, log_tail: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.log_tail = log_tail


def unknown(field: str, value: object, known: Iterable[str], do: str = "") -> DraftproofError:
    """`field` must be one of `known`."""
    return rule(field, "one of the known names", value, known, do)


def rule(field: str, must_be: str, value: object, known: Iterable[str] = (), do: str = "") -> DraftproofError:
    """``<field> must be <rule> (got <value>); known: ...; <what to do>``."""
    message = f"{field} must be {must_be} (got {value!r})"
    names = ", ".join(sorted(known))
    if names:
        message += f"; known: {names}"
    if do:
        message += f"; {do}"
    return DraftproofError(message)


def scrub(text: str) -> str:
    """Text of others, fit for records and reports: without tokens, URL credentials and queries, and the home folder."""
    for secret in filter(None, (os.environ.get("HF_TOKEN"), os.environ.get("HUGGING_FACE_HUB_TOKEN"))):
        text = text.replace(secret, "<token>")
    text = re.sub(r"\bhf_\w{8,}|(?<=Bearer )\S+", "<token>", text)
    text = re.sub(r"(https?://)[^\s/@]+@", r"\1", text)
    text = re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]+", r"\1", text)
    home = str(Path.home())
    return text.replace(home, "~") if home not in ("", "/") else text
