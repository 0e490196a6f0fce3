"""The training loop: batches of texts, the loss against what the target would say, checkpoints, held-out acceptance."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import safetensors
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import save_file
from torch import Tensor, nn

from draftproof.building import Say
from draftproof.drafters.features import FINAL, Features
from draftproof.drafters.heads import Context, Draft, Eagle3, Head, Norm, Sizes, rotary
from draftproof.engines.surroundings import cpu_model
from draftproof.spec import Entry

CHECKPOINT_STEPS = 100
NEGATIVES = 1024
"""Random tokens that stand beside the frequent ones where the output matrix has the whole vocabulary."""


class Finish(Entry, frozen=True, kw_only=True):
    """A second stage, short and slow: kinds of text that the first did not see, among texts that it did."""

    kinds: list[str]
    replay: int
    """Texts of the first stage, so that what was learned there stays."""
    epochs: int
    learning_rate: float


class Schedule(Entry, frozen=True, kw_only=True):
    """How one drafter is trained: a table of ``recipes.toml``."""

    epochs: int
    texts_per_step: int
    learning_rate: float
    depth: int
    """Guesses in a row that the loss sees."""
    depth_weight: float = 0.7
    """Weight of each further guess over the one before it."""
    hard_share: float = 0.5
    """Of the loss: cross entropy with the target's choice; the rest is with its whole distribution."""
    window: int
    """The last slots of a text in which the drafter guesses."""
    frequent: int
    """Most frequent tokens that the loss compares."""
    seed: int = 0
    finish: Finish | None = None


class Stage(NamedTuple):
    """Steps ``start`` to ``stop``: `epochs` over `texts`, each in an order of its own, counted from `epoch`."""

    texts: list[int]
    epochs: int
    epoch: int
    learning_rate: float
    start: int
    stop: int


class Batch(NamedTuple):
    """Texts aligned at their ends; shapes begin with [texts, slots]."""

    tokens: Tensor
    states: Tensor | None
    final: Tensor
    """[texts, window, hidden]: the target's last state whose next token is guessed."""
    choice: Tensor
    """[texts, window]: the target's greedy choice; -1 where nothing is guessed."""
    context: Context


class Held(NamedTuple):
    """Held-out acceptance of greedy drafts, teacher-forced on the target's own text."""

    positions: list[float]
    """Share of chains that get as far as position 1, 2, ..."""
    kinds: dict[str, float]
    """Acceptance length by kind of text."""

    @property
    def length(self) -> float:
        return 1.0 + sum(self.positions)


