"""What control proposers are fed: the no-SD arm's outputs of the same prompts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from draftproof.engines import BlockRequest, BlockResult, LiveArm
from draftproof.plan import Group, Unit, references
from draftproof.spec import Variant

MAX_SETTLING_RUNS = 5


class Feed:
    """Outputs of one prompt set, by arm, as references for the arms with a control proposer."""

    def __init__(self, group: Group, unit: Unit, variants: Mapping[str, Variant]) -> None:
        controls = {spec.key: variants[spec.variant].control for spec in group.arms}
        self._controls = {key: control for key, control in controls.items() if control is not None}
        self._base = {key: base for base, key in references(unit.arms)}
        self._outputs: dict[str, list[list[int]]] = {}
        self._settled: dict[str, list[list[int]]] = {}

    def keep(self, key: str, result: BlockResult) -> None:
        self._outputs.setdefault(key, [output.token_ids for output in result.outputs])

    def fed(self, key: str, request: BlockRequest) -> BlockRequest:
        """The request with this arm's references, where it has a control proposer."""
        if key not in self._controls:
            return request
        known = self._settled.get(key) or self._outputs.get(self._base[key], [])
        return msgspec.structs.replace(request, references=known)

    def settle(self, key: str, arm: LiveArm, request: BlockRequest) -> None:
        """For an oracle: run untimed with its own output as reference until it repeats it.

        k + 1 rows are rounded otherwise than one, so that its output may leave no-SD's; from there on the old reference
        is no oracle any more. The upper bound that is measured is that of all drafts accepted.
        """
        control = self._controls.get(key)
        if control is None or control.kind != "oracle":
            return
        for _ in range(MAX_SETTLING_RUNS):
            asked = self.fed(key, request)
            found = [output.token_ids for output in arm.run(msgspec.structs.replace(asked, purpose="trace")).outputs]
            if found == asked.references:
                return
            self._settled[key] = found
