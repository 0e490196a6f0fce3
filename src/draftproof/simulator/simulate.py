"""The simulation of one cell: requests x policy x batch size -> speedup."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from draftproof.errors import DraftproofError, rule
from draftproof.simulator.clock import Clock
from draftproof.simulator.costs import CostModel, Floats
from draftproof.simulator.mixed import Spent, Steps, serve
from draftproof.simulator.policies import Known, Plan, Planned, Policy, Stepwise
from draftproof.simulator.rules import Rules
from draftproof.simulator.table import Ints, Table, chunks, match_probability
from draftproof.simulator.traces import TraceFile


class Visits(msgspec.Struct, frozen=True):
    """The steps of all requests: arrays of one entry per step."""

    index: Ints
    variant: Ints
    drafts: Ints
    """Tokens that were proposed."""
    emitted: Ints
    may_miss: bool = False
    """Whether the paper's coin decides what is proposed where one token is emitted."""


class Cell(msgspec.Struct, frozen=True):
    """One result; the fields of the JSON output."""

    dataset: str
    variant: str
    policy: str
    k: int | None
    batch_size: int
    speedup: float
    rules: str
    requests: int
    tokens_per_step: float
    """Emitted tokens per request and engine step, prefill not counted."""
    share_of_bound: float | None = None
    """Part of the bound's gain over no speculation that the policy reaches, where the bound was asked for as well."""


class Sums(msgspec.Struct):
    """What is added up over the chunks of a file."""

    requests: int = 0
    rate: float = 0.0
    plain_rate: float = 0.0
    seconds: float = 0.0
    out: float = 0.0
    plain_seconds: float = 0.0
    plain_out: float = 0.0
    steps: int = 0
    tokens: int = 0

    def add(self, table: Table, spent: Spent, plain: Spent, steps: int) -> None:
        self.requests += table.requests
        self.rate += float((table.request_tokens / spent.request_s).sum())
        self.plain_rate += float((table.request_tokens / plain.request_s).sum())
        self.seconds += spent.window_s
        self.out += spent.window_tokens
        self.plain_seconds += plain.window_s
        self.plain_out += plain.window_tokens
        self.steps += steps
        self.tokens += table.positions

    def speedup(self, rules: Rules) -> float:
        if rules.token_weighted:
            return (self.out / self.seconds) / (self.plain_out / self.plain_seconds)
        return self.rate / self.plain_rate


def visit(table: Table, policy: Policy, clock: Clock) -> Visits:
    """The steps that a policy takes through every request."""
    check_limit(table, policy)
    if isinstance(policy, Planned):
        plan = policy.plan(table, clock)
        check_plan(table, policy, plan)
        return follow(table, policy, plan, clock)
    assert isinstance(policy, Stepwise)
    return walk(table, policy, clock)


def check_plan(table: Table, policy: Policy, plan: Plan) -> None:
    for what, values, most in (
        ("variant", plan.variant, len(table.variants) - 1),
        ("drafts", plan.drafts, table.limit),
    ):
        if values.shape != (table.positions,) or values.min(initial=0) < 0 or values.max(initial=0) > most:
            raise DraftproofError(
                f"policy {policy.label}: {what} must be an array of {table.positions} values in 0..{most}"
            )


def check_limit(table: Table, policy: Policy) -> None:
    if policy.most_drafts > table.limit:
        raise DraftproofError(
            f"{table.origin}: k must be at most the trace's limit, {table.limit} (got {policy.most_drafts} of policy "
            f"{policy.label}); traces with longer drafts are needed"
        )


def follow(table: Table, policy: Planned, plan: Plan, clock: Clock) -> Visits:
    rows = np.arange(table.positions)
    drafts = plan.drafts
    coin = False
    if not policy.hindsight:
        for number in range(len(table.variants)):
            if clock.can_miss[number]:
                if clock.rules.trace_misses:
                    proposed = np.minimum(drafts, table.proposed(number))
                    drafts = np.where(plan.variant == number, proposed, drafts)
                else:
                    coin = True
    emitted = np.minimum(table.lengths[plan.variant, rows], drafts + 1)
    index = table.walk(emitted)
    return Visits(index, plan.variant[index], drafts[index], emitted[index], coin)


