"""Ratios: how well a few processes know a time, and how many times as long one case takes as another.

The process is the unit of replication: samples of one process share its memory layout, its compilation and its hour, and tell
how well its own median is known, not what the next process would give. Knows records and statistics; not which cases are to be
compared, nor what is made of it. Not for the worker: it needs SciPy.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import digamma, polygamma, stdtr, stdtrit

from scaling.core.record import Record
from scaling.core.statistics import median_interval

LEAST_VARIANCE = 1e-18  # of a logarithm: nothing is timed to a part in a billion
_ENOUGH = 20  # cases, below which nothing is learnt from the others


@dataclass(frozen=True)
class PairedRatio:
    """How many times as long the top takes as the bottom, with a 95 % interval; None where there are too few samples.

    With one process on a side the interval is that of the samples within the processes, and nothing can be decided.
    """

    value: float
    low: float | None
    high: float | None
    pairs: int = 0  # of processes whose turns of sampling alternated
    count: float = 0.0  # of independent differences between the two; 0 where nothing can be decided
    variance: float = 0.0  # of the logarithm of one such difference
    freedom: float = 0.0  # degrees of it
    apart: Mapping[Hashable, float] = field(default_factory=dict)  # process -> its logarithm's distance from the mean


def process_median(record: Record) -> float:
    """Seconds of one process: the median of its samples; where it compiled several times, the median of their medians."""
    return statistics.median(map(statistics.median, compilations(record)))


def compilations(record: Record) -> list[list[float]]:
    """The samples of each fresh compilation: those of the first, then those of the further ones."""
    rest, parts = record.seconds, list[list[float]]()
    for further in reversed(record.compilations):
        at = len(rest) - int(further.get("samples", 0))
        rest, parts = rest[:at], [rest[at:], *parts]
    return [part for part in (rest, *parts) if part]


def median(records: Sequence[Record]) -> float:
    """Seconds of a case, from a record a process: the median of the processes' medians."""
    return statistics.median(map(process_median, records))


def interval(records: Sequence[Record], confidence: float = 0.95) -> tuple[float, float] | None:
    """The interval of a case's median, from a record a process; None where there are too few samples.

    Of several processes it is one between processes: the rank interval of their medians where they are enough for one (six for
    95 %), or else Student's on the logarithms. Of one process it is the rank interval of the samples within it, around those of
    every compilation.
    """
    medians = [process_median(record) for record in records]
    if len(medians) == 1:
        within = [median_interval(samples, confidence) for samples in compilations(records[0])]
        known = [each for each in within if each]
        return (min(low for low, _ in known), max(high for _, high in known)) if len(known) == len(within) else None
    if ranked := median_interval(medians, confidence):
        return ranked
    logs = np.log(medians)
    half = stdtrit(len(logs) - 1, (1 + confidence) / 2) * math.sqrt(logs.var(ddof=1) / len(logs))
    return math.exp(logs.mean() - half), math.exp(logs.mean() + half)


def ratio(top: Sequence[Record], bottom: Sequence[Record]) -> PairedRatio:
    """The ratio of two cases, a record a process on each side.

    Two pairs or more of processes whose turns alternated (the same block and replicate) are compared pair by pair, so that what
    slowed both down cancels; else all processes of one side with all of the other (Welch).
    """
    above, below = ({(r.block, r.replicate): math.log(process_median(r)) for r in side} for side in (top, bottom))
    shared = [of for of in above if of in below and of[0] is not None]
    if len(shared) > 1:
        logs = {of[1]: above[of] - below[of] for of in shared}
        mean, variance = statistics.fmean(logs.values()), max(statistics.variance(logs.values()), LEAST_VARIANCE)
        apart: dict[Hashable, float] = {replicate: log - mean for replicate, log in logs.items()}
        return _student(mean, variance, len(logs), len(logs) - 1, apart, len(shared))
    if min(len(above), len(below)) > 1:
        means, counts = [statistics.fmean(side.values()) for side in (above, below)], [len(above), len(below)]
        errors = [max(statistics.variance(side.values()), LEAST_VARIANCE) / len(side) for side in (above, below)]
        freedom = sum(errors) ** 2 / sum(error**2 / (count - 1) for error, count in zip(errors, counts, strict=True))
        count = statistics.harmonic_mean(counts)
        apart = {(i, of[1]): log - means[i] for i, side in enumerate((above, below)) for of, log in side.items()}
        return _student(means[0] - means[1], sum(errors) * count, count, freedom, apart, len(shared))
    over, under = interval(top, 0.975), interval(bottom, 0.975)  # so that both hold at once 95 % of the time (Bonferroni)
    low, high = (over[0] / under[1], over[1] / under[0]) if over and under else (None, None)
    return PairedRatio(median(top) / median(bottom), low, high, len(shared))


