"""Text that others wrote (models, engines, files), made safe to look at; escaping is left to the template."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from markupsafe import Markup, escape

TOKEN_CHARS = 120
ANY_CHARS = 8000
"""No single text is longer than this on the page, wherever it comes from."""

HOME = re.compile(r"(?<![\w.~-])(?:/(?:home|Users)/[^/\s:'\"<>]+|/root(?=[/\s:'\"]|$))")


def without_homes(text: str) -> str:
    """Anybody's home folder as ``~``."""
    return HOME.sub("~", text)


def hidden_chars(text: str, keep: str) -> list[bool]:
    """Which characters cannot be seen, or change how others are seen: control, format (bidi), surrogate, private,
    unassigned, odd spaces and line ends; combining marks with nothing below them or piled higher than two."""
    found = []
    marks = 2
    for char in text:
        marks = marks + 1 if unicodedata.category(char)[0] == "M" else 0
        found.append(char not in keep and (marks > 2 or not char.isprintable()))
    return found


def visible(text: str, keep: str = "\n\t") -> str:
    """Plain text in which such characters are named: ``[U+202E]``."""
    if text.isascii() and text.isprintable():
        return text
    hidden = hidden_chars(text, keep)
    return "".join(f"[U+{ord(char):04X}]" if odd else char for char, odd in zip(text, hidden, strict=True))


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… [cut: {len(text) - limit:,} more characters]"


def tail(text: str, limit: int = ANY_CHARS - 100) -> str:
    return text if len(text) <= limit else f"[cut: {len(text) - limit:,} characters before this]\n{text[-limit:]}"


def shown(value: Any) -> Any:
    """Jinja's `finalize`: every text that the template prints comes through here, and is escaped afterwards."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return visible(without_homes(cut(value, ANY_CHARS)))


def breakable(text: str) -> Markup:
    """A name that a narrow column may break after an underscore or a full stop, and nowhere else in a word."""
    return escape(shown(text)).replace("_", Markup("_<wbr>")).replace(".", Markup(".<wbr>"))


def token(text: str) -> Markup:
    """A token of a model, exactly: escaped, every unseen character named, cut with a note."""
    head = text[:TOKEN_CHARS]
    body = Markup("")
    for char, odd in zip(head, hidden_chars(head, keep=""), strict=True):
        body += (
            Markup('<span class="cp" title="{}">U+{:04X}</span>').format(
                unicodedata.name(char, "unnamed character"), ord(char)
            )
            if odd
            else char
        )
    code = Markup('<code class="token" dir="ltr">{}</code>').format(body) if text else Markup("<i>nothing</i>")
    if len(text) > TOKEN_CHARS:
        code += Markup(' <span class="note">cut: {:,} more characters</span>').format(len(text) - TOKEN_CHARS)
    return code