def walk(table: Table, policy: Stepwise, clock: Clock) -> Visits:
    """Step after step, each decided by what is known before it. Under the paper's coin it always learns of a hit."""
    lengths: list[list[int]] = table.lengths.tolist()
    misses: list[bool] = [clock.rules.trace_misses and bool(can_miss) for can_miss in clock.can_miss]
    proposed: list[list[int]] = [
        table.proposed(number).tolist() if can_miss else [] for number, can_miss in enumerate(misses)
    ]
    found: list[int] = table.position_found.tolist() if policy.needs_matches else []
    index: list[int] = []
    variants: list[int] = []
    drafted: list[int] = []
    out: list[int] = []
    known = Known(0, 0, 0, clock.batch_size)
    requests = zip(
        table.request_start.tolist(), table.request_steps.tolist(), table.request_prompt.tolist(), strict=True
    )
    for start, steps, prompt in requests:
        policy.begin(clock, table.limit)
        known.prompt_tokens = prompt
        at, end = start, start + steps
        while at < end:
            known.generated = at - start + 1
            if found:
                known.match = found[at]
            variant, drafts = policy.choose(known)
            if not (0 <= variant < len(misses) and 0 <= drafts <= table.limit):
                raise rule(
                    f"policy {policy.label}: (variant, drafts)",
                    f"in (0..{len(misses) - 1}, 0..{table.limit})",
                    (variant, drafts),
                )
            if misses[variant]:
                drafts = min(drafts, proposed[variant][at])
            emitted = min(lengths[variant][at], drafts + 1)
            policy.learn(variant, drafts, emitted)
            index.append(at)
            variants.append(variant)
            drafted.append(drafts)
            out.append(emitted)
            at += emitted
    coin = bool(clock.can_miss.any()) and not clock.rules.trace_misses
    return Visits(as_ints(index), as_ints(variants), as_ints(drafted), as_ints(out), coin)


def as_ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def seconds_of(table: Table, visits: Visits, clock: Clock) -> Floats:
    """Seconds of each request under speculation, in a batch of its copies; shape (R,)."""
    at = visits.index
    steps = clock.step_s(
        visits.variant,
        table.position_context[at],
        visits.drafts,
        visits.emitted,
        table.position_left[at],
        hits(table, visits, clock),
    )
    return np.asarray(clock.prefill_s(table.request_prompt, speculate=True) + table.per_request(at, steps))


def hits(table: Table, visits: Visits, clock: Clock) -> Floats | float:
    """Probability that a step proposes its drafts."""
    if not visits.may_miss:
        return 1.0
    nothing = (table.lengths[visits.variant, visits.index] == 1) & (visits.drafts > 0)
    nothing &= clock.can_miss[visits.variant]
    return np.where(nothing, match_probability(table.dataset, clock.rules), 1.0)


def spent_with(table: Table, visits: Visits, clock: Clock) -> Spent:
    """With speculation, in the kind of batch that the rules ask for."""
    if clock.rules.mixed:
        at = visits.index
        steps = Steps(
            request=table.position_request[at],
            context=table.position_context[at],
            variant=visits.variant,
            drafts=visits.drafts,
            emitted=np.minimum(visits.emitted, table.position_left[at]),
            hit_probability=np.broadcast_to(hits(table, visits, clock), at.shape),
        )
        return serve(table, steps, clock)
    return of_copies(table, seconds_of(table, visits, clock))


def spent_without(table: Table, clock: Clock) -> Spent:
    """Without speculation."""
    if clock.rules.mixed:
        none = np.zeros(table.positions, dtype=np.int64)
        steps = Steps(
            request=table.position_request,
            context=table.position_context,
            variant=none,
            drafts=none,
            emitted=none + 1,
            hit_probability=none.astype(float),
        )
        return serve(table, steps, clock, speculate=False)
    return of_copies(table, clock.plain_s(table))


