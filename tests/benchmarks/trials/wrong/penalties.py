"""The KL taken wrongly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trials.trl import tape
from trials.trl.data import Data
from trials.trl.loss import k3, kl, summed
from trials.trl.tape import Var
from trials.wrong.mistake import Mistake, with_kl

Term = Callable[[Data, Var], Var]


def _estimate(term: Term) -> Callable[[Data, Var, Var], Var]:
    """β·k with another estimate k, weighted as it should be."""

    def made(data: Data, new: Var, ratio: Var) -> Var:
        weighted = data.framework.get("use_bias_correction_kl")
        return data.hyper["beta"] * term(data, new) * (ratio if weighted else 1.0)

    return made


def _penalty(name: str, right: str, term: Term, needs: Callable[[Data], bool] = with_kl) -> Mistake:
    return Mistake(name, right, {"kl": _estimate(term)}, needs=needs)


def _reversed(data: Data, new: Var) -> Var:
    change = new - data.ref
    return tape.exp(change) - change - 1.0


def _to_old(data: Data, new: Var) -> Var:
    change = data.old - new
    return tape.exp(change) - change - 1.0


def _turned(data: Data, new: Var, ratio: Var) -> Var:
    weighted = data.framework.get("use_bias_correction_kl")
    return data.hyper["beta"] * k3(data, new) * (1.0 if weighted else ratio)


def _half_weighted(data: Data, new: Var, ratio: Var) -> Var:
    return kl(data, new, tape.stop(ratio))


def _after_mean(data: Data, policy: Var, penalty: Var) -> Var:
    """β·(the mean KL over all tokens) added to the reduced policy term."""
    return summed(data, policy, data.framework["loss_type"]) + summed(data, penalty, "bnpo")


def _weighted(data: Data) -> bool:
    moved = bool(np.abs(data.new - data.old).max() > 0.01)
    return with_kl(data) and moved and bool(data.framework.get("use_bias_correction_kl"))


def _unweighted(data: Data) -> bool:
    moved = bool(np.abs(data.new - data.old).max() > 0.01)
    return with_kl(data) and moved and not data.framework.get("use_bias_correction_kl")


_KL = r"\bKL\b"
_BETA = r"β|\bbeta\b"

PENALTIES = (
    _penalty(
        "KL reversed", rf"{_KL}.*(revers|direction|other way|log π_ref)|forward {_KL}", _reversed
    ),
    _penalty(
        "−β",
        rf"(−|-)\s?{_BETA}|{_BETA}.*(sign|negat|(−|-)\s?\d)|sign of the {_KL}|"
        rf"{_KL}.*(subtract|sign|negat|rewarded)",
        lambda d, t: -k3(d, t),
    ),
    _penalty(
        "KL without gradient",
        rf"{_KL}.*(gradient|detach|stop)|(gradient|detach)\w*.*{_KL}",
        lambda d, t: tape.stop(k3(d, t)),
    ),
    _penalty(
        "KL missing",
        rf"{_KL}.*missing|{_BETA} ?= ?0\b|without (a |the )?{_KL}|no {_KL}",
        lambda d, t: t * 0.0,
    ),
    _penalty(
        "β twice as large", rf"{_BETA}.*\d|{_KL}.*(twice|double|2)", lambda d, t: k3(d, t) * 2.0
    ),
    _penalty(
        "β of 0.025", rf"{_BETA}.*\d|{_KL}.*\d", lambda d, t: k3(d, t) * (0.025 / d.hyper["beta"])
    ),
    _penalty("k1 for k3", r"\bk1\b", lambda d, t: t - d.ref),
    _penalty("k2 for k3", r"\bk2\b|\bmse\b|squared", lambda d, t: (t - d.ref) * (t - d.ref) * 0.5),
    _penalty("|log ratio| for k3", r"\babs\b|absolute", lambda d, t: tape.absolute(t - d.ref)),
    _penalty("KL to the old policy", rf"{_KL}.*old|old.*{_KL}", _to_old),
    Mistake(
        "KL without its weight",
        rf"{_KL}.*(not weighted|without|weight (is )?(missing|none))|kl_weight.*none|"
        r"bias.correction",
        {"kl": _turned},
        needs=_weighted,
    ),
    Mistake(
        "KL with a weight",
        rf"{_KL}.*weighted|kl_weight.*ratio|bias.correction",
        {"kl": _turned},
        needs=_unweighted,
    ),
    Mistake(
        "KL's weight without gradient",
        rf"{_KL}.*(weight|ratio).*(gradient|detach|stop)|(stop.?grad|detach)\w*.*{_KL}|{_KL}.*detach",
        {"kl": _half_weighted},
        needs=_weighted,
    ),
    Mistake(
        "KL added after the mean",
        rf"{_KL}.*(aggregat|mean over|denominator|averaged|token-mean)|kl.aggregate|"
        rf"denominator of the {_KL}",
        {"reduce": _after_mean},
        needs=with_kl,
    ),
)
