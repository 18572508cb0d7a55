"""Values that cannot be log-probs, scores or entropies, and entropies of another distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.check.first_record import PER_NAT
from grpo_cli.commands.check.record_view import BY_TOKEN, View, find_bad
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.verify.compare import half_steps, precisions

_ROUNDING = 1e-4


@rule("not-finite")
def find_non_finite(view: View) -> Iterator[Finding]:
    """Finds NaN and ±inf at tokens that count, where every formula is undefined (verl#721)."""
    for name, values in view.log_probs.items():
        bad = ~np.isfinite(values)
        for record in np.flatnonzero(view.count(bad)).tolist():
            part = view.tokens_of(record)
            yield Finding(
                {"column": name, "tokens": bad[part].sum(), "of": part.stop - part.start},
                **view.first_token(record, bad),
                kind="padding" if _are_ends(view, bad, part) else "",
                words={"name": view.key(name), "value": values[part][np.argmax(bad[part])]},
            )


def _are_ends(view: View, bad: NDArray[np.bool_], part: slice) -> bool:
    """Whether what is bad ends responses that begin well, by more than a token each."""
    inside, positions = bad[part], view.responses.positions[part]
    last = np.append(positions[1:] == 0, True)
    begins = inside & ~np.append(False, inside[:-1])
    over = inside & ~last & ~np.append(inside[1:], False)
    several = int(inside.sum()) > int(begins.sum())
    return several and not over.any() and not inside[positions == 0].any()


@rule("probabilities")
def find_positive_log_probs(view: View) -> Iterator[Finding]:
    """Finds log-probs above 0: probabilities, or log-probs without their sign.

    The logarithm of a probability is at most 0, so a single value above 0 is proof. Values
    that are all in [0, 1] are probabilities; if all are >= 0 and some above 1, they are −log p.
    """
    for name, values in view.log_probs.items():
        above = (values > 0.0) & (values < np.inf)
        for record in np.flatnonzero(view.count(above)).tolist():
            part = view.tokens_of(record)
            inside, positive = values[part], values[part][above[part]]
            finite = inside[np.isfinite(inside)]
            low, high = finite.min(), finite.max()
            kind = "negated" if low >= 0.0 else "some"
            if low >= 0.0 and high <= 1.0:
                kind = "all"
            elif low < 0.0 and len(positive) > 1 and (positive == positive[0]).all():
                kind = "filler"
            yield Finding(
                {
                    "column": name,
                    "above_0": len(positive),
                    "of": len(inside),
                    "min": low,
                    "max": high,
                },
                **view.first_token(record, above),
                kind=kind,
                words={"name": view.key(name), "value": positive[0]},
            )


@rule("bad-score")
def find_bad_scores(view: View) -> Iterator[Finding]:
    """Finds rewards and advantages that no command evaluates; null of several functions is fine.

    A std over groups of one makes all advantages NaN: ruc-datalab/DeepAnalyze#116.
    """
    for name in ("rewards", "advantages"):
        scores, rows = view.packed.scores.get(name), np.arange(len(view.lengths))
        if scores is None and name == "advantages" and BY_TOKEN in view.packed.columns:
            counted = slice(None) if view.mask is None else view.mask
            scores, rows = view.packed.columns[BY_TOKEN][counted], view.responses.index
        if scores is None or not find_bad(scores).any():
            continue
        values = np.where(find_bad(scores), scores, 0.0).reshape(len(scores), -1)
        bad = np.flatnonzero((values != 0.0).any(axis=1))
        records = view.records.index[rows[bad]]
        for record in np.unique(records).tolist():
            mine = bad[records == record]
            count, of = len(np.unique(rows[mine])), view.counts[record]
            value = next(value for value in values[mine[0]].tolist() if value)
            at = view.at(int(rows[mine[0]]))
            written = view.values[record].get(view.key(name))
            null = isinstance(written, list) and written[at["response"]] is None
            yield Finding(
                {"column": name, "responses": count, "of": of},
                **at,
                words={"name": view.key(name), "value": "null" if null else f"{value:g}"},
            )


@rule("negative-entropy")
def find_negative_entropies(view: View) -> Iterator[Finding]:
    """Finds entropies below 0 by more than rounding: no distribution over words has one."""
    values = view.columns.get("entropies")
    if values is None:
        return
    negative = values < -_ROUNDING
    for record in np.flatnonzero(view.count(negative)).tolist():
        part = view.tokens_of(record)
        low = negative[part]
        same = np.unique(values[part][low])
        filled = f", all of them {same[0]:g}: a filler" if len(same) == 1 else ""
        yield Finding(
            {"tokens": low.sum(), "of": len(low), "min": same[0]},
            **view.first_token(record, negative),
            words={"name": view.key("entropies"), "filled": filled},
        )


@rule("half-precision")
def find_half_precision(view: View) -> Iterator[Finding]:
    """Finds columns all of whose numbers are those of a format of 16 bits, where others are not."""
    kinds = {name: precisions(values, view.tokens) for name, values in view.log_probs.items()}
    for record in range(len(view.counts)):
        short = {name: kind[record] for name, kind in kinds.items() if kind[record]}
        for name, kind in short.items() if len(short) < len(kinds) else ():
            step = half_steps(kind, view.log_probs[name][view.tokens_of(record)]).max()
            evidence = {"column": name, "format": kind, "largest": step}
            yield Finding(evidence, record, words={"name": view.key(name)})


# ---- entropies against log-probs -----------------------------------------------------------------

_LEAST_TOKENS = 64
_COPIED, _COPY = 0.99, 1e-4
_BELOW, _OFTEN, _TOO_OFTEN = 0.5, 0.1, 0.3
_SIGMAS, _AWAY, _WITHIN = 6.0, 1.2, 0.1
_SURE, _TEMPERED = 0.3, 0.8
_STRAIGHT, _SPREAD, _SLOPES = 0.8, 1.2, (0.6, 1.1)


class _Sample(NamedTuple):
    """One record: −log p of the tokens taken, the entropies, and whether columns have one mean."""

    record: int
    cost: F64
    entropy: F64
    agree: bool

    @property
    def factor(self) -> float:
        """The mean −log p over the mean entropy; 1 if they may be equal.

        Of tokens drawn from a policy they have one mean.
        """
        over, mean = self.cost - self.entropy, float(self.entropy.mean())
        error = float(over.std(ddof=1)) / math.sqrt(len(over))
        sure = mean > 0.0 and abs(float(over.mean())) > _SIGMAS * error
        return float(self.cost.mean()) / mean if sure and self.agree else 1.0

    @property
    def least(self) -> F64:
        """The least entropy that a token's p allows: all others are one word."""
        p = np.exp(-self.cost)
        return self.cost * p - (1.0 - p) * np.log(np.maximum(1.0 - p, 1e-300))

    @property
    def too_low(self) -> NDArray[np.bool_]:
        """The tokens whose entropy is below half of the least."""
        return (self.entropy < _BELOW * self.least) & (self.least > 1e-3)

    @property
    def low(self) -> float:
        """The share of these tokens."""
        return float(np.mean(self.too_low))

    @property
    def slope(self) -> float:
        """Of log H on log(−log p), where the likeliest token was taken.

        About 0.9 in one distribution, whatever the base, and 0.9 T where the log-probs alone are
        at T. It is 1 where the two do not correlate, or all tokens are about as sure.
        """
        taken = (self.cost > 1e-6) & (self.cost < _SURE) & (self.entropy > 1e-6)
        if np.count_nonzero(taken) < _LEAST_TOKENS / 4:
            return 1.0
        x, y = np.log(self.cost[taken]), np.log(self.entropy[taken])
        x, y = x - x.mean(), y - y.mean()
        straight = float(x @ y) > _STRAIGHT * math.sqrt(float(x @ x) * float(y @ y))
        if not straight or x.std() < _SPREAD:
            return 1.0
        return float(y.std() / x.std())  # both are measured with errors

    @property
    def base(self) -> int:
        """The base of the log-probs, if it is 2 or 10; else 0."""
        for base, per_nat in PER_NAT.items():
            if abs(self.factor / per_nat - 1.0) < _WITHIN:
                right = _SLOPES[0] < self.slope < _SLOPES[1] and self.low < _TOO_OFTEN
                return base if right else 0
        return 0


def _samples(view: View) -> Iterator[_Sample]:
    entropies, new = view.columns.get("entropies"), view.log_probs.get("log_probs_new")
    if entropies is None or new is None:
        return
    for record in np.flatnonzero(view.tokens >= _LEAST_TOKENS).tolist():
        part = view.tokens_of(record)
        cost, entropy = -new[part], entropies[part]
        if np.isfinite([cost, entropy]).all() and (entropy >= 0.0).all():
            means = [float(column[part].mean()) for column in view.log_probs.values()]
            agree = max(means) - min(means) < 0.05 * float(cost.mean())
            yield _Sample(record, cost, entropy, agree)


@rule("log-base")
def find_log_bases_by_entropy(view: View) -> Iterator[Finding]:
    """Finds records all of whose columns are in base 2 or 10, by their entropies in nats."""
    for one in _samples(view):
        if base := one.base:
            columns = ["log_probs_new", "entropies"]
            evidence = {"columns": columns, "base": base, "factor": one.factor}
            yield Finding(evidence, one.record, kind="entropy")


@rule("entropies")
def find_wrong_entropies(view: View) -> Iterator[Finding]:
    """Finds entropies that are not of the distribution from which the tokens were drawn.

    They are −log p at 99 of 100 tokens. Or their mean is not that of −log p, by 6 standard errors
    and a fifth, which is an info where top-p may have cut unlikely words off. Or 1 of 10 is less
    than half of −p·log p − (1 − p)·log(1 − p), the least where a word has probability p.
    """
    for one in _samples(view):
        size = np.maximum(one.cost, one.entropy)
        equal = np.mean(np.abs(one.cost - one.entropy) <= _COPY * size + 1e-9)
        factor, low = one.factor, one.low
        words = {"name": view.key("entropies")}
        if equal > _COPIED:
            yield Finding({"share": equal}, one.record, kind="copies", words=words)
        elif max(factor, 1.0 / factor) > _AWAY and not one.base:
            yield Finding(
                {"factor": factor, "slope": one.slope},
                one.record,
                kind="temperature",
                severity="warning" if factor > 1.0 or one.slope < _TEMPERED else "info",
                words=words | {"which": "sharper" if factor < 1.0 else "flatter"},
            )
        elif low > _OFTEN:
            evidence = {"share": low, "tokens": len(one.cost)}
            at = int(np.argmax(one.too_low))
            place = view.place(view.tokens_of(one.record).start + at)
            where = f"response {place['response']}, token {place['token']}"
            words |= {"where": where, "entropy": one.entropy[at], "least": one.least[at]}
            yield Finding(evidence, one.record, kind="small", words=words)