def _student(
    log: float, variance: float, count: float, freedom: float, apart: Mapping[Hashable, float], pairs: int
) -> PairedRatio:
    """The ratio with this logarithm, and Student's interval."""
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(variance / count)
    return PairedRatio(math.exp(log), math.exp(log - half), math.exp(log + half), pairs, count, variance, freedom, apart)


def p_value(ratio: PairedRatio, margin: float = 0.0) -> float | None:
    """How often chance alone would show so much, if the two differed by no more than the margin; None where it cannot be told.

    Source: McCarthy and Smyth 2009, Testing significance relative to a fold-change threshold (TREAT).
    """
    if not ratio.count:
        return None
    distance, error = abs(math.log(ratio.value)), math.sqrt(ratio.variance / ratio.count)
    return float(sum(stdtr(ratio.freedom, (edge - distance) / error) for edge in (math.log1p(margin), -math.log1p(margin))))


def moderated(ratios: Sequence[PairedRatio]) -> list[PairedRatio]:
    """The same, each variance drawn towards those of the others: few processes know little of their own spread, many cases much.

    Empirical Bayes: Smyth 2004, Linear models and empirical Bayes methods (the moderated t of limma). Cases that share a process
    share its luck, so that many of them may know no more than one: what is learnt never counts for more than as many cases as
    their mean correlation leaves independent (the design effect of cluster sampling).
    """
    known = [ratio for ratio in ratios if ratio.count]
    if len(known) < _ENOUGH:
        return list(ratios)
    freedom, variance = (np.array([getattr(ratio, name) for ratio in known]) for name in ("freedom", "variance"))
    logs = np.log(np.maximum(variance, 1e-5 * np.median(variance))) - digamma(freedom / 2) + np.log(freedom / 2)
    half = _trigamma_inverse(float(logs.var(ddof=1) - polygamma(1, freedom / 2).mean()))
    common = math.exp(logs.mean() + digamma(half) - math.log(half))
    prior = min(2 * half, float(freedom.mean()) * (_independent(known) - 1))
    return [
        _student(math.log(r.value), (prior * common + r.freedom * r.variance) / (prior + r.freedom), r.count, prior + r.freedom,
                 r.apart, r.pairs) if r.count else r
        for r in ratios
    ]  # fmt: skip


def _trigamma_inverse(value: float) -> float:
    """Where the trigamma function has this value, by Newton's steps on its inverse; a million stands for infinity."""
    if value < 1e-6:
        return 1e6
    at = 0.5 + 1 / value
    for _ in range(50):
        at += polygamma(1, at) * (1 - polygamma(1, at) / value) / polygamma(2, at)
    return float(at)


def _independent(ratios: Sequence[PairedRatio]) -> float:
    """How many independent cases these are worth, by the mean correlation of what their processes are apart."""
    sums, cases = defaultdict[Hashable, float](float), Counter[Hashable]()
    for ratio in ratios:
        size = math.sqrt(statistics.fmean(apart**2 for apart in ratio.apart.values())) or 1.0
        for process, apart in ratio.apart.items():
            sums[process] += apart / size
            cases[process] += 1
    together = sum(sums[process] ** 2 - n for process, n in cases.items()) / max(1, sum(n * (n - 1) for n in cases.values()))
    return len(ratios) / (1 + (len(ratios) - 1) * min(max(together, 0.0), 1.0))