class Trainer:
    """Trains one drafter. `embedding` [vocabulary, hidden] is the target's, used for input and (tied) output."""

    def __init__(
        self,
        module: Head | Draft,
        features: Features,
        target: Any,
        schedule: Schedule,
        device: str,
        vocabulary: list[int],
    ) -> None:
        self.module = module.to(device)
        self.features = features
        self.schedule = schedule
        self.device = device
        self.sizes = Sizes.of(target.config)
        self.embedding: Tensor = target.model.embed_tokens.weight.detach().to(device, torch.bfloat16)
        self.norm = Norm(self.sizes.hidden, self.sizes.eps).to(device)
        self.norm.weight.data.copy_(target.model.norm.weight)
        self.frequent = torch.tensor(sorted(vocabulary[: schedule.frequent]), device=device)
        self.held, self.stages = stages_of(features.index.kinds, schedule)
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.weights = weights
        self.steps = self.stages[-1].stop
        self.losses: list[float] = []
        self.machines: list[str] = []
        """What it was trained on, session by session where that changed."""

    # --- batches ------------------------------------------------------------------------------------------------------

    def plan(self, stage: Stage) -> Iterator[tuple[int, list[int]]]:
        """The steps of a stage with their texts: shuffled, then texts of like length together."""
        size, step = self.schedule.texts_per_step, stage.start
        for epoch in range(stage.epoch, stage.epoch + stage.epochs):
            rng = random.Random(f"{self.schedule.seed}-{epoch}")
            texts = list(stage.texts)
            rng.shuffle(texts)
            steps: list[list[int]] = []
            for at in range(0, len(texts), 16 * size):
                group = sorted(texts[at : at + 16 * size], key=self.length_tokens)
                steps.extend(group[i : i + size] for i in range(0, len(group) - size + 1, size))
            rng.shuffle(steps)
            yield from enumerate(steps, step)
            step += len(steps)

    def length_tokens(self, text: int) -> int:
        rows = self.features.rows(text)
        return rows.stop - rows.start

    def batch(self, texts: list[int]) -> Batch:
        """Heads get the token after each state (`ahead` = 1); a draft model gets the tokens alone."""
        ahead = 1 if isinstance(self.module, Head) else 0
        slots = max(self.length_tokens(text) for text in texts) - ahead
        window = min(self.schedule.window, slots)
        hidden = self.features.index.hidden_size
        tokens = torch.zeros(len(texts), slots, dtype=torch.long)
        choice = torch.full((len(texts), window), -1)
        final = torch.zeros(len(texts), window, hidden, dtype=torch.bfloat16)
        which = self.module.states if isinstance(self.module, Head) else None
        states = None
        if which is not None:
            states = torch.zeros(len(texts), slots, hidden * (which.stop - which.start), dtype=torch.bfloat16)
        first = torch.zeros(len(texts), dtype=torch.long)
        for row, text in enumerate(texts):
            rows = self.features.rows(text)
            own = rows.stop - rows.start - ahead
            first[row] = slots - own
            tokens[row, -own:] = torch.from_numpy(self.features.tokens[rows][ahead:].astype(np.int64))
            if states is not None and which is not None:
                states[row, -own:] = self.features.state(rows, which)[:own]
            asked = min(window, own if not ahead else rows.stop - rows.start - self.features.index.prompt_tokens[text])
            last = slice(rows.stop - asked, rows.stop)
            choice[row, -asked:] = torch.from_numpy(self.features.top[last].astype(np.int64))
            final[row, -asked:] = self.features.state(last, slice(FINAL, FINAL + 1))
        place = torch.arange(slots)[None] - first[:, None]
        cosines, sines = (part.to(self.device) for part in rotary(place.clamp(min=0), self.sizes))
        return Batch(
            tokens.to(self.device),
            None if states is None else states.to(self.device),
            final.to(self.device),
            choice.to(self.device),
            Context((cosines, sines), first.to(self.device), window),
        )

    # --- loss ---------------------------------------------------------------------------------------------------------

    def guesses(self, batch: Batch, depth: int) -> list[Tensor]:
        embedded = F.embedding(batch.tokens, self.embedding)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            if isinstance(self.module, Head):
                assert batch.states is not None
                return self.module.guesses(embedded, batch.states, batch.context, depth)
            return [self.module(embedded, batch.context)[:, -batch.context.window :]]

    def candidates(self, choice: Tensor, rng: torch.Generator) -> Tensor:
        """The tokens that the loss compares, ascending: the frequent ones, some others, and the right ones."""
        if isinstance(self.module, Eagle3):
            return self.frequent
        others = torch.randint(0, len(self.embedding), (NEGATIVES,), generator=rng).to(self.device)
        return torch.cat([self.frequent, others, choice]).unique()

    def output(self, guess: Tensor, candidates: Tensor | None) -> Tensor:
        """Logits over the candidates, or over the drafter's whole vocabulary."""
        with torch.autocast(self.device, dtype=torch.bfloat16):
            if isinstance(self.module, Eagle3):
                return self.module.lm_head(guess)
            return guess @ (self.embedding if candidates is None else self.embedding[candidates]).T

    def loss(self, batch: Batch, rng: torch.Generator) -> Tensor:
        asked = batch.choice >= 0
        candidates = self.candidates(batch.choice[asked], rng)
        at = torch.searchsorted(candidates, batch.choice).clamp(max=len(candidates) - 1)
        asked = asked & (candidates[at] == batch.choice)
        with torch.no_grad():
            wanted = (self.norm(batch.final[asked]).bfloat16() @ self.embedding[candidates].T).float().softmax(-1)
            wanted *= 1 - self.schedule.hard_share
            wanted.scatter_add_(1, at[asked][:, None], torch.full_like(wanted[:, :1], self.schedule.hard_share))
        with torch.autocast(self.device, dtype=torch.bfloat16):
            matrix = self.module.lm_head.weight if isinstance(self.module, Eagle3) else self.embedding[candidates]
            mean_row = wanted @ matrix
        column = torch.arange(asked.shape[1], device=self.device).expand_as(asked)[asked]
        total, weight, share = torch.zeros((), device=self.device), 1.0, 0.0
        for number, guess in enumerate(self.guesses(batch, self.schedule.depth)):
            # Cross entropy; the wanted logits' mean is taken in the hidden space, where it is one small product.
            asked_guess = guess[asked]
            each = self.output(asked_guess, candidates).float().logsumexp(-1) - (asked_guess * mean_row).sum(-1)
            begun = (column >= number).float()  # no chain begins before the window
            total = total + weight * (each * begun).sum() / begun.sum().clamp(min=1)
            share += weight
            weight *= self.schedule.depth_weight
        return total / share

    @torch.inference_mode()
    def measure(self, texts: list[int], depth: int = 3) -> Held:
        """Greedy chains of `depth` drafts on held-out texts: a position counts when all before it were right too."""
        reached = torch.zeros(depth, dtype=torch.float64)
        chains = 0
        by_kind: dict[str, list[float]] = {}
        ordered = sorted(texts, key=self.length_tokens)
        for at in range(0, len(ordered), self.schedule.texts_per_step):
            group = ordered[at : at + self.schedule.texts_per_step]
            batch = self.batch(group)
            right = self.right(batch, depth)
            alive = torch.ones_like(batch.choice[:, : batch.choice.shape[1] - depth + 1], dtype=torch.bool)
            span = alive.shape[1]
            start = batch.choice[:, :span] >= 0
            kept = torch.zeros(start.shape, device=self.device)
            for number in range(depth):
                alive = alive & right[number][:, number : number + span]
                reached[number] += (alive & start).sum().cpu()
                kept += alive & start
            chains += int(start.sum())
            for row, text in enumerate(group):
                if start[row].any():
                    value = float(kept[row][start[row]].mean())
                    by_kind.setdefault(self.features.index.kinds[text], []).append(1.0 + value)
        kinds = {kind: sum(values) / len(values) for kind, values in sorted(by_kind.items())}
        return Held((reached / max(1, chains)).tolist(), kinds)

    def right(self, batch: Batch, depth: int) -> list[Tensor]:
        """Whether each guess is the target's choice, [texts, window] for each place in a chain."""
        found = []
        for guess in self.guesses(batch, depth):
            best = torch.cat([self.output(part, None).argmax(-1) for part in guess.split(4)])
            found.append((self.frequent[best] if isinstance(self.module, Eagle3) else best) == batch.choice)
        return found if len(found) == depth else found * depth

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self, checkpoint: Path, say: Say) -> float:
        """Train to the end, from the checkpoint where there is one; returns the seconds that it took, all sessions."""
        done, before_s = self.restore(checkpoint)
        machine = f"{cpu_model()}, {torch.get_num_threads()} threads" if self.device == "cpu" else self.device
        self.machines += [machine] * (machine not in self.machines[-1:])
        started = time.monotonic()
        rng = torch.Generator()
        for stage in self.stages:
            if done <= stage.start:
                self.optimizer.state.clear()
            for step, texts in self.plan(stage):
                if step < done:
                    continue
                rng.manual_seed(self.schedule.seed * 1_000_003 + step)
                for group in self.optimizer.param_groups:
                    group["lr"] = stage.learning_rate * pace(step - stage.start, stage.stop - stage.start)
                self.optimizer.zero_grad()
                loss = self.loss(self.batch(texts), rng)
                loss.backward()
                nn.utils.clip_grad_norm_(self.weights, 1.0)
                self.optimizer.step()
                self.losses.append(round(loss.item(), 4))
                if (step + 1) % CHECKPOINT_STEPS == 0 or step + 1 == stage.stop:
                    seconds = before_s + time.monotonic() - started
                    self.keep(checkpoint, step + 1, seconds)
                    recent = self.losses[-CHECKPOINT_STEPS:]
                    held = self.measure(self.held[:64])
                    say(
                        f"step {step + 1}/{self.steps}, {seconds:.0f} s: loss {sum(recent) / len(recent):.3f}, "
                        f"held-out acceptance length {held.length:.2f} "
                        f"({', '.join(f'{share:.2f}' for share in held.positions)})"
                    )
        return before_s + time.monotonic() - started

    def keep(self, path: Path, step: int, seconds: float) -> None:
        tensors = {f"weight.{name}": weight.detach() for name, weight in self.module.state_dict().items()}
        for number, weight in enumerate(self.weights):
            for name, value in self.optimizer.state[weight].items():
                tensors[f"optimizer.{number}.{name}"] = value
        facts = {
            "step": str(step),
            "seconds": str(seconds),
            "losses": msgspec.json.encode(self.losses).decode(),
            "schedule": msgspec.json.encode(self.schedule).decode(),
            "machines": msgspec.json.encode(self.machines).decode(),
        }
        temporary = path.with_suffix(".part")
        save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, temporary, facts)
        temporary.replace(path)

    def restore(self, path: Path) -> tuple[int, float]:
        """Steps done and seconds spent. A checkpoint of another schedule is no checkpoint."""
        if not path.is_file():
            return 0, 0.0
        with safetensors.safe_open(path, "pt", device=self.device) as file:
            facts = file.metadata()
            if msgspec.json.decode(facts["schedule"].encode(), type=Schedule) != self.schedule:
                return 0, 0.0
            names = list(file.keys())
            prefix = "weight."
            self.module.load_state_dict(
                {name.removeprefix(prefix): file.get_tensor(name) for name in names if name.startswith(prefix)}
            )
            for number, weight in enumerate(self.weights):
                start = f"optimizer.{number}."
                self.optimizer.state[weight] = {
                    name.removeprefix(start): file.get_tensor(name) for name in names if name.startswith(start)
                }
        self.losses = msgspec.json.decode(facts["losses"].encode(), type=list[float])
        self.machines = msgspec.json.decode(facts["machines"].encode(), type=list[str])
        return int(facts["step"]), float(facts["seconds"])


