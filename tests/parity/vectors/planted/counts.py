"""Faults in what counts: denominators, masks, advantages, and what is logged."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

from ..plain import Plain
from .loss import Form, Forms, Right, choosing, having

# ---- the sum -------------------------------------------------------------------------------------


def counting(x: SimpleNamespace, **sizes: int) -> SimpleNamespace:
    """The batch with other counts of its step, from here on."""
    return having(x, step=SimpleNamespace(**{**vars(x.step), **sizes}))


def _reduced(change: Callable[[Plain, SimpleNamespace], Tensor | float]) -> Form:
    """Tokens that count otherwise in the sum, while the denominators stay."""
    return {"reduced": lambda loss, right, x, per: right(x, per * change(loss, x))}


def _over(size: Callable[[Plain, SimpleNamespace], Tensor | float], *modes: str) -> Form:
    """Another denominator in place of the right one, where the mode is one of ``modes``."""

    def reduced(loss: Plain, right: Right, x: SimpleNamespace, per: Tensor) -> Tensor:
        if x.choices["aggregate"] not in modes:
            return right(x, per)
        return (per / size(loss, x)).sum() * x.step.ranks

    return {"reduced": reduced}


def _modes(taken: dict[str, str], other: str = "") -> Form:
    """One mode taken for another."""

    def reduced(loss: Plain, right: Right, x: SimpleNamespace, per: Tensor) -> Tensor:
        mode = x.choices["aggregate"]
        return right(choosing(x, aggregate=taken.get(mode, other or mode)), per)

    return {"reduced": reduced}


def _own_means(loss: Plain, right: Right, x: SimpleNamespace, per: Tensor) -> Tensor:
    whole = x.step.micro_batches
    own = {"tokens": int(x.keep.sum()), "responses": len(x.keep), "groups": len(x.groups.unique())}
    return right(counting(x, **own, ranks=1), per) / whole


def _mean_of_responses(loss: Plain, right: Right, x: SimpleNamespace, value: Tensor) -> Tensor:
    return (torch.where(x.keep, value, 0.0).sum(1, keepdim=True) / loss.lengths(x)).mean()


def _own_tokens(loss: Plain, right: Right, x: SimpleNamespace, per: Tensor) -> Tensor:
    """The token means of micro-batches, weighted by their responses."""
    if x.choices["aggregate"] != "token-mean":
        return right(x, per)
    share = len(x.keep) / x.step.responses * x.step.ranks
    return per.sum() / x.keep.sum().clamp(min=1) * share


def _widths(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    return right(having(x, width=(x.log_probs_new != 0).sum(1)))


def _group_widths(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    keep = x.keep
    tokens = right(having(x, keep=x.log_probs_new != 0))
    x.keep = keep
    return tokens


def _written(loss: Plain, right: Right, x: SimpleNamespace, per: Tensor) -> Tensor:
    """The token mean alone."""
    whole = x.step.responses == len(x.keep)
    return right(counting(x, tokens=int((x.log_probs_new != 0).sum())) if whole else x, per)


def _empty_counted(loss: Plain, right: Right, x: SimpleNamespace, per: Tensor) -> Tensor:
    counted = int(x.keep.sum(1).clamp(min=1).sum())
    responses = int(x.keep.any(1).sum()) if len(x.keep) == x.step.responses else 0
    return right(counting(x, tokens=counted, responses=responses or x.step.responses), per)


def _empty_group(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    same = (x.groups[:, None] == x.groups[None, :]).to(loss.dtype)
    return (same @ loss.lengths(x).to(loss.dtype)).clamp(min=1)


def _without_responses(loss: Plain, right: Right, x: SimpleNamespace, per: Tensor) -> Tensor:
    constant = x.choices["aggregate"] == "token-sum-norm"
    return right(counting(x, responses=1) if constant else x, per)


def _broadcast(loss: Plain, x: SimpleNamespace) -> Tensor | float:
    sequence = x.choices["ratio"] != "token" or x.choices["surrogate"] == "gmpo"
    return loss.lengths(x) if sequence and x.choices["aggregate"] == "response-mean" else 1.0


def _first_column(loss: Plain, right: Right, x: SimpleNamespace, value: Tensor) -> Tensor:
    return right(x, value) if x.choices["ratio"] == "token" else value[:, 0].mean()


def _place(loss: Plain, x: SimpleNamespace) -> Tensor:
    place = torch.arange(len(x.keep), dtype=loss.dtype)[:, None]
    return (1 + place) / (1 + place.mean())


def _rejected(loss: Plain, right: Right, x: SimpleNamespace, per: Tensor) -> Tensor:
    if not x.choices["correction"].endswith("mask"):
        return right(x, per)
    return right(counting(x, tokens=int((loss.correction(x) != 0)[x.keep].sum())), per)


def _edge(keep: Tensor, *, last: bool) -> Tensor:
    """The mask without the first or last token of each response."""
    place = keep.cumsum(1)
    return keep & (place < place[:, -1:] if last else place > 1)


def _masked(mask: Callable[[Tensor, SimpleNamespace], Tensor]) -> Form:
    """Another mask, that the step's tokens are counted by."""

    def changed(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
        keep = mask(right(x), x)
        counting(x, tokens=int(keep.sum()))
        return keep

    return {"mask": changed}


def _discounted(loss: Plain, right: Right, x: SimpleNamespace, a: Tensor) -> Tensor:
    left = x.keep.flip(1).cumsum(1).flip(1) - 1
    return right(x, a * 0.99 ** left.clamp(min=0))


def _factor(value: float = 1.0, slope: float = 1.0) -> Form:
    """A constant on the loss, on its gradient, or on both."""

    def whole(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
        found = right(x)
        return found.detach() * value + (found - found.detach()) * slope

    return {"loss": whole}


def _fewer(loss: Plain, right: Right, x: SimpleNamespace, per: Tensor) -> Tensor:
    return right(counting(x, responses=max(x.step.responses - 1, 1)), per)


def _width(loss: Plain, x: SimpleNamespace) -> float:
    return float(x.step.responses * x.keep.shape[1])


MEANS = ("token-mean", "response-mean", "token-sum", "token-sum-norm", "prompt-mean", "bnpo")
SUMS: Forms = {
    "accumulation-twice": [_reduced(lambda loss, x: 1 / x.step.micro_batches)],
    "accumulation-missing": [_reduced(lambda loss, x: x.step.micro_batches)],
    "mean-of-means": [
        {"reduced": _own_means, "logged": _mean_of_responses},
        {"reduced": _own_tokens},
    ],
    "truncated-in-denominator": [
        {
            "reduced": lambda loss, right, x, per: right(
                counting(x, tokens=int(x.width.sum())), per
            ),
            "mask": _widths,
            "lengths": lambda loss, right, x: x.width[:, None].clamp(min=1),
            "group_tokens": _group_widths,
        },
        {"reduced": _written},
    ],
    "empty-response-counted": [{"reduced": _empty_counted, "group_tokens": _empty_group}],
    "norm-without-responses": [
        {"reduced": _without_responses},
        _over(lambda loss, x: 1.0, "token-sum"),
    ],
    "batch-for-prompt": [
        {"group_tokens": lambda loss, right, x: x.keep.sum().clamp(min=1) / x.step.groups}
    ],
    "token-for-response-mean": [
        _modes({"response-mean": "token-mean", "token-mean": "response-mean"}, "response-mean"),
        _modes({"response-mean": "token-mean"}),
        _modes({"token-mean": "response-mean"}),
    ],
    "sequence-broadcast": [_reduced(_broadcast) | {"logged": _first_column}],
    "length-squared": [
        _reduced(
            lambda loss, x: (
                loss.lengths(x) / x.keep.shape[1]
                if x.choices["aggregate"] in ("token-sum", "sum")
                else 1
            )
        ),
        _reduced(lambda loss, x: loss.lengths(x) if x.choices["aggregate"] == "token-sum" else 1),
    ],
    "all-masked": [
        {
            "reduced": lambda loss, right, x, per: right(x, per) / (x.keep.sum() > 0),
            "lengths": lambda loss, right, x: x.keep.sum(1, keepdim=True),
            "chosen": lambda loss, right, x, per: per * x.keep,
        },
        {"lengths": lambda loss, right, x: x.keep.sum(1, keepdim=True)},
    ],
    "order-dependence": [_reduced(_place)],
    "rejected-in-denominator": [{"reduced": _rejected}],
    "masked-count": [_masked(lambda keep, x: x.log_probs_new != 0)],
    "edge-masked": [
        _masked(lambda keep, x: _edge(keep, last=True)),
        _masked(lambda keep, x: _edge(keep, last=False)),
    ],
    "edge-token": [
        _reduced(lambda loss, x: _edge(x.keep, last=True).to(loss.dtype)),
        _reduced(lambda loss, x: _edge(x.keep, last=False).to(loss.dtype)),
    ],
    "response-lost": [
        _reduced(
            lambda loss, x: (torch.arange(len(x.keep))[:, None] < max(len(x.keep) - 1, 1)).to(
                loss.dtype
            )
        )
    ],
    "advantage-discounted": [{"term": _discounted}],
    "loss-sign": [_factor(-1.0, -1.0)],
    "factor": [_factor(2.0, 2.0)],
    "gradient-factor": [_factor(slope=2.0)],
    "loss-factor": [_factor(2.0)],
    "denominator-missing": [
        _over(lambda loss, x: 1.0, *MEANS),
        _over(lambda loss, x: loss.lengths(x), "response-mean"),
    ],
    "local-count": [_over(lambda loss, x: x.keep.sum().clamp(min=1) * x.step.ranks, "token-mean")],
    "constant-length": [
        _over(lambda loss, x: x.step.responses * 8.0, "token-mean", "response-mean"),
        _over(lambda loss, x: float(max(x.step.tokens, 1)), "token-sum-norm"),
    ],
    "padded-length": [
        _over(_width, "token-mean", "response-mean"),
        _over(_width, "token-sum-norm"),
        _over(_width, "token-mean"),
    ],
    "one-less": [
        {"lengths": lambda loss, right, x: (x.keep.sum(1, keepdim=True) - 1).clamp(min=1)},
        {"reduced": _fewer},
    ],
    "root-length": [
        _over(lambda loss, x: loss.lengths(x).sqrt() * x.step.responses, "response-mean")
    ],
    "group-count": [
        _over(
            lambda loss, x: float(x.step.groups * x.how.get("max_completion_length", 1)),
            *("token-sum", "token-sum-norm"),
        )
    ],
}


# ---- masks ---------------------------------------------------------------------------------------


def _ignored(applies: Callable[[SimpleNamespace], bool] = lambda x: True) -> Form:
    return {
        "chosen": lambda loss, right, x, per: per if applies(x) else right(x, per),
        "difference": lambda loss, right, x, above, below: (
            above - below if applies(x) else right(x, above, below)
        ),
    }


def _times(applies: Callable[[SimpleNamespace], bool] = lambda x: True) -> Form:
    """Masked by a product, in which NaN stays."""
    return {
        "chosen": lambda loss, right, x, per: per * x.keep if applies(x) else right(x, per),
        "difference": lambda loss, right, x, above, below: (
            (above - below) * x.keep if applies(x) else right(x, above, below)
        ),
        "reinforce": lambda loss, right, x, a: x.new * a,
    }


def _packed_boundary(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    """The log-probs of the packed responses are rolled, and the last one takes the next one's."""
    keep = right(x)
    if x.log_probs_old is not None:
        packed = x.log_probs_old[keep]
        ends = keep.sum(1).cumsum(0)[:-1]
        ends = ends[(ends > 0) & (ends < len(packed))]
        packed[ends - 1] = packed[ends].clone()
        x.log_probs_old = x.log_probs_old.masked_scatter(keep, packed)
    return keep


def _zero_filled(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    for name in ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout"):
        column = getattr(x, name)
        if column is not None:
            setattr(x, name, column.nan_to_num(0.0))
    return right(x)


MASKS: Forms = {
    "mask-ignored": [
        _ignored(lambda x: x.choices.get("aggregate") == "token-mean"),
        _ignored(),
    ],
    "masked-nan": [_times()],
    "masked-nan-sequence": [_times(lambda x: x.choices.get("aggregate") == "response-mean")],
    "masked-nan-kl": [
        {
            "reference_gap": lambda loss, right, x: x.new - x.log_probs_ref,
            "chosen": lambda loss, right, x, per: per * x.keep,
        }
    ],
    "masked-overflow": [
        {
            "difference": lambda loss, right, x, above, below: above - below,
            "chosen": lambda loss, right, x, per: per * x.keep,
        }
    ],
    "masked-token-leak": [
        {
            "difference": lambda loss, right, x, above, below: above - below,
            "statistic": lambda loss, right, x: torch.ones_like(x.keep),
            "mean_weight": lambda loss, right, x, weight: weight.mean(),
        }
    ],
    "mask-shifted": [{"mask": lambda loss, right, x: torch.roll(x.mask, 1, 1).bool()}],
    "packed-boundary": [{"mask": _packed_boundary}],
    "zero-filled": [{"mask": _zero_filled}],
}


# ---- advantages ----------------------------------------------------------------------------------


def _given(changed: Callable[[Plain, SimpleNamespace, Tensor], Tensor]) -> Form:
    """Advantages changed before the loss has them, computed or given."""
    return {"term": lambda loss, right, x, a: right(x, changed(loss, x, a))} | _computed(changed)


def _computed(changed: Callable[[Plain, SimpleNamespace, Tensor], Tensor]) -> Form:
    """Of those that are computed alone."""
    return {"advantages": lambda loss, right, x: changed(loss, x, right(x)[:, None])[:, 0]}


def _whitened(loss: Plain, x: SimpleNamespace, a: Tensor) -> Tensor:
    return (a - a.mean()) / (a.std() + 1e-8) if len(a) > 1 else a


def _bounded(limit: float) -> Form:
    return _given(lambda loss, x, a: a.clamp(-limit, limit))


def _strided(loss: Plain, right: Right, x: SimpleNamespace) -> list[Tensor]:
    return list(torch.arange(len(x.groups)).split(len(right(x)[0])))


def _noise(loss: Plain, right: Right, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
    return right(x, r + torch.arange(len(r), dtype=r.dtype) * 1e-7, batch)


def _exchanged(loss: Plain, right: Right, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
    value, sigma = right(x, r, batch), loss.std(x, r)
    return value * sigma if x.choices["advantage"] == "group-std" else value / (sigma + 1e-4)


def _always_divided(
    loss: Plain, right: Right, x: SimpleNamespace, r: Tensor, batch: Tensor
) -> Tensor:
    centred = x.choices["advantage"] in ("group-mean", "leave-one-out")
    return right(x, r, batch) / (loss.std(x, r) + 1e-4 if centred else 1.0)


def _never_divided(
    loss: Plain, right: Right, x: SimpleNamespace, r: Tensor, batch: Tensor
) -> Tensor:
    found = right(x, r, batch)
    whole = x.choices["advantage"] == "batch-std"
    return found if whole else torch.ones_like(found) - x.how["std_eps"]


def _scale(loss: Plain, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor | float:
    if x.choices["advantage"] in ("group-std", "batch-std"):
        return loss.deviation(x, r, batch) + x.how["std_eps"]
    return 1.0


def _median(loss: Plain, right: Right, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
    return right(x, r, batch) - (r.quantile(0.5) - r.mean()) / _scale(loss, x, r, batch)


def _own_mean(loss: Plain, right: Right, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
    alone = x.choices["advantage"] == "leave-one-out"
    return right(choosing(x, advantage="group-mean") if alone else x, r, batch)


def _others(loss: Plain, right: Right, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor:
    alone = x.choices["advantage"] in ("leave-one-out", "leave-one-out-std")
    return right(x, r, batch) * (1.0 if alone else len(r) / max(len(r) - 1, 1))


def _root(loss: Plain, right: Right, x: SimpleNamespace, r: Tensor) -> Tensor:
    eps = x.how["std_eps"]
    return (right(x, r) ** 2 + eps).sqrt() - eps


ADVANTAGES: Forms = {
    "group-stride": [{"grouped": _strided}],
    "batch-as-one-group": [{"grouped": lambda loss, right, x: [torch.arange(len(x.groups))]}],
    "leave-one-out-zero-std": [{"divides": lambda loss, right, sigma: True}],
    "zero-std-noise": [{"within": _noise}],
    "std-or-not": [
        {"within": _exchanged},
        {"deviation": _never_divided},
        {"within": _always_divided},
    ],
    "std-ddof": [
        {
            "spread": lambda loss, right, others: others.std(correction=0),
            "deviation": lambda loss, right, x, r, batch: r.std(correction=1 - x.how["std_ddof"]),
        },
        {"std": lambda loss, right, x, r: r.std(correction=0)},
    ],
    "std-level": [
        {
            "deviation": lambda loss, right, x, r, batch: loss.std(
                x, r if x.choices["advantage"] == "batch-std" else batch
            )
        },
        {"deviation": lambda loss, right, x, r, batch: loss.std(x, batch)},
    ],
    "singleton-group": [
        {"within": lambda loss, right, x, r, batch: r if len(r) == 1 else right(x, r, batch)}
    ],
    "masked-response-votes": [
        {"grouped": lambda loss, right, x: [own[x.keep.any(1)[own]] for own in right(x)]}
    ],
    "advantage-sign": [_given(lambda loss, x, a: -a)],
    "advantage-one-sided": [
        _given(lambda loss, x, a: a.abs()),
        _given(lambda loss, x, a: a.sign()),
        _given(lambda loss, x, a: a.clamp(min=0)),
        _given(lambda loss, x, a: a.clamp(max=0)),
    ],
    "advantage-order": [_given(lambda loss, x, a: a.roll(1, 0))],
    "advantage-broadcast": [_given(lambda loss, x, a: a[:1].expand_as(a))],
    "advantage-twice": [_given(_whitened), _computed(_whitened)],
    "advantage-length": [
        _given(lambda loss, x, a: a * loss.lengths(x)),
        _given(lambda loss, x, a: a / loss.lengths(x)),
    ],
    "advantage-clipped": [_bounded(10.0), _bounded(5.0), _bounded(1.0)],
    "advantage-offset": [_given(lambda loss, x, a: a + 0.25)],
    "advantage-scaled": [_given(lambda loss, x, a: a * 2)],
    "advantage-rounded": [_given(lambda loss, x, a: a.to(torch.bfloat16).to(a.dtype))],
    "centre": [
        {"within": lambda loss, right, x, r, batch: r / _scale(loss, x, r, batch)},
        {"within": _median},
    ],
    "leave-one-out": [{"within": _own_mean}, {"within": _others}],
    "scale-other": [
        {"std": lambda loss, right, x, r: right(x, r) ** 2},
        {"std": lambda loss, right, x, r: r.max() - r.min()},
        {"std": lambda loss, right, x, r: (r - r.mean()).abs().mean()},
    ],
    "std-eps": [
        {"std": _root},
        {"std": lambda loss, right, x, r: right(x, r) - x.how["std_eps"] + 1e-2},
    ],
}


# ---- what is logged ------------------------------------------------------------------------------


def _any_side(loss: Plain, right: Right, x: SimpleNamespace, rho: Tensor) -> tuple[Tensor, Tensor]:
    low, high = rho < 1 - x.how["epsilon_low"], rho > 1 + x.how["epsilon_high"]
    return low.to(loss.dtype), high.to(loss.dtype)


def _reversed(loss: Plain, right: Right, x: SimpleNamespace) -> dict[str, Tensor]:
    found = dict(right(x))
    found |= {name: -found[name] for name in ("ppo_kl", "rollout_kl") if name in found}
    if "rollout_k3" in found:
        gap = -loss.engine_gap(x)
        found["rollout_k3"] = gap.exp() - gap - 1
    return found


METRICS: Forms = {
    "clip-fraction-sign": [{"bound": _any_side}],
    "metric-padding": [
        {"logged": lambda loss, right, x, value: torch.where(x.keep, value, 0.0).mean()}
    ],
    "metric-kl-reversed": [{"values": _reversed}],
}