def of_copies(table: Table, seconds: Floats) -> Spent:
    return Spent(seconds, float(seconds.sum()), float(table.request_tokens.sum()))


def arms(policies: list[Policy], variants: list[str], costs: CostModel) -> list[tuple[tuple[str, ...], list[Policy]]]:
    """Which policies run on which variants; a combination names the cheapest drafter first, and ties go to it."""
    joint = tuple(sorted(variants, key=lambda name: costs.drafter(name).fixed_s))
    found: list[tuple[tuple[str, ...], list[Policy]]] = [
        ((name,), [policy for policy in policies if policy.scope in ("single", "both")]) for name in variants
    ]
    if len(variants) > 1:
        found.append((joint, [policy for policy in policies if policy.scope in ("joint", "both")]))
    return [(names, chosen) for names, chosen in found if chosen]


def simulate(
    file: TraceFile,
    costs: CostModel,
    rules: Rules,
    policies: list[Policy],
    variants: list[str],
    batch_sizes: list[int],
    sample: int | None = None,
) -> Iterator[Cell]:
    """Every cell of one data set, its requests read once."""
    if rules.mixed and any(policy.name == "bound" or policy.all_pay for policy in policies):
        raise DraftproofError("--policies bound and combine_all must be simulated with copies; switch mixed off")
    matches = rules.trace_misses or any(policy.needs_matches for policy in policies)
    pairs = arms(policies, variants, costs)
    sums: dict[tuple[int, int, int], Sums] = {}
    dataset = file.name
    for traces in chunks(file, rules, matches=matches, sample=sample):
        dataset = traces[0].dataset
        for number, (names, chosen) in enumerate(pairs):
            table = Table(dataset, traces, names, rules)
            if not table.requests:  # none of these requests has all traces of one output
                continue
            clocks = [Clock(costs, rules, size, names) for size in batch_sizes]
            plain = [spent_without(table, clock) for clock in clocks]
            for which, policy in enumerate(chosen):
                visits: Visits | None = None
                ticking = clocks
                if policy.all_pay:
                    ticking = [Clock(costs, rules, size, names, all_pay=True) for size in batch_sizes]
                for size, (clock, without) in enumerate(zip(ticking, plain, strict=True)):
                    if visits is None or policy.by_batch_size:
                        visits = visit(table, policy, clock)
                    total = sums.setdefault((number, which, size), Sums())
                    total.add(table, spent_with(table, visits, clock), without, visits.index.size)
    for number, (names, chosen) in enumerate(pairs):
        for which, policy in enumerate(chosen):
            for size, batch_size in enumerate(batch_sizes):
                if (number, which, size) not in sums:
                    raise DraftproofError(
                        f"{file.path}: no request has traces of {'+'.join(names)} for the same output"
                    )
                total = sums[number, which, size]
                yield Cell(
                    dataset=dataset,
                    variant="+".join(names),
                    policy=policy.label,
                    k=policy.k,
                    batch_size=batch_size,
                    speedup=total.speedup(rules),
                    rules=rules.name,
                    requests=total.requests,
                    tokens_per_step=total.tokens / total.steps if total.steps else 1.0,
                )


def with_shares(cells: list[Cell]) -> list[Cell]:
    """The cells with the part of the bound's gain that each reaches."""
    bounds = {bound_key(cell): cell.speedup for cell in cells if cell.policy == "bound"}
    return [
        msgspec.structs.replace(cell, share_of_bound=(cell.speedup - 1) / (bounds[bound_key(cell)] - 1))
        if bounds.get(bound_key(cell), 1.0) > 1.0
        else cell
        for cell in cells
    ]


def bound_key(cell: Cell) -> tuple[str, str, int, str]:
    return cell.dataset, cell.variant, cell.batch_size, cell.rules
