"""Values that cannot be log-probs, scores or entropies, and entropies of another distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.check.first_record import PER_NAT
from grpo_cli.commands.check.kinds import Kinds
from grpo_cli.commands.check.record_view import BY_TOKEN, Place, View, find_bad
from grpo_cli.commands.check.rule import Finding, Placed, rule
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
                kind="padding" if _are_ends(view, bad, part) else "",
                words={
                    "name": view.key(name),
                    "value": values[part][np.argmax(bad[part])],
                    "side": "the engine returned no value"
                    if name == "log_probs_rollout"
                    else "the trainer computed no number (weights, logits, a temperature of 0)",
                },
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
            at = np.flatnonzero(above[part]) + part.start
            responses = len(np.unique(view.responses.index[at]))
            ends = np.isin(at, view.responses.starts + view.lengths - 1).all()
            finite = inside[np.isfinite(inside)]
            low, high = finite.min(), finite.max()
            kind = "negated" if low >= 0.0 else "some"
            if low >= 0.0 and high <= 1.0:
                kind = "all"
            elif low < 0.0 and len(positive) > 1 and (positive == positive[0]).all():
                kind = "end" if ends and responses == len(positive) else "filler"
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
                words={
                    "name": view.key(name),
                    "value": positive[0],
                    "responses": responses,
                    "rows": view.counts[record],
                },
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


_MORE, _LEAST_ROUNDED, _LEAST_DIFFERENT = 5, 12, 8
"""More decimals than rounded log-probs have; and how many of these are no chance, some different"""


def _are_off(values: F64, decimals: int) -> NDArray[np.bool_]:
    """Returns [N] which values have more decimals; those that are not finite do."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values * 10.0**decimals
        return ~(np.abs(scaled - np.rint(scaled)) <= 1e-9 + 1e-7 * np.abs(scaled))


