"""The section on what to deploy: the advice in words, what it rests on, and what the data cannot say."""

from __future__ import annotations

from draftproof.analysis.memory import GIB, KIB
from draftproof.analysis.stats import Ratio
from draftproof.memorycosts import MemoryCost
from draftproof.metrics import ratio_text
from draftproof.outcomes import speedup_of
from draftproof.recommendation import Advice, Candidate, Choice, Close, recommend
from draftproof.records import RunHeader
from draftproof.report import memory, view
from draftproof.report.parts import Page, Section, Table
from draftproof.report.speed import break_even_text
from draftproof.results import RunResults

TITLE = "Recommendation"
MIB = 2**20

ADVICE: dict[Advice, str] = {
    "deploy": "deploy",
    "weak": "try first",
    "undecided": "leave SD off until more is measured",
    "off": "leave SD off",
    "none": "nothing to go by",
}

NOTE = (
    "Deploy: the fastest variant whose interval lies above 1 even after it was widened for the choice among all "
    "candidates of its row. Try first: only its own interval lies above 1. Leave SD off: every candidate is slower "
    "than no speculation; until more is measured: none is told to be faster. Of variants within one standard error of "
    "the fastest the one that takes least memory goes first. Controls are never advised, nor is a variant whose "
    "outputs or speedup did not pass."
)
WINNER = (
    "Choosing the best of several on the data that also measure it makes its gain look too large (the winner's curse): "
    "expect less than the figure. The interval for the best of n covers the choice: each of its ends is set at "
    "1 - 0.05/n (Bonferroni, log scale, Student's t with one degree of freedom less than prompt sets). It does not "
    "cover the choice of a row among the rows. Not told apart: the throughput of the fastest variant over theirs, "
    "in the same rotations where they shared them. Oracle: of the same k, right by construction."
)
HANDICAP = (
    " Where a variant forces settings that slow no-SD itself down, its speedup here is told over the fastest no-SD of "
    "its row: its own, times the ratio of both no-SDs' tokens/s, which has no interval"
)
MEMORY = " Memory it adds: expected weights and KV cache, beside the target's; room in the engine's KV cache, recorded."


def section(page: Page) -> Section | None:
    found = tables(page.results, page.header)
    return Section(id="recommendation", title=TITLE, tables=found) if found else None


def tables(results: RunResults, header: RunHeader) -> list[Table]:
    """None at all for a run without a variant that could be deployed."""
    choices = recommend(results)
    if not choices:
        return []
    made = [
        summary_table(choices, results),
        place_table(choices, results),
        excluded_table(choices, results),
        limits_table(results, header),
    ]
    return [table for table in made if table.body]


def place_name(choice: Choice, results: RunResults) -> str:
    return results.full_name(choice.workload, choice.target, choice.build)


def variant_text(candidate: Candidate) -> str:
    return candidate.variant + (f", k = {candidate.k}" if candidate.k is not None else "")


# -- by workload -------------------------------------------------------------------------------------------------------


def summary_table(choices: list[Choice], results: RunResults) -> Table:
    """A row for each target and workload: at which batch sizes to do what."""
    places: dict[str, list[Choice]] = {}
    for choice in choices:
        places.setdefault(place_name(choice, results), []).append(choice)
    body = []
    for name, members in places.items():
        told = [name]
        for wanted in ("deploy", "weak"):
            by_variant: dict[str, list[int]] = {}
            for one in members:
                if one.advice == wanted and one.chosen:
                    by_variant.setdefault(variant_text(one.chosen), []).append(one.batch_size)
            told.append("; ".join(f"{variant}: {sizes_text(at)}" for variant, at in by_variant.items()) or "-")
        for without in ("off", "undecided", "none"):
            told.append(sizes_text([one.batch_size for one in members if one.advice == without]) or "-")
        body.append(told)
    head = ["workload", ADVICE["deploy"], ADVICE["weak"], ADVICE["off"], ADVICE["undecided"], ADVICE["none"]]
    return Table(name="advice", title="When to speculate", note=NOTE, head=head, body=body, names=len(head))


