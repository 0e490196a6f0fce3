"""How far a quantity moved between two runs, and whether that is further than a limit.

The quantity is compared prompt set by prompt set, on the log scale, before anything is averaged: what the prompts have
in common on both sides falls out. What the sets cannot show, that one run as a whole is faster than the next with
nothing changed, is added as a variance of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from draftproof.analysis.stats import CONFIDENCE

LEAST_ERROR = 1e-9
"""Stands for a standard error of 0: counts of a deterministic engine may be equal on all sets."""

KNOWN_DF = 1e6
"""Degrees of freedom of a spread of which nothing has to be estimated."""

KNOWN_WEIGHT = 8
"""Degrees of freedom that the known spread between runs counts for beside a baseline's own runs."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A change on the log scale; positive is worse."""

    worse: float
    """Mean over prompt sets of log(new / base), its sign turned where higher is better."""
    error: float
    """Standard error, spread between runs included."""
    df: float
    sets: int
    within: float = 0.0
    """The part of the squared error that the prompt sets show."""

    def p_worse(self, limit: float) -> float:
        """One-sided p-value of "worse by no more than `limit`" (log scale)."""
        return upper_tail((self.worse - limit) / self.error, self.df)

    def p_better(self, limit: float) -> float:
        """One-sided p-value of "better by no more than `limit`"."""
        return upper_tail((-self.worse - limit) / self.error, self.df)

    @property
    def reach(self) -> float:
        """One-sided 95 % reach of the mean: a limit that is smaller lies inside the noise."""
        return quantile(CONFIDENCE, self.df) * self.error

    def interval(self) -> tuple[float, float]:
        """Two-sided 95 % interval of `worse`."""
        half = quantile((1 + CONFIDENCE) / 2, self.df) * self.error
        return self.worse - half, self.worse + half


class Between(msgspec.Struct, frozen=True, kw_only=True):
    """Spread between runs with nothing changed."""

    sd: float
    """Standard deviation of a run's mean, log scale."""
    df: float = KNOWN_DF


def move(differences: Sequence[float], between: Between, base_runs: int = 1, new_runs: int = 1) -> Move | None:
    """`differences`: log(new / base) turned so that positive is worse, one a prompt set; None below two of them.

    Its variance is that of the mean over sets plus between.sd^2 (1 / base_runs + 1 / new_runs); degrees of freedom by
    Welch and Satterthwaite (Biometrics Bulletin 2, 1946).
    """
    count = len(differences)
    if count < 2:
        return None
    values = np.asarray(differences, dtype=float)
    within = float(values.var(ddof=1)) / count
    across = between.sd**2 * (1 / base_runs + 1 / new_runs)
    return Move(
        worse=float(values.mean()),
        error=max(LEAST_ERROR, math.sqrt(within + across)),
        df=joint_df([(within, count - 1), (across, between.df)]),
        sets=count,
        within=within,
    )


def geometric_mean(moves: Sequence[Move], between: Between, base_runs: int = 1, new_runs: int = 1) -> Move | None:
    """Of a variant's cells: their errors are independent but for the spread between runs, which is common to all."""
    if not moves:
        return None
    count = len(moves)
    across = between.sd**2 * (1 / base_runs + 1 / new_runs)
    own = [(found.within / count**2, found.sets - 1) for found in moves]
    within = sum(variance for variance, _ in own)
    return Move(
        worse=sum(found.worse for found in moves) / count,
        error=max(LEAST_ERROR, math.sqrt(within + across)),
        df=joint_df([*own, (across, between.df)]),
        sets=min(found.sets for found in moves),
        within=within,
    )


def noise_of_mean(runs: Sequence[Sequence[float]]) -> float:
    """Variance of a run's mean over its prompt sets, from [run][set]: what neither the run nor the set explains.

    Residual mean square of a two-way layout over the number of sets; 0 for a single run, which shows none of it.
    """
    values = np.asarray(runs, dtype=float)
    if min(values.shape) < 2:
        return 0.0
    left = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0, keepdims=True) + values.mean()
    count_runs, count_sets = values.shape
    return float((left**2).sum() / ((count_runs - 1) * (count_sets - 1) * count_sets))


def between_runs(means: Sequence[float], known_sd: float, noise: float = 0.0) -> Between:
    """The spread of a quantity's mean over the runs of a baseline, moderated by the known one.

    `noise`: variance of such a mean that its prompt sets account for; `move` adds it by itself.

    Variance and degrees of freedom as in Smyth (Statistical Applications in Genetics and Molecular Biology 3, 2004),
    equation for the moderated variance: few runs may agree by chance, and then the known spread holds.
    """
    df = KNOWN_WEIGHT + len(means) - 1
    own = 0.0
    if len(means) > 1:
        own = max(0.0, float(np.var(np.asarray(means, dtype=float), ddof=1)) - noise) * (len(means) - 1)
    return Between(sd=math.sqrt((KNOWN_WEIGHT * known_sd**2 + own) / df), df=df)


def joint_df(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of (variance, its degrees of freedom)."""
    total = sum(variance for variance, _ in parts)
    if total <= 0:
        return KNOWN_DF
    return 1 / sum((variance / total) ** 2 / df for variance, df in parts)  # shares: squares of small ones underflow


def upper_tail(t: float, df: float) -> float:
    """P(T > t) of Student's t (scipy's special function: a gate asks for thousands)."""
    from scipy import special

    return float(special.stdtr(df, -t))


def quantile(probability: float, df: float) -> float:
    from scipy import special

    return float(special.stdtrit(df, probability))
