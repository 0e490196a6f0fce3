"""placeholder"""

from __future__ import annotations

from draftproof.records import RunHeader
from draftproof.results import RunResults


def render_html(results: RunResults, header: RunHeader) -> str:
    return ""