def sizes_text(sizes: list[int]) -> str:
    return f"B = {', '.join(map(str, sorted(sizes)))}" if sizes else ""


# -- by place ----------------------------------------------------------------------------------------------------------


def place_table(choices: list[Choice], results: RunResults) -> Table:
    """A row for each place: the variant, its gain, and what it costs."""
    body = []
    for choice in choices:
        shown = choice.chosen or choice.fastest
        if shown is None:
            continue
        body.append(
            [
                place_name(choice, results),
                str(choice.batch_size),
                ADVICE[choice.advice],
                chosen_text(choice, shown),
                ratio_text(shown.net),
                f"of {choice.candidates}: {gain_text(shown.adjusted)}" if choice.chosen else "-",
                break_even_text(choice.break_even) if choice.break_even else "-",
                memory_text(choice.chosen.memory) if choice.chosen else "-",
                "; ".join(close_text(one) for one in choice.close if one.variant != shown.variant) or "-",
                reached_text(choice),
            ]
        )
    head = ["workload", "B", "advice", "variant", "speedup [95 %]", "gain for the best of n [95 %]"]
    head += ["break-even B [95 %]", "memory it adds", "not told apart [95 %]", "of the oracle's gain [95 %]"]
    slowed = list(dict.fromkeys(variant for choice in choices for variant in choice.slowed))
    return Table(
        name="deploy",
        title="What to deploy, and what it rests on",
        note=WINNER + (f"{HANDICAP}: {view.some(slowed)}." if slowed else "") + (MEMORY if results.memory else ""),
        head=head,
        body=body,
        names=4,
        more=memory.reference(results),
    )


def chosen_text(choice: Choice, shown: Candidate) -> str:
    if choice.chosen is None:
        return f"none (fastest: {variant_text(shown)})"
    if choice.fastest is not None and choice.fastest.variant != shown.variant:
        return f"{variant_text(shown)} (less memory than {choice.fastest.variant}, not one standard error slower)"
    return variant_text(shown)


