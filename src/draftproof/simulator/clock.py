"""How long a step takes under given rules: the one place where costs, rules and batch size meet.

Everything is per copy of a batch of identical copies, or per step of it, which is the same: all copies run in lockstep.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from draftproof.simulator.costs import CostModel, Floats
from draftproof.simulator.rules import Rules
from draftproof.simulator.table import Ints, Table


class Clock:
    """Seconds of steps for `batch_size` copies that may use `variants`."""

    def __init__(
        self, costs: CostModel, rules: Rules, batch_size: int, variants: tuple[str, ...], *, all_pay: bool = False
    ) -> None:
        """`all_pay`: every drafter drafts at every step, whoever wins."""
        drafters = [costs.drafter(name) for name in variants]
        if len(drafters) > 1 and not rules.winner_pays and not all_pay:
            drafters = [min(drafters, key=lambda drafter: drafter.fixed_s)] * len(drafters)
        self.costs, self.rules, self.batch_size, self.variants = costs, rules, batch_size, variants
        self.fixed_s = np.array([drafter.fixed_s for drafter in drafters])
        self.per_kv_token_s = np.array([drafter.per_kv_token_s for drafter in drafters])
        self.per_token_s = np.array([drafter.per_token_s for drafter in drafters])
        self.share = np.array([drafter.share_of_verify for drafter in drafters])
        self.fitted_k = np.array([drafter.fitted_k for drafter in drafters])
        self.per_prompt_token_s = sum(costs.drafter(name).per_prompt_token_s for name in variants)
        """Every drafter reads the prompt, whoever drafts later."""
        self.can_miss = np.array([costs.drafter(name).can_miss for name in variants])
        self.idle_free = not all_pay and (rules.idle_free or (len(drafters) == 1 and drafters[0].can_miss))
        """The paper lets only a lookup on its own be free where it proposes nothing."""
        self.paying = range(len(drafters)) if all_pay else None

    def forward_s(self, cached: ArrayLike, tokens: ArrayLike, prompt: ArrayLike | None = None) -> Floats:
        return self.costs.forward_s(
            np.asarray(cached, dtype=float),
            np.asarray(tokens, dtype=float),
            pad=self.rules.graph_padding,
            floor=self.rules.roofline,
            prompt=prompt,
        )

    def step_s(
        self,
        variant: Ints | int,
        context: Ints,
        drafts: Ints,
        emitted: Ints,
        left: Ints,
        hit_probability: Floats | float = 1.0,
    ) -> Floats:
        """Seconds of a step; the arguments broadcast.

        `context` tokens are cached per copy, `drafts` are proposed to each, `emitted` come out, `left` were to come.
        With a `hit_probability` below 1 each copy proposes its drafts only with that probability, on its own: the
        result is then the exact expectation over copies (Binomial) wherever a forward is linear in tokens.
        """
        size = self.batch_size
        verify = self.forward_s(size * context, size * (1 + drafts * hit_probability))
        if self.rules.batch_draft:
            cached = size * context
            draft_tokens = size * (drafts + 1)
            priced, share = verify, 1.0 - (1.0 - np.asarray(hit_probability)) ** size
        else:
            # Copy j sees what the j copies before it emitted or, as they finish, gave back; here the mean over copies.
            finishing = emitted >= left
            cached = np.where(finishing, (size + 1) / 2 * context, size * context + (size - 1) / 2 * emitted)
            draft_tokens = drafts + 1
            # A copy that drafts sees 1 + (B - 1) p copies draft.
            seen = size + drafts * (1 + (size - 1) * np.asarray(hit_probability))
            priced = self.forward_s(size * context, seen) if np.ndim(hit_probability) else verify
            share = np.asarray(hit_probability)
        draft = np.zeros(1)
        for payer in [variant] if self.paying is None else self.paying:
            growth: Floats | float = 1.0
            if self.rules.draft_per_k:
                fitted = self.fitted_k[payer]
                growth = np.where(fitted > 0, drafts / np.maximum(fitted, 1), 1.0)
            draft = draft + (
                self.share[payer] * share * priced
                + growth * (self.fixed_s[payer] + self.per_kv_token_s[payer] * cached)
                + self.per_token_s[payer] * draft_tokens
            )
        if self.idle_free:
            draft = np.where(drafts == 0, 0.0, draft)
        return np.asarray(verify + draft + self.costs.step.beside_s(size, size * (drafts * hit_probability)))

    def prefill_s(self, prompt: Ints, *, speculate: bool = False) -> Floats:
        """Seconds until all copies have their first token. `speculate`: the drafters read the prompt as well."""
        tokens = self.batch_size * prompt
        overhead = self.costs.step.overhead_s
        read_s = self.per_prompt_token_s * tokens if speculate else np.zeros(len(prompt))
        more = self.costs.step.per_request_s * self.batch_size + read_s
        if not self.rules.chunked_prefill:
            return np.asarray(self.forward_s(np.zeros(len(prompt)), tokens, tokens) + overhead + more)
        budget = self.costs.step.max_batched_tokens
        total = np.zeros(len(prompt))
        for start in range(0, int(tokens.max(initial=0)), budget):
            chunk = np.minimum(tokens - start, budget)
            chunk = np.maximum(chunk, 0)
            spent = self.forward_s(np.full(len(prompt), start), chunk, chunk) + overhead
            total += np.where(chunk > 0, spent, 0.0)
        return total + more

    def plain_s(self, table: Table) -> Floats:
        """Seconds of each request without speculation, shape (R,): prefill, then one token a step."""
        size = self.batch_size
        steps = self.forward_s(size * table.position_context, np.array(size)) + self.costs.step.beside_s(size, 0)
        decode = np.bincount(table.position_request, weights=steps, minlength=table.requests)
        return np.asarray(self.prefill_s(table.request_prompt) + decode)
