"""Columns and masks that are read wrongly, and what else a loss does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trials.product import Record
from trials.simulate.noise import bfloat16
from trials.simulate.policy import F64
from trials.trl import tape
from trials.trl.data import Data
from trials.trl.loss import bounds, k3, log_ratio, summed
from trials.trl.tape import Var
from trials.wrong.mistake import Mistake, cispo, clipped, sequence_level, token_level, with_kl

Rows = list[list[float]]

_KEYS = {
    "new": ("per_token_logps", "log_probs_new"),
    "old": ("old_per_token_logps", "log_probs_old"),
    "ref": ("ref_per_token_logps", "log_probs_ref"),
}


def _key(record: Record, column: str) -> str:
    return next((key for key in _KEYS[column] if key in record), "")


def _column(
    name: str,
    row: str,
    right: str,
    column: str,
    change: Callable[[F64], Any],
    needs: Callable[[Data], bool] = clipped,
) -> Mistake:
    """A column whose rows are changed as they are read."""

    def read(record: Record) -> Record:
        key = _key(record, column)
        if not key:
            return record
        made = [np.asarray(change(np.asarray(row, dtype=float))).tolist() for row in record[key]]
        return {**record, key: made}

    return Mistake(name, right, read=read, row=row, needs=needs)


def _later(row: F64) -> F64:
    return np.concatenate([row[:1], row[:-1]])


def _earlier(row: F64) -> F64:
    return np.concatenate([row[1:], row[-1:]])


def _packed(record: Record) -> Record:
    key = _key(record, "old")
    lengths = [len(row) for row in record[key]]
    flat = np.roll(np.concatenate([np.asarray(row, dtype=float) for row in record[key]]), -1)
    return {**record, key: [x.tolist() for x in np.split(flat, np.cumsum(lengths)[:-1])]}


def _mask(
    name: str, row: str, right: str, change: Callable[[F64], F64], *, masked: bool = True
) -> Mistake:
    def read(record: Record) -> Record:
        shape = record[_key(record, "new")]
        mask = record.get("completion_mask") or [[1] * len(row) for row in shape]
        made = [change(np.asarray(row)).astype(int).tolist() for row in mask]
        return {**record, "completion_mask": made}

    def needs(data: Data) -> bool:
        return not masked or not data.kept.all()

    return Mistake(name, right, read=read, row=row, needs=needs)


def _without(mask: F64, at: int) -> F64:
    made = mask.copy()
    made[np.flatnonzero(mask)[at:]] = 0
    return made


def _moved(mask: F64) -> F64:
    return np.concatenate([[0], mask[:-1]])


def _advantages(name: str, row: str, right: str, change: Callable[[F64], Any]) -> Mistake:
    def advantage(data: Data) -> F64:
        return np.asarray(change(data.advantages), dtype=float)[data.index]

    return Mistake(name, right, {"advantage": advantage}, row=row)


def _scaled_by(name: str, row: str, right: str, scale: Callable[[F64], float]) -> Mistake:
    """(r − mean)/scale(r) of each group."""

    def advantage(data: Data) -> F64:
        assert data.rewards is not None
        found = np.zeros(data.count)
        for group in np.unique(data.groups):
            own = data.groups == group
            r = data.rewards[own]
            found[own] = (r - r.mean()) / scale(r)
        return found[data.index]

    return Mistake(name, right, {"advantage": advantage}, rewarded=True, row=row)


def _ratio(name: str, row: str, right: str, made: Any, needs: Any = token_level) -> Mistake:
    return Mistake(name, right, {"log_ratio": made}, needs=needs, row=row)


def _mean_over(divisor: Callable[[Data], F64]) -> Callable[[Data, Var], Var]:
    def made(data: Data, new: Var) -> Var:
        sums = tape.rows(new - data.old, data.index, data.count)
        return tape.spread(sums / divisor(data), data.index)

    return made


def _steep(data: Data, new: Var) -> Var:
    """The sequence's ratio; the gradient of its sum, not of its mean."""
    sums = tape.rows(new - data.old, data.index, data.count)
    whole = tape.stop(sums / data.lengths) + (sums - tape.stop(sums))
    return tape.spread(whole, data.index)