def stages_of(kinds: list[str], schedule: Schedule) -> tuple[list[int], list[Stage]]:
    """Held-out texts, and the stages. What is held out of the first stage is so with and without a second."""

    def dealt(texts: list[int]) -> tuple[list[int], list[int]]:
        random.Random(schedule.seed).shuffle(texts)
        held = max(1, min(256, len(texts) // 20))
        return texts[:held], texts[held:]

    def steps(texts: list[int], epochs: int) -> int:
        return epochs * (len(texts) // schedule.texts_per_step)

    finish = schedule.finish
    late = set(finish.kinds) if finish else set()
    held, texts = dealt([text for text, kind in enumerate(kinds) if kind not in late])
    stop = steps(texts, schedule.epochs)
    stages = [Stage(texts, schedule.epochs, 0, schedule.learning_rate, 0, stop)]
    if finish is not None:
        held_late, late_texts = dealt([text for text, kind in enumerate(kinds) if kind in late])
        held += held_late
        mixed = late_texts + texts[: finish.replay]
        end = stop + steps(mixed, finish.epochs)
        stages.append(Stage(mixed, finish.epochs, schedule.epochs, finish.learning_rate, stop, end))
    return held, stages


def pace(step: int, steps: int) -> float:
    """Learning rate over its maximum: a short rise, then a cosine down to a fiftieth."""
    rise = min(40, max(1, steps // 20))
    if step < rise:
        return (step + 1) / rise
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
