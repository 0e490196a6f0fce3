"""Messages and what is taken out of them."""

from __future__ import annotations

import pytest

from draftproof.errors import rule, scrub


def test_a_rule_tells_what_was_found_what_is_known_and_what_to_do() -> None:
    message = str(rule("k", "at least 1", 0, ["three", "one"], "set it in the variant"))
    assert message == "k must be at least 1 (got 0); known: one, three; set it in the variant"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("401 for hf_abcdefghijkl", "401 for <token>"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer <token>"),
        ("https://me:secret@host/x", "https://host/x"),
        ("GET https://host/x?X-Amz-Signature=1", "GET https://host/x"),
        ("a plainsecret in a log", "a <token> in a log"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_no_token_gets_from_a_log_into_a_record(monkeypatch: pytest.MonkeyPatch, text: str, clean: str) -> None:
    """Log tails and failure messages are recorded: they pass through here."""
    monkeypatch.setenv("HF_TOKEN", "plainsecret")
    assert scrub(text) == clean
