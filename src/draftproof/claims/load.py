"""The strict loader of ``fixtures/claims.toml``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from draftproof.catalog import Catalog, fixtures_folder, known_keys, read_entry, short
from draftproof.claims.facts import Where
from draftproof.claims.predicates import PREDICATES, Claim
from draftproof.errors import DraftproofError, rule, unknown
from draftproof.spec import Entry


class ClaimFile(Entry, frozen=True, kw_only=True):
    claim: list[dict[str, Any]]
    """Each row is read as the claim that its `predicate` names."""


def claims_file() -> Path:
    return fixtures_folder() / "claims.toml"


def load_claims(catalog: Catalog, path: Path | None = None) -> list[Claim]:
    """The claims in the order of the file (default: ours), each whole and with names that the catalog knows."""
    path = path or claims_file()
    if not path.is_file():
        raise rule("claims", "a file of claims", short(path))
    claims: list[Claim] = []
    for number, row in enumerate(read_entry(path, ClaimFile).claim):
        claim = read_claim(f"{short(path)}: claim[{number}]", row)
        if claim.name in {other.name for other in claims}:
            raise DraftproofError(f"{short(path)}: claim[{number}].name {claim.name!r} is already taken")
        check_names(f"{short(path)}: claim[{number}].", claim, catalog)
        claims.append(claim)
    return claims


def read_claim(place: str, row: dict[str, Any]) -> Claim:
    predicate = row.get("predicate")
    if not isinstance(predicate, str) or predicate not in PREDICATES:
        raise unknown(f"{place}.predicate", predicate, PREDICATES)
    kind = PREDICATES[predicate]
    try:
        return msgspec.convert(row, type=kind)
    except msgspec.ValidationError as error:
        raise DraftproofError(
            f"{place} ({row.get('name', 'without a name')}): {error}{known_keys(str(error), kind)}"
        ) from (error)


def check_names(place: str, claim: Claim, catalog: Catalog) -> None:
    """A mistyped name would admit nothing, and the claim would never be tested."""
    kinds = {workload.kind for workload in catalog.workloads.values()}
    for field in claim.__struct_fields__:
        where = getattr(claim, field)
        if isinstance(where, Where):
            refuse_unknown(f"{place}{field}.targets", where.targets, catalog.targets)
            refuse_unknown(f"{place}{field}.workload_kinds", where.workload_kinds, kinds)
            refuse_unknown(f"{place}{field}.other_workload_kinds", where.other_workload_kinds, kinds)


def refuse_unknown(field: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown(field, name, known)