def _policy(name: str, row: str, right: str, made: Any, needs: Any = token_level) -> Mistake:
    return Mistake(name, right, {"policy": made}, needs=needs, row=row)


def _min_first(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    return -(tape.least(ratio, tape.clamp(ratio, *bounds(data))) * a)


def _left_out(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    free, bounded = ratio * a, tape.clamp(ratio, *bounds(data)) * a
    return -(free * (free.value <= bounded.value))


def _capped(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    cap = tape.clamp(ratio, -np.inf, 1.4)
    free = ratio * (a >= 0) + cap * (a < 0)
    return -tape.least(free * a, tape.clamp(ratio, *bounds(data)) * a)


def _cut(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    epsilon = data.hyper["epsilon_high"]
    inside = ratio.value <= epsilon
    moving = new * inside + tape.stop(new) * ~inside
    return -(tape.stop(tape.clamp(ratio, 0.0, epsilon)) * a * moving)


def _doubled(data: Data, new: Var, ratio: Var, a: F64) -> Var:
    return -tape.least(ratio * a, tape.clamp(ratio, *bounds(data)) * a) * 2.0


def _unweighted(data: Data) -> bool:
    return with_kl(data) and not data.framework.get("use_bias_correction_kl")


def _kl(
    name: str,
    row: str,
    right: str,
    term: Callable[[Data, Var], Var],
    needs: Callable[[Data], bool] = with_kl,
) -> Mistake:
    def kl(data: Data, new: Var, ratio: Var) -> Var:
        weighted = data.framework.get("use_bias_correction_kl")
        return data.hyper["beta"] * term(data, new) * (ratio if weighted else 1.0)

    return Mistake(name, right, {"kl": kl}, needs=needs, row=row, stage="^kl")


def _square(data: Data, new: Var) -> Var:
    return (new - data.ref) * (new - data.ref)


def _reduced(name: str, row: str, right: str, made: Any, *kinds: str) -> Mistake:
    def needs(data: Data) -> bool:
        return not kinds or data.framework["loss_type"] in kinds

    return Mistake(name, right, {"reduce": made}, needs=needs, row=row, stage="^aggregate")


def _each_over(divisor: Callable[[F64], F64]) -> Callable[[Data, Var, Var], Var]:
    def made(data: Data, policy: Var, kl: Var) -> Var:
        return tape.total((policy + kl) / divisor(data.lengths)[data.index]) / data.count

    return made


def _over(size: Callable[[Data], float]) -> Callable[[Data, Var, Var], Var]:
    return lambda data, policy, kl: tape.total(policy + kl) / size(data)


def _prompts(data: Data) -> float:
    """Not a number where each response has a prompt of its own."""
    count = len(np.unique(data.groups))
    return float(count) if count < data.count else np.nan


def _filled(data: Data, policy: Var, kl: Var) -> Var:
    kept = len(np.unique(data.index))
    return summed(data, policy + kl, "grpo") * (data.count / kept)


_SHIFT = r"shift"
_ROUND = r"bfloat16|float16|bf16|fp16|rounded"

COLUMNS = (
    _column("old log-probs one later", "log-probs-shifted", _SHIFT, "old", _later),
    _column("old log-probs one earlier", "log-probs-shifted", _SHIFT, "old", _earlier),
    Mistake(
        "old log-probs packed, one off", _SHIFT, read=_packed, row="packed-boundary", needs=clipped
    ),
    _column("old log-probs in bfloat16", "log-probs-rounded", _ROUND, "old", bfloat16),
    _column("new log-probs in bfloat16", "log-probs-rounded", _ROUND, "new", bfloat16),
    _column(
        "old log-probs filled with 0",
        "zero-filled",
        r"are 0|filled|missing",
        "old",
        lambda x: 0 * x,
    ),
    _column(
        "old log-probs at temperature 0.8",
        "log-probs-scaled",
        r"temperature|scaled",
        "old",
        lambda x: x / 0.8,
        token_level,
    ),
    _column(
        "reference's log-probs at temperature 1.25",
        "log-probs-scaled",
        r"temperature|scaled",
        "ref",
        lambda x: x / 1.25,
        with_kl,
    ),
    _mask(
        "no mask", "masked-count", r"mask (is )?ignored|masked tokens count|no mask", np.ones_like
    ),
    _mask("mask one later", "mask-shifted", r"mask.*shift|one token more|first token", _moved),
    _mask(
        "last tokens masked",
        "edge-masked",
        r"last token.*mask|mask.*last token|dropped",
        lambda mask: _without(mask, -1),
        masked=False,
    ),
    _advantages("advantages in bfloat16", "advantage-rounded", _ROUND, bfloat16),
    _advantages(
        "no advantages",
        "advantage-dropped",
        r"A is taken as 1|left out|first response",
        np.ones_like,
    ),
    _advantages(
        "advantages and a quarter", "advantage-offset", r"constant.*0\.25", lambda a: a + 0.25
    ),
    _scaled_by("range for std", "scale-other", r"range", lambda r: float(np.ptp(r)) + 1e-4),
    _scaled_by(
        "mean deviation for std",
        "scale-other",
        r"deviation",
        lambda r: float(np.abs(r - r.mean()).mean()) + 1e-4,
    ),
    _scaled_by(
        "ε inside the root",
        "std-eps",
        r"root|std_eps",
        lambda r: float(np.sqrt(r.var(ddof=1) + 1e-2)),
    ),
    _ratio(
        "base 2",
        "ratio-base",
        r"base 2",
        lambda d, t: log_ratio(d, t) * float(np.log(2.0)),
    ),
    _ratio(
        "log ratio bounded at 0.3",
        "ratio-clamped",
        r"bounded at ±0\.3",
        lambda d, t: tape.clamp(t - d.old, -0.3, 0.3),
    ),
    _ratio(
        "sequence's ratio over the width",
        "ratio-width",
        r"width|padded",
        _mean_over(lambda d: np.full(d.count, float(d.written.max()))),
        sequence_level,
    ),
    _ratio(
        "sequence's gradient without 1/L",
        "ratio-slope",
        r"1/L|not divided by the length",
        _steep,
        sequence_level,
    ),
    _policy(
        "min before the advantage", "minimum-before-advantage", r"before the advantage", _min_first
    ),
    _policy("clipped tokens left out", "clip-zeroed", r"left out|add nothing", _left_out),
    _policy("a cap of 1.4 where A < 0", "dual-clip-added", r"(delta|dual clip) 1\.4", _capped),
    _policy(
        "cispo without gradient at its cap",
        "cispo-gradient-cut",
        r"gradient cut|capped.*none",
        _cut,
        cispo,
    ),
    Mistake(
        "the policy term twice as large",
        r"advantages times 2|policy term.*(scaled|twice)",
        {"policy": _doubled},
        needs=lambda d: clipped(d) and with_kl(d),
        row="advantage-scaled",
    ),
    _kl("d² for k3", "kl-square", r"d²|without its half", _square),
    _kl(
        "k3 bounded at 0.02",
        "kl-clamp",
        r"KL bounded at 0\.02",
        lambda d, t: tape.clamp(k3(d, t), -1.0, 0.02),
        _unweighted,
    ),
    _reduced(
        "L − 1 for L",
        "one-less",
        r"tokens − 1|L − 1",
        _each_over(lambda n: np.maximum(n - 1.0, 1.0)),
        "grpo",
    ),
    _reduced("the root of L for L", "root-length", r"root", _each_over(np.sqrt), "grpo"),
    _reduced(
        "the length once more",
        "length-squared",
        r"multiplied by its response's tokens|times the response's tokens",
        lambda d, p, k: tape.total((p + k) * d.lengths[d.index]) / d.count,
        "grpo",
        "bnpo",
    ),
    _reduced(
        "the longest response alone",
        "padded-length",
        r"longest|width|padded",
        _over(lambda d: float(d.written.max())),
    ),
    _reduced(
        "prompts for responses",
        "group-count",
        r"number of groups",
        _over(_prompts),
    ),
    _reduced(
        "a constant length without responses",
        "norm-without-responses",
        r"max_completion_length alone",
        _over(lambda d: float(d.hyper["max_completion_length"])),
    ),
    Mistake(
        "only responses with tokens counted",
        r"responses that have tokens|factor",
        {"reduce": _filled},
        needs=lambda d: d.framework["loss_type"] == "grpo" and len(np.unique(d.index)) < d.count,
        row="empty-response-counted",
        stage="^aggregate",
    ),
)
