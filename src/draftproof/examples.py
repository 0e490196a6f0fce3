"""Scenarios on two live arms of one target: no speculation and scripted drafts. Recorded first, then judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from draftproof.analysis.received import (
    KNOWN,
    Difference,
    Problem,
    broken_promises,
    difference,
    draft_problems,
    name_of,
    near_context,
)
from draftproof.analysis.tokendiff import cause_of, gap_to_best
from draftproof.engines import LiveArm, ScoreRequest, Scripted, ServeRequest
from draftproof.engines.controls import Script
from draftproof.errors import DraftproofError, EngineError, scrub
from draftproof.live import start_together
from draftproof.plan import ArmSpec, Group
from draftproof.records import RunFolder, UnitKey
from draftproof.scenarios import Asked, Limits, Received, Scenario, constrained, prompt_ids, unconstrained

FILE = "examples.jsonl"
KNOWN_PROMPTS, KNOWN_TOKENS = 8, 40
"""Of so many prompts the unconstrained output is served once, in one batch: the same for every example of a session,
and for one that is run again by itself."""
LOG_LINES = 12
"""Of an arm's log, where it did not answer."""


class ArmsLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="arms"):
    """The engines that the examples after it ran on: arm -> environment and resolved configuration."""

    target: str
    environment: dict[str, dict[str, object]]
    resolved: dict[str, dict[str, object]]


class ExampleLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="example"):
    """One scenario and what was received, as far as it went; written before anything is judged."""

    scenario: Scenario
    limits: Limits
    asked: list[Asked] = []
    references: list[Received] = []
    """What stops are looked up in and drafts are made of: no-SD's unconstrained outputs where they are known."""
    bases: list[Received] = []
    """What the no-SD arm answered, in the order of the requests."""
    others: list[Received] = []
    """What the arm with scripted drafts answered."""
    error: str = ""
    """Why an arm did not answer."""

    def script(self) -> list[Scripted]:
        """Drafts follow the unconstrained output, beyond every stop; where min_tokens led elsewhere, no-SD's own."""
        plans = [request.drafts for request in self.scenario.requests]
        return [
            Scripted(prompt=asked.prompt, reference=known.token_ids, plan=plan)
            for outputs in (self.references, self.bases)
            for asked, known, plan in zip(self.asked, outputs, plans, strict=True)
        ]


class VerdictLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="verdict"):
    """What the example before it came to."""

    ties: list[str]
    problems: list[Problem]


Line = ArmsLine | ExampleLine | VerdictLine
"""What the file holds."""


