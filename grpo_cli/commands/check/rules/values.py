"""Values that cannot be log-probs, scores or entropies, and entropies of another distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from grpo_cli.commands.check.first_record import PER_NAT
from grpo_cli.commands.check.record_view import BY_TOKEN, View, find_bad
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.check.tokens import Place
from grpo_cli.commands.verify.compare import half_steps, precisions
from grpo_cli.objective.arithmetic.exact_sums import ExactSums

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
                words={
                    "name": view.key(name),
                    "value": values[part][np.argmax(bad[part])],
                    "side": "the engine returned no value"
                    if name == "log_probs_rollout"
                    else "the trainer computed no number (weights, logits, a temperature of 0)",
                },
            )


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
        scores, by_token = view.packed.scores.get(name), False
        if scores is None and name == "advantages" and BY_TOKEN in view.packed.columns:
            counted = slice(None) if view.mask is None else view.mask
            scores, by_token = view.packed.columns[BY_TOKEN][counted], True
        if scores is None or not find_bad(scores).any():
            continue
        rows = view.responses.index if by_token else np.arange(len(view.lengths))
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
_TOGETHER = 0.2
_SIGMAS, _AWAY = 6.0, 1.2
_BIAS, _ERRORS, _WITHIN = 0.02, 4.0, 0.1
"""A base's factor is within 2 % and four standard errors, which together are 10 % at most."""
_SURE, _TEMPERED = 0.3, 0.8
_STRAIGHT, _SPREAD, _SLOPES = 0.8, 1.2, (0.6, 1.1)
_FLAT, _MANY_TOKENS = 0.4, 256


@dataclass
class Entropies:
    """Entropies H and costs c = −log p of the tokens of one file, as sums that merge exactly.

    Attributes:
        place: the first record that has both; ``name`` the user's key of the entropies.
        sums: of tokens, c, H and their products ("cc", "cH", "HH"), of the unsure tokens too
            ("unsure c", …), and with H of the previous or the next token ("previous H", …); of
            log c and log H where the likeliest token was taken ("x", "xx", "xy", …); and of each
            column of log-probs.
    """

    place: Place
    name: str
    sums: ExactSums[str] = field(default_factory=ExactSums)

    def merge(self, later: Entropies) -> None:
        """Adds those of records that follow."""
        self.sums.merge(later.sums)

    def __getitem__(self, name: str) -> float:
        return self.sums[name].value()

    def moments(self, x: str, y: str, count: str = "tokens", of: str = "") -> tuple[float, ...]:
        """The number of tokens, and Σxx, Σxy, Σyy about the means of x and y, or of another's."""
        n, a, b = (self[of + name] for name in (count, x, y))
        pairs = ((x + x, a * a), (x + y, a * b), (y + y, b * b))
        return n, *(self[of + name] - both / n for name, both in pairs)

    @property
    def factor(self) -> float:
        """The mean −log p over the mean entropy; 1 if they may be equal.

        Of tokens drawn from a policy they have one mean.
        """
        over, (n, cc, ch, hh) = self["c"] - self["H"], self.moments("c", "H")
        error = math.sqrt(max(cc - 2.0 * ch + hh, 0.0) * n / (n - 1.0))
        sums = [one.value() for name, one in self.sums.items() if name.startswith("log_probs")]
        agree = max(sums) - min(sums) < 0.05 * self["c"]
        return self["c"] / self["H"] if agree and abs(over) > _SIGMAS * error else 1.0

    @property
    def error(self) -> float:
        """The standard error of the mean −log p over the mean entropy."""
        factor = self["c"] / self["H"]
        left = self["cc"] - 2.0 * factor * self["cH"] + factor * factor * self["HH"]
        return math.sqrt(max(left, 0.0)) / self["H"]

    @property
    def slope(self) -> float:
        """Of log H on log(−log p), where the likeliest token was taken.

        About 0.9 in one distribution, whatever the base, and 0.9 T where the log-probs alone are
        at T. It is 1 where the two do not correlate, or all tokens are about as sure.
        """
        if self["taken"] < _LEAST_TOKENS / 4:
            return 1.0
        taken, xx, xy, yy = self.moments("x", "y", "taken")
        straight = xy > _STRAIGHT * math.sqrt(max(xx * yy, 0.0))
        if not straight or xx < _SPREAD * _SPREAD * taken:
            return 1.0
        return math.sqrt(yy / xx)  # both are measured with errors

    @property
    def correlation(self) -> float:
        """Of entropy and −log p, token by token; 1 if either does not vary."""
        _, cc, ch, hh = self.moments("c", "H")
        return ch / math.sqrt(cc * hh) if cc * hh > 0.0 else 1.0

    def gain(self, of: str = "") -> tuple[float, float]:
        """The slope of −log p on the entropy, of another token where ``of`` says, and its error.

        It is 1 for tokens drawn from the policy, of which −log p has the mean H at each token.
        """
        n, cc, ch, hh = self.moments("c", "H", of=of)
        if hh <= 0.0:
            return 1.0, math.inf
        return ch / hh, math.sqrt(max(cc - ch * ch / hh, 0.0) / (n * hh)) * math.sqrt(n / (n - 1.0))

    @property
    def units(self) -> list[int]:
        """The bases, of 2 and 10, of which the entropies are: the factor is the inverse of one's.

        A temperature has another slope, and tokens that were sampled at another one have another
        factor where the policy is sure.
        """
        room = _BIAS + _ERRORS * self.error / self.factor
        straight = _SLOPES[0] < self.slope < _SLOPES[1] and self.correlation >= _TOGETHER
        if not straight or room > _WITHIN:
            return []
        return [base for base, per in PER_NAT.items() if abs(self.factor * per - 1.0) <= room]


