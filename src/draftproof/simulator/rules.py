"""The rules of a simulation: the paper's, and one named switch for each thing that they get wrong.

Source of the paper's rules: paper.md 4.3 and the public simulator of arXiv 2601.11580 (2fdccbd). Value by value:

==========================  ==========================================================================================
batch                       B copies of one request; the next request when all are done
requests                    300, ``random.Random(42).sample`` over the file's order
step                        forward over all copies' cached tokens and drafts + 1 tokens each, + draft + overhead
position read               ``lengths[committed - 1]``: the first decoding step reads the prefill's entry
fixed k                     k + 1 tokens verified, ``min(length, k + 1)`` emitted
oracle                      as many drafts as were accepted
n-gram, length 1            no match with a probability per data set: 1 token verified, no draft cost (fixed k only)
EAGLE's draft               one request's tokens; the cached tokens grow while the copies are gone through, and shrink
                            as they finish; the same at every k, and when nothing is proposed
combination                 the longer of both lengths, n-gram where equal; n-gram's price; cut to the shorter trace
end                         a last step may emit more than is left
result                      mean of tokens per second over requests, ratio of the two means
==========================  ==========================================================================================
"""

from __future__ import annotations

import msgspec

from draftproof.errors import unknown

PAPER_REQUESTS, PAPER_SEED = 300, 42
PAPER_MATCH_PROBABILITY = {"sharegpt": 0.2, "cnn": 0.4, "gsm8k": 0.2, "instructcoder": 0.8}
"""Probability of an n-gram match where nothing was accepted: set by hand in the public simulator."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Which mends are made. All off: the paper's simulator."""

    winner_pays: bool = False
    draft_per_k: bool = False
    idle_free: bool = False
    same_tokens: bool = False
    batch_draft: bool = False
    trace_misses: bool = False
    after_prefill: bool = False
    end_clipped: bool = False
    token_weighted: bool = False
    every_request: bool = False
    chunked_prefill: bool = False
    graph_padding: bool = False
    roofline: bool = False
    mixed: bool = False

    @property
    def name(self) -> str:
        """``paper``, ``corrected`` or one of both with what was switched."""
        on = [mend for mend in MENDS if getattr(self, mend)]
        off = [mend for mend in CORRECTED_MENDS if mend not in on]
        more = [mend for mend in on if mend not in CORRECTED_MENDS]
        if len(off) + len(more) < len(on):
            return "corrected" + "".join(f"-{mend}" for mend in off) + "".join(f"+{mend}" for mend in more)
        return "paper" + "".join(f"+{mend}" for mend in on)


MENDS: dict[str, str] = {
    "winner_pays": "a combination pays for the drafter whose tokens it takes (paper: the cheapest drafter's price)",
    "draft_per_k": "an autoregressive drafter costs one forward per draft token (paper: the same at every k)",
    "idle_free": "a step that drafts nothing pays for no draft",
    "same_tokens": "a combination takes only requests whose traces belong to the same output (equal ids, else length)",
    "batch_draft": "drafts are made once, for the batch as it stands before the step",
    "trace_misses": "an n-gram lookup misses where the context holds no match (paper: a coin)",
    "after_prefill": "the first decoding step reads the entry after the prefill's (paper: all lengths one step late)",
    "end_clipped": "no step emits, and no oracle drafts, more than is left of the output",
    "token_weighted": "speedup of all tokens over all seconds (paper: ratio of means over requests)",
    "every_request": "all requests of the file (paper: 300 of them)",
    "chunked_prefill": "prefill in chunks of the engine's token budget (paper: one forward of any size)",
    "graph_padding": "a batch costs the next captured graph's size, where the cost model has sizes",
    "roofline": "no forward is faster than the device's peaks, where the cost model has them",
    "mixed": "different requests in a batch, replaced as they end, instead of copies (not part of corrected)",
}
CORRECTED_MENDS = tuple(mend for mend in MENDS if mend != "mixed")
PAPER = Rules()
CORRECTED = Rules(**dict.fromkeys(CORRECTED_MENDS, True))
RULES = {"paper": PAPER, "corrected": CORRECTED}


def rules_named(name: str, switched_on: list[str], switched_off: list[str]) -> Rules:
    """The rules of that name with mends switched."""
    if name not in RULES:
        raise unknown("--rules", name, RULES)
    for option, mends in (("--with", switched_on), ("--without", switched_off)):
        for mend in mends:
            if mend not in MENDS:
                raise unknown(option, mend, MENDS)
    switches = {**dict.fromkeys(switched_on, True), **dict.fromkeys(switched_off, False)}
    return msgspec.structs.replace(RULES[name], **switches)