class Opinion(msgspec.Struct, frozen=True):
    """A referee's word on one first difference."""

    is_tie: bool
    told: str


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What one scenario came to, for whoever ran it."""

    command: str
    """Runs it again."""
    wrong: list[str] = []
    known: list[str] = []
    """Faults of released engines that it met (`KNOWN`)."""

    @property
    def failure(self) -> str:
        """What is wrong and how to run it again; empty: nothing."""
        return "\n".join([*self.wrong, "", "run this example again with", f"  {self.command}"]) if self.wrong else ""


Known = dict[tuple[int, ...], Received]
"""Prompt -> its unconstrained output."""

Referee = Callable[[Sequence[Difference]], list[Opinion]]


def references(
    scenario: Scenario, prompts: Sequence[list[int]], limits: Limits, known: Known, base: LiveArm
) -> list[Received | None]:
    """Unconstrained outputs: known ones as far as they go, else served where stops have to be looked up in one."""
    found: list[Received | None] = []
    missing: list[Asked] = []
    for request, prompt in zip(scenario.requests, prompts, strict=True):
        free, one = unconstrained(request, prompt, limits), known.get(tuple(prompt))
        if one is not None and len(one.token_ids) >= free.max_tokens:
            found.append(one.first(free.max_tokens))
        else:
            found.append(None)
            missing += [free] if request.has_stops else []
    served = iter(base.serve(ServeRequest(requests=missing)).received if missing else [])
    return [
        next(served) if one is None and request.has_stops else one
        for request, one in zip(scenario.requests, found, strict=True)
    ]


def play(
    scenario: Scenario, prompts: Sequence[list[int]], limits: Limits, known: Known, base: LiveArm, other: LiveArm
) -> ExampleLine:
    """Serve a scenario on both arms; an arm's error is part of the line, beside what came before it.

    A request without a reference of its own takes no-SD's answer for one: its drafts are then right up to its end only.
    """
    line = ExampleLine(scenario=scenario, limits=limits)
    replace = msgspec.structs.replace
    try:
        chosen = [prompt_ids(request, prompts, limits) for request in scenario.requests]
        found = references(scenario, chosen, limits, known, base)
        asked = [constrained(*each) for each in zip(scenario.requests, chosen, found, strict=True)]
        line = replace(line, asked=asked)
        answers = base.serve(ServeRequest(requests=asked))
        stops = {"eos_token_id": answers.eos_token_id, "more_stop_ids": answers.more_stop_ids}
        line = replace(
            line,
            bases=answers.received,
            references=[one or own for one, own in zip(found, answers.received, strict=True)],
            limits=replace(limits, **stops),
        )
        return replace(line, others=other.serve(ServeRequest(requests=asked, script=line.script())).received)
    except EngineError as error:
        end = "\n".join(error.log_tail.strip().splitlines()[-LOG_LINES:])
        return replace(line, error=scrub(f"{error}\n{end}".strip()))


def judge(line: ExampleLine, arms: tuple[str, str], referee: Referee) -> VerdictLine:
    """Everything that is wrong with what was received, and the ties that were found on the way.

    After a tie the outputs are two texts and are not compared any more; each keeps its own promises all the same.
    """
    script, entries = Script(), line.script()
    script.kind = "scripted"
    script.load([e.prompt for e in entries], [e.reference for e in entries], [e.plan for e in entries])
    limits = line.limits

    def drafted(known: list[int]) -> list[int]:
        return script.draft(known, limits.k, limits.vocabulary)

    zeroed = near_context(line.asked, line.others, limits)
    problems: list[Problem] = []
    differences: list[Difference] = []
    for index, (asked, base, other) in enumerate(zip(line.asked, line.bases, line.others, strict=True)):
        mine = broken_promises(index, arms[0], asked, base, limits)
        mine += broken_promises(index, arms[1], asked, other, limits)
        mine += draft_problems(index, arms[1], asked, other, limits, drafted, zeroed=zeroed)
        found = difference(index, arms[1], asked, base, other)
        if isinstance(found, Difference):
            differences.append(found)
        else:
            mine += [problem for problem in found if problem.name not in {known.name for known in mine}]
        problems += mine
    ties, parted = [], []
    for found, opinion in zip(differences, referee(differences) if differences else [], strict=True):
        if opinion.is_tie:
            ties.append(f"request {found.request}, position {found.position}: {opinion.told}")
            continue
        name = name_of(found, line.asked[found.request], line.bases, line.others, limits, drafted)
        detail = f"first difference at position {found.position}: {opinion.told}"
        parted.append(Problem(request=found.request, arm=arms[1], name=name, detail=detail))
    return VerdictLine(ties=ties, problems=[*parted, *problems])  # what may follow from a difference stands behind it


def own_precision(arm: LiveArm, target: str, limit_nats: float) -> Referee:
    """The no-SD arm as referee: both tokens teacher-forced, in its own precision; a tie within the limit.

    Where stop ids are masked the best token of all may be one of them: there the better of the pair counts as the best.
    """

    def referee(differences: Sequence[Difference]) -> list[Opinion]:
        scores = arm.score(
            [
                ScoreRequest(
                    unit=UnitKey(0, target, "examples", len(differences)),
                    rotation=0,
                    arm="",
                    request=found.request,
                    position=found.position,
                    prefix=found.prefix,
                    pair=found.pair,
                )
                for found in differences
            ]
        )
        opinions = []
        for found, score in zip(differences, scores, strict=True):
            known = [logprob for logprob in score.pair if logprob is not None]
            best = max(known, default=score.best) if found.stops_masked else score.best
            gap = gap_to_best(best, score.pair)
            cause = cause_of(found.position, gap, limit_nats=limit_nats, reference_repeats=True)
            shown = "not among the 20 best" if gap is None else f"{gap:.3f} nats from the best (limit {limit_nats:g})"
            told = f"no-SD {found.pair[0]} {score.texts[0]!r}, here {found.pair[1]} {score.texts[1]!r}, {shown}"
            opinions.append(Opinion(cause == "near_tie", told))
        return opinions

    return referee


class Examples:
    """Two arms that are started once, serve scenario after scenario, and are started again only after an error."""

    def __init__(
        self,
        group: Group,
        k: int,
        folder: RunFolder,
        limit_nats: float,
        start: Callable[[Group, ArmSpec], LiveArm],
        tokenize: Callable[[LiveArm], list[list[int]]],
        command: Callable[[Scenario], str],
        invented: int,
    ) -> None:
        self._group = group
        self._k = k
        self._folder = folder
        self._limit_nats = limit_nats
        self._start = start
        self._tokenize = tokenize
        self._command = command
        self.invented = invented
        """Examples for each property beside its chosen ones."""
        self.names: tuple[str, str] = (group.arms[0].key, group.arms[-1].key)
        self._live: dict[str, LiveArm] = {}
        self._prompts: list[list[int]] = []
        self._known: Known = {}
        self._told: dict[str, Told] = {}

    def open(self) -> None:
        """Start both arms, where they do not run."""
        if self._live:
            return
        started = start_together(self._group, [self._group.arms[0], self._group.arms[-1]], self._start)
        self._live = {key: arm for key, arm in started.items() if not isinstance(arm, EngineError)}
        for error in started.values():
            if isinstance(error, EngineError):
                self.close()
                raise error
        base = self._live[self.names[0]]
        self._prompts = self._prompts or self._tokenize(base)
        if not self._prompts:
            raise DraftproofError("examples need a prompt; all are longer than max_prompt_tokens; raise it")
        first = self._prompts[:KNOWN_PROMPTS]
        asked = [Asked(prompt=ids, max_tokens=KNOWN_TOKENS, ignore_eos=True) for ids in first]
        if not self._known:
            received = base.serve(ServeRequest(requests=asked)).received
            self._known = {tuple(ids): one for ids, one in zip(first, received, strict=True)}
        self._folder.append_to(
            FILE,
            [
                ArmsLine(
                    target=self._group.target.name,
                    environment={key: arm.facts.environment for key, arm in self._live.items()},
                    resolved={key: arm.facts.resolved for key, arm in self._live.items()},
                )
            ],
        )

    def close(self) -> None:
        for arm in self._live.values():
            arm.close()
        self._live.clear()

    def told(self, scenario: Scenario) -> Told:
        """What this scenario came to. Each is run once a session."""
        if scenario.json not in self._told:
            self._told[scenario.json] = self._tell(scenario)
        return self._told[scenario.json]

    def _tell(self, scenario: Scenario) -> Told:
        command = self._command(scenario)
        try:
            self.open()
        except EngineError as error:
            return Told(command=command, wrong=[f"an arm did not start again: {error}"])
        base, other = (self._live[name] for name in self.names)
        line = play(scenario, self._prompts, self._limits(), self._known, base, other)
        self._folder.append_to(FILE, [line])
        if line.error:
            self.close()  # what an engine holds after an error is not known
            return Told(command=command, wrong=[line.error])
        try:
            verdict = judge(line, self.names, own_precision(base, self._group.target.name, self._limit_nats))
        except EngineError as error:
            self.close()
            return Told(command=command, wrong=[f"a first difference could not be scored: {error}"])
        self._folder.append_to(FILE, [verdict])
        return Told(
            command=command,
            wrong=[problem.line for problem in verdict.problems if problem.name not in KNOWN],
            known=list(dict.fromkeys(KNOWN[p.name] for p in verdict.problems if p.name in KNOWN)),
        )

    def _limits(self) -> Limits:
        """By the smaller context of the two, and by no-SD's blocks."""
        facts = [self._live[name].facts.resolved for name in self.names]
        return Limits(
            context_tokens=min(int(fact["max_model_len"]) for fact in facts),
            block_tokens=int(facts[0]["block_size"]),
            vocabulary=int(facts[1]["vocab_size"]),
            k=self._k,
        )