def compare_decimals(view: View) -> Kinds:
    """Returns the decimals that all log-probs of records have at most; 5 means more."""
    decimals = np.full(len(view.counts), _MORE)
    uncertain = np.zeros(len(view.counts))
    for values in view.log_probs.values():
        uncertain = np.maximum(uncertain, view.count(np.isfinite(values) & (values != 0.0)))
    several = uncertain >= _LEAST_ROUNDED
    rows = np.flatnonzero(view.lengths)
    middles = (view.responses.starts + view.lengths // 2)[rows]
    unrounded = np.zeros(len(view.counts), dtype=np.bool_)
    for values in view.log_probs.values():  # at one token a response, enough for most
        unrounded[view.records.index[rows[_are_off(values[middles], _MORE - 1)]]] = True
    for most in range(_MORE - 1, -1, -1) if (several & ~unrounded).any() else ():
        rounded = decimals == most + 1
        for values in view.log_probs.values() if rounded.any() else ():
            rounded &= view.count(_are_off(values, most)) == 0
        decimals[rounded] = most
    for record in np.flatnonzero(several & (decimals < _MORE)).tolist():
        columns = (values[view.tokens_of(record)] for values in view.log_probs.values())
        several[record] = min(len(np.unique(one)) for one in columns) >= _LEAST_DIFFERENT
    judged = np.flatnonzero(several)
    return Kinds.of(decimals[judged], lambda at: view.places[int(judged[at])])


@rule("half-precision", "input")
def find_rounded_records(records: Kinds) -> Iterator[Placed]:
    """Yields records whose log-probs were rounded to 4 decimals or fewer, where others were not."""
    rounded = [span for kind, span in records.spans.items() if kind < _MORE]
    if not rounded or _MORE not in records.spans:
        return
    first, decimals = min(rounded, key=lambda span: span.first), max(span.kind for span in rounded)
    total, largest = sum(span.total for span in rounded), 0.5 * 10.0**-decimals
    evidence = {"decimals": decimals, "records": total, "of": records.count, "largest": largest}
    yield Finding(evidence, kind="decimals"), first.place


# ---- entropies against log-probs -----------------------------------------------------------------

_LEAST_TOKENS = 64
_COPIED, _COPY = 0.99, 1e-4
_TOGETHER = 0.2
_BELOW, _OFTEN = 0.5, 0.1
_SIGMAS, _AWAY = 6.0, 1.2
_BIAS, _ERRORS, _WITHIN = 0.02, 4.0, 0.1
"""A base's factor is within 2 % and four standard errors, which together are 10 % at most."""
_SURE, _TEMPERED = 0.3, 0.8
_STRAIGHT, _SPREAD, _SLOPES = 0.8, 1.2, (0.6, 1.1)
_FLAT, _MANY_TOKENS = 0.4, 256
_UNSURE, _ALIKE = 0.5, 0.05
"""Nats of entropy from which a token is unsure, and how far a factor may differ at the others."""


@dataclass
class Entropies:
    """Entropies H and costs c = −log p of the tokens of one file, as sums that merge exactly.

    Attributes:
        place: the first record that has both; ``name`` the user's key of the entropies.
        sums: of tokens, c, H and their products ("cc", "cH", "HH"), of the unsure tokens too
            ("unsure c", …), and with H of the previous or the next token ("previous H", …); of the
            tokens whose entropy is too low; of log c and log H where the likeliest token was taken
            ("x", "xx", "xy", …); and of each column of log-probs.
        low: the first record with an entropy that is too low, its response, token, H and the least.
    """

    place: Place
    name: str
    sums: ExactSums[str] = field(default_factory=ExactSums)
    low: tuple[Place, int, int, float, float] | None = None

    def merge(self, later: Entropies) -> None:
        """Adds those of records that follow."""
        self.sums.merge(later.sums)
        self.low = self.low or later.low

    def __getitem__(self, name: str) -> float:
        return self.sums[name].value()

    @property
    def factor(self) -> float:
        """The mean −log p over the mean entropy; 1 if they may be equal.

        Of tokens drawn from a policy they have one mean.
        """
        tokens, over = self["tokens"], self["c"] - self["H"]
        spread = self["cc"] - 2.0 * self["cH"] + self["HH"] - over * over / tokens
        error = math.sqrt(max(spread, 0.0) * tokens / (tokens - 1.0))
        sums = [one.value() for name, one in self.sums.items() if name.startswith("log_probs")]
        agree = max(sums) - min(sums) < 0.05 * self["c"]
        return self["c"] / self["H"] if agree and abs(over) > _SIGMAS * error else 1.0

    @property
    def error(self) -> float:
        """The standard error of the factor."""
        return _factor(*(self[name] for name in _PRODUCTS))[1]

    def is_alike(self, wanted: float) -> bool:
        """Whether sure and unsure tokens both have a factor; those sampled hotter do not."""
        whole = [self[name] for name in ("tokens", *_PRODUCTS)]
        unsure = [self[f"unsure {name}"] for name in ("tokens", *_PRODUCTS)]
        for tokens, *sums in (unsure, [a - b for a, b in zip(whole, unsure, strict=True)]):
            if tokens < _LEAST_TOKENS or sums[1] <= 0.0:
                continue
            factor, error = _factor(*sums)
            if abs(factor / wanted - 1.0) > _ALIKE + _ERRORS * error / wanted:
                return False
        return True

    @property
    def low_share(self) -> float:
        """The share of tokens whose entropy is below half of the least that their p allows."""
        return self["low"] / self["tokens"]

    @property
    def slope(self) -> float:
        """Of log H on log(−log p), where the likeliest token was taken.

        About 0.9 in one distribution, whatever the base, and 0.9 T where the log-probs alone are
        at T. It is 1 where the two do not correlate, or all tokens are about as sure.
        """
        taken = self["taken"]
        if taken < _LEAST_TOKENS / 4:
            return 1.0
        xx, yy = self["xx"] - self["x"] ** 2 / taken, self["yy"] - self["y"] ** 2 / taken
        xy = self["xy"] - self["x"] * self["y"] / taken
        straight = xy > _STRAIGHT * math.sqrt(max(xx * yy, 0.0))
        if not straight or xx < _SPREAD * _SPREAD * taken:
            return 1.0
        return math.sqrt(yy / xx)  # both are measured with errors

    @property
    def correlation(self) -> float:
        """Of entropy and −log p, token by token; 1 if either does not vary."""
        n, c, h = self["tokens"], self["c"], self["H"]
        both = (self["cc"] - c * c / n) * (self["HH"] - h * h / n)
        return (self["cH"] - c * h / n) / math.sqrt(both) if both > 0.0 else 1.0

    def gain(self, of: str = "") -> tuple[float, float]:
        """The slope of −log p on the entropy, of another token where ``of`` says, and its error.

        It is 1 for tokens drawn from the policy, of which −log p has the mean H at each token.
        """
        n, c, h, cc, ch, hh = (self[of + name] for name in ("tokens", *_PRODUCTS))
        cc, ch, hh = cc - c * c / n, ch - c * h / n, hh - h * h / n
        if hh <= 0.0:
            return 1.0, math.inf
        return ch / hh, math.sqrt(max(cc - ch * ch / hh, 0.0) / (n * hh)) * math.sqrt(n / (n - 1.0))

    @property
    def room(self) -> float:
        """How far off the factor of a base may be, relatively."""
        return _BIAS + _ERRORS * self.error / self.factor

    @property
    def bases(self) -> list[int]:
        """The bases, of 2 and 10, of which the log-probs may be."""
        return self._bases_of(1.0)

    @property
    def units(self) -> list[int]:
        """The bases of which the entropies are, surely."""
        is_sure = self.room <= _WITHIN and self.correlation >= _TOGETHER
        return self._bases_of(-1.0) if is_sure else []

    def _bases_of(self, power: float) -> list[int]:
        """The bases whose factor, or its inverse, is that of −log p over the entropy.

        A temperature has another slope, and tokens that were sampled at another one have another
        factor where the policy is sure.
        """
        if not _SLOPES[0] < self.slope < _SLOPES[1]:
            return []
        wanted = {base: per**power for base, per in PER_NAT.items()}
        return [
            base
            for base, per in wanted.items()
            if abs(self.factor / per - 1.0) <= self.room and self.is_alike(per)
        ]


_PRODUCTS = ("c", "H", "cc", "cH", "HH")


def _factor(c: float, h: float, cc: float, ch: float, hh: float) -> tuple[float, float]:
    """The sum of c over that of H, and its standard error."""
    factor = c / h
    left = cc - 2.0 * factor * ch + factor * factor * hh
    return factor, math.sqrt(max(left, 0.0)) / h


def _least(cost: F64) -> F64:
    """The least entropy that a token's p allows: all others are one word."""
    p = np.exp(-cost)
    return cost * p - (1.0 - p) * np.log(np.maximum(1.0 - p, 1e-300))


@rule("entropies")
def find_copied_entropies(view: View) -> Iterator[Finding]:
    """Finds entropies that are −log p of the token taken, at 99 of 100 tokens."""
    share = _share_copied(view)
    for record in np.flatnonzero((share > _COPIED) & (view.tokens >= _LEAST_TOKENS)).tolist():
        words = {"name": view.key("entropies")}
        yield Finding({"share": share[record]}, record, kind="copies", words=words)


def _share_copied(view: View) -> F64:
    """Returns [M] at which share of the tokens the entropy is −log p."""
    entropies, new = view.columns.get("entropies"), view.log_probs.get("log_probs_new")
    if entropies is None or new is None:
        return np.zeros(len(view.counts))
    with np.errstate(invalid="ignore"):  # of infinite ones
        equal = np.abs(new + entropies) <= _COPY * np.maximum(np.abs(new), entropies) + 1e-9
    share: F64 = view.count(equal) / np.maximum(view.tokens, 1)
    return share


def collect_entropies(view: View) -> Entropies | None:
    """Adds up the records whose entropies and log-probs are possible; None where there are none."""
    entropies, new = view.columns.get("entropies"), view.log_probs.get("log_probs_new")
    if entropies is None or new is None:
        return None
    bad = ~(np.isfinite(new) & np.isfinite(entropies) & (entropies >= 0.0))
    good = (view.count(bad) == 0) & (view.tokens > 0) & (_share_copied(view) <= _COPIED)
    kept = np.repeat(np.repeat(good, view.counts), view.lengths)
    if not kept.any():
        return None
    found = Entropies(view.places[int(np.argmax(good))], view.key("entropies"))
    cost, entropy = np.where(kept, -new, 0.0), np.where(kept, entropies, 0.0)
    taken = (cost > 1e-6) & (cost < _SURE) & (entropy > 1e-6)
    x, y = np.log(np.where(taken, cost, 1.0)), np.log(np.where(taken, entropy, 1.0))
    least = _least(cost)
    low = (entropy < _BELOW * least) & (least > 1e-3)
    columns = {"tokens": kept, "c": cost, "H": entropy, "low": low, "taken": taken, "x": x, "y": y}
    for one, other in ("cc", "cH", "HH", "xx", "xy", "yy"):
        columns[one + other] = columns[one] * columns[other]
    unsure = entropy >= _UNSURE
    for name in ("tokens", *_PRODUCTS):
        columns[f"unsure {name}"] = np.where(unsure, columns[name], 0.0)
    columns |= {name: np.where(kept, column, 0.0) for name, column in view.log_probs.items()}
    inside = (np.diff(view.responses.index) == 0) & kept[1:]
    for of, own, others in (
        ("previous ", slice(1, None), slice(None, -1)),
        ("next ", slice(None, -1), slice(1, None)),
    ):
        c, h = inside * cost[own], inside * entropy[others]
        parts = dict(zip(("tokens", *_PRODUCTS), (inside, c, h, c * c, c * h, h * h), strict=True))
        columns |= {of + name: np.append(part, 0.0) for name, part in parts.items()}
    for name, values in columns.items():
        found.sums[name].add(view.responses.sum(values.astype(np.float64)))
    if low.any():
        at = int(np.argmax(low))
        place = view.place(at)
        where = view.places[place["record"]], place["response"], place["token"]
        found.low = (*where, float(entropy[at]), float(least[at]))
    return found


@rule("log-base", "input")
def find_log_bases_by_entropy(one: Entropies) -> Iterator[Finding]:
    """Finds files all of whose columns are in base 2 or 10, by their entropies in nats.

    A factor that is uncertain may be of any cause, and so is one of entropies of other tokens,
    which do not rise with −log p.
    """
    is_sure = one.room <= _WITHIN and one.correlation >= _TOGETHER
    for base in one.bases[:1] if is_sure else ():
        evidence = {"columns": ["log_probs_new", "entropies"], "base": base, "factor": one.factor}
        counts = {"standard_error": one.error, "tokens": int(one["tokens"])}
        yield Finding(evidence | counts, kind="entropy")


@rule("entropies", "input")
def find_wrong_entropies(one: Entropies) -> Iterator[Finding]:
    """Finds entropies that are not of the distribution from which a file's tokens were drawn.

    Their mean is not that of −log p, by 6 standard errors and a fifth, which is an info where top-p
    may have cut unlikely words off. Or −log p does not rise with them. Or 1 of 10 is less than half
    of −p·log p − (1 − p)·log(1 − p), the least where a word has probability p.
    """
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
        maybe = [f"; base {base} would be {PER_NAT[base]:.3f}" for base in one.bases[:1]]
        yield Finding(
            {"factor": factor, "standard_error": one.error, "slope": slope, "tokens": tokens},
            kind="temperature",
            severity="warning" if factor > 1.0 or slope < _TEMPERED else "info",
            words={"which": "sharper" if factor < 1.0 else "flatter", "base": "".join(maybe)},
        )
    elif found := _find_other_tokens(one):
        yield found
    elif one.low_share > _OFTEN and one.low is not None:
        _, response, token, entropy, least = one.low
        yield Finding(
            {"share": one.low_share, "tokens": tokens},
            response=response,
            token=token,
            kind="small",
            words={"entropy": entropy, "least": least, "name": one.name},
        )


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


def judge_entropies(one: Entropies) -> Iterator[tuple[str, Finding, Place]]:
    """What is wrong with the entropies of a file: one thing, if any."""
    if one["tokens"] < _LEAST_TOKENS or not one["H"]:
        return
    bases = [*find_log_bases_by_entropy(one)]
    yield from (("log-base", finding, one.place) for finding in bases)
    for finding in find_wrong_entropies(one) if not bases else ():
        small = finding.kind == "small" and one.low is not None
        yield "entropies", finding, one.low[0] if small and one.low else one.place