def percent_text(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %"


def gain_text(ratio: Ratio) -> str:
    """A speedup as what it adds."""
    return f"{percent_text(ratio.value)} [{percent_text(ratio.low)}, {percent_text(ratio.high)}]"


def close_text(found: Close) -> str:
    return f"{found.variant}: {ratio_text(found.ratio)}"


def reached_text(choice: Choice) -> str:
    """As the table of bounds tells it, in percent."""
    share = choice.reached.share if choice.reached else None
    return f"{100 * share.value:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]" if share else "-"


def bytes_text(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def memory_text(cost: MemoryCost | None) -> str:
    """What comes to the target's own weights and KV cache, expected; and the room that was left, recorded."""
    if cost is None:
        return "not known"
    told = [weights_text(cost), cache_text(cost)]
    if told[0] == told[1]:  # of a lookup, and where nothing is known of the drafter
        told = told[:1]
    room = room_text(cost)
    return "; ".join([*told, room] if room else told)


def weights_text(cost: MemoryCost) -> str:
    """Without a known target: the bytes alone."""
    if not cost.static_bytes:
        return "not known" if cost.static_bytes is None else "none"
    return f"weights {bytes_text(cost.static_bytes)}{share_of(cost.static_bytes, cost.target_static_bytes)}"


def cache_text(cost: MemoryCost) -> str:
    if not cost.kv_bytes_per_token:
        return "not known" if cost.kv_bytes_per_token is None else "none"
    share = share_of(cost.kv_bytes_per_token, cost.target_kv_bytes_per_token)
    return f"KV cache {cost.kv_bytes_per_token / KIB:.2f} KiB a token{share}"


def room_text(cost: MemoryCost) -> str:
    """Empty where it was not recorded, and where the engine had room for as many tokens as without speculation."""
    if not cost.kv_cache_tokens or not cost.base_kv_cache_tokens or cost.kv_cache_tokens == cost.base_kv_cache_tokens:
        return ""
    change = 100 * (cost.kv_cache_tokens / cost.base_kv_cache_tokens - 1)
    return f"room for {cost.kv_cache_tokens:,} tokens, not {cost.base_kv_cache_tokens:,} ({change:+.1f} %)"


def share_of(part: int, whole: int | None) -> str:
    return f" ({100 * part / whole:+.1f} %)" if whole else ""


# -- what is left out, and what cannot be said -------------------------------------------------------------------------


def excluded_table(choices: list[Choice], results: RunResults) -> Table:
    """Variants that were measured, or should have been, and may not be advised: a row for each reason."""
    reasons: dict[str, list[str]] = {}
    for choice in choices:
        for one in choice.excluded:
            why = ": ".join(one.why.split(": ")[:2])
            reasons.setdefault(why, []).append(f"{one.variant} on {place_name(choice, results)} b{choice.batch_size}")
    body = [[view.some(names), str(len(names)), why] for why, names in reasons.items()]
    return Table(
        name="excluded",
        title="Never advised here",
        note="However fast: a variant must run, be told from noise, and write what no speculation writes. The figures "
        "are in each cell's detail.",
        head=["cells", "how many", "why"],
        body=body,
        names=3,
    )


def range_text(values: list[int]) -> str:
    """Of sorted values."""
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def limits_table(results: RunResults, header: RunHeader) -> Table:
    """What this run has of each thing that a deployment may have otherwise."""
    study = header.study
    told = [cell for cell in results.cells if speedup_of(cell)]
    sets = sorted({cell.speedup.clusters for cell in told if cell.speedup})
    lengths = sorted({cell.cell.output_tokens for cell in results.cells})
    sizes = sorted({cell.cell.batch_size for cell in results.cells})
    sampling = study.sampling
    waits = [cell.waiting for cell in results.cells if cell.waiting is not None]
    lines = [
        [
            "machine",
            "one: " + (view.environment_line(results) or "not recorded"),
            "another processor, vLLM or clock may turn the order round",
        ],
        [
            "prompts",
            f"{view.some(list(dict.fromkeys(c.cell.workload for c in results.cells)))}"
            + (f"; {range_text(sets)} prompt sets a cell" if sets else ""),
            "intervals are over these prompt sets; your texts accept other drafts",
        ],
        [
            "batch sizes",
            ", ".join(map(str, sizes)) + "; each batch starts and ends together",
            "nothing was run between them or beyond; requests that come and go, and queues, are not in it",
        ],
        [
            "sampling",
            "greedy" if sampling.temperature == 0 else f"temperature {sampling.temperature:g}",
            "other temperatures accept otherwise",
        ],
        [
            "lengths",
            f"{', '.join(map(str, lengths))} tokens, " + ("EOS ignored" if study.ignore_eos else "EOS ends a request"),
            "text after EOS is nobody's answer and may be drafted more easily, or less"
            if study.ignore_eos
            else "lengths are those of these prompts",
        ],
        ["k and options", "those of the catalog's entries", "another k was not run unless it has a row of its own"],
        [
            "figure",
            "output tokens / seconds over no-SD's, prefix caching off",
            "throughput: time to first token and time per token are in their own table",
        ],
        [
            "memory",
            "weights and KV cache alone",
            "activations, CUDA graphs and workspaces are not in the expected figures",
        ],
    ]
    if waits:
        lines.append(
            [
                "other work",
                f"threads stood without a CPU for up to {100 * max(waits):.0f} % of the time",
                "it costs steps of one row more than steps of many: no pairing cancels it",
            ]
        )
    return Table(
        name="cannot-say",
        title="What these data cannot say",
        note="What was held fixed, and what does not follow from it.",
        head=["of", "this run has", "beyond it"],
        body=lines,
        names=3,
    )