def collect_entropies(view: View) -> Entropies | None:
    """Adds up the records whose entropies and log-probs are possible; None where there are none."""
    entropies, new = view.columns.get("entropies"), view.log_probs.get("log_probs_new")
    if entropies is None or new is None:
        return None
    bad = ~(np.isfinite(new) & np.isfinite(entropies) & (entropies >= 0.0))
    good = (view.count(bad) == 0) & (view.tokens > 0)
    kept = np.repeat(np.repeat(good, view.counts), view.lengths)
    if not kept.any():
        return None
    found = Entropies(view.places[int(np.argmax(good))], view.key("entropies"))
    cost, entropy = np.where(kept, -new, 0.0), np.where(kept, entropies, 0.0)
    taken = (cost > 1e-6) & (cost < _SURE) & (entropy > 1e-6)
    x, y = np.log(np.where(taken, cost, 1.0)), np.log(np.where(taken, entropy, 1.0))
    columns = {"tokens": kept, "c": cost, "H": entropy, "taken": taken, "x": x, "y": y}
    for one, other in ("cc", "cH", "HH", "xx", "xy", "yy"):
        columns[one + other] = columns[one] * columns[other]
    columns |= {name: np.where(kept, column, 0.0) for name, column in view.log_probs.items()}
    inside = (np.diff(view.responses.index) == 0) & kept[1:]
    for of, own, others in (
        ("previous ", slice(1, None), slice(None, -1)),
        ("next ", slice(None, -1), slice(1, None)),
    ):
        c, h = inside * cost[own], inside * entropy[others]
        parts = {"tokens": inside, "c": c, "H": h, "cc": c * c, "cH": c * h, "HH": h * h}
        columns |= {of + name: np.append(part, 0.0) for name, part in parts.items()}
    for name, values in columns.items():
        found.sums[name].add(view.responses.sum(values.astype(np.float64)))
    return found


@rule("entropies", "input")
def find_wrong_entropies(one: Entropies) -> Iterator[Finding]:
    """Finds entropies that are not of the distribution from which a file's tokens were drawn.

    Their mean is not that of −log p, by 6 standard errors and a fifth, which is an info where top-p
    may have cut unlikely words off. Or −log p does not rise with them.
    """
    if one["tokens"] < _LEAST_TOKENS or not one["H"]:
        return
    factor, slope, tokens = one.factor, one.slope, int(one["tokens"])
    if max(factor, 1.0 / max(factor, 1e-9)) > _AWAY and one.units:
        base = one.units[0]
        unit = {2: "bit", 10: "dit"}[base]
        yield Finding(
            {"factor": factor, "standard_error": one.error, "base": base, "tokens": tokens},
            kind="units",
            words={"unit": f"{unit}s", "unit_name": unit, "wanted": math.log(base)},
        )
    elif max(factor, 1.0 / max(factor, 1e-9)) > _AWAY:
        yield Finding(
            {"factor": factor, "standard_error": one.error, "slope": slope, "tokens": tokens},
            kind="temperature",
            severity="warning" if factor > 1.0 or slope < _TEMPERED else "info",
            words={"which": "sharper" if factor < 1.0 else "flatter"},
        )
    elif found := _find_other_tokens(one):
        yield found


def _find_other_tokens(one: Entropies) -> Finding | None:
    """Returns that −log p does not rise with the entropies: their slope is far below 1."""
    (gain, error), tokens = one.gain(), int(one["tokens"])
    if gain + _ERRORS * error > _FLAT or tokens < _MANY_TOKENS:
        return None
    evidence = {"gain": gain, "standard_error": error, "tokens": tokens}
    for which, where in (("previous", "early"), ("next", "late")):
        neighbour, uncertain = one.gain(f"{which} ") if one[f"{which} tokens"] > 1.0 else (0.0, 0.0)
        if neighbour - _ERRORS * uncertain > max(_FLAT, 2.0 * gain):
            words = {"which": which, "where": where, "name": one.name}
            return Finding(evidence | {"neighbour": neighbour}, kind="shifted", words=words)
    return Finding(evidence | {"correlation": one.correlation}, kind="unrelated")
