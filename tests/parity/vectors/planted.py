"""Faults planted in the plain loss: ``BUGS`` has the loss with each mistake of the catalogue.

Each fault is the one that its row's thread is about, in the piece of the loss it was in. Every case
that is flagged with it must fail.

``planted.csv`` has a row for each method that a form of a fault replaces: ``does`` is what it
returns instead, of ``loss``, ``right`` (the right method), the method's own parameters, ``how``,
``choices`` and ``mode`` (the aggregate) of a batch, and the functions below. The method ``given``
stands for advantages ``a`` that are changed before the loss has them, computed or given.
"""

from __future__ import annotations

import csv
import math  # noqa: F401  (expressions use it)
from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .plain import Plain

Right = Callable[..., Tensor]


def having(x: SimpleNamespace, **columns: Any) -> SimpleNamespace:
    """The batch with other columns, from here on."""
    vars(x).update(columns)
    return x


def copied(x: SimpleNamespace, **columns: Any) -> SimpleNamespace:
    """Another batch with other columns."""
    return SimpleNamespace(**vars(x) | columns)


def choosing(x: SimpleNamespace, **choices: str) -> SimpleNamespace:
    """The batch with other choices, from here on."""
    return having(x, choices={**x.choices, **choices})


def counting(x: SimpleNamespace, **sizes: int) -> SimpleNamespace:
    """The batch with other counts of its step, from here on."""
    return having(x, step=SimpleNamespace(**{**vars(x.step), **sizes}))


def counted(x: SimpleNamespace, keep: Tensor) -> Tensor:
    """A mask, that the step's tokens are counted by from here on."""
    counting(x, tokens=int(keep.sum()))
    return keep


def without_first(keep: Tensor) -> Tensor:
    """The mask without the first token of each response."""
    return keep & (keep.cumsum(1) > 1)


def without_last(keep: Tensor) -> Tensor:
    """The mask without the last token of each response."""
    place = keep.cumsum(1)
    return keep & (place < place[:, -1:])


def sloped(value: Tensor, slope: Tensor) -> Tensor:
    """One number, and the gradient of another."""
    return value.detach() + (slope - slope.detach())


def bounded(loss: Plain, x: SimpleNamespace) -> Tensor:
    """The ratio within its bounds."""
    return loss.ratio(x).clamp(1 - x.how["epsilon_low"], 1 + x.how["epsilon_high"])


def clipped(
    loss: Plain,
    x: SimpleNamespace,
    a: Tensor,
    joined: Callable[[Tensor, Tensor], Tensor] = torch.minimum,
    low: float | None = None,
    high: float | None = None,
) -> Tensor:
    """The clip with other bounds, or put together otherwise."""
    rho = loss.ratio(x)
    free = rho.clamp(max=x.how["delta"]) * a if "delta" in x.how else rho * a
    low = 1 - x.how["epsilon_low"] if low is None else low
    high = 1 + x.how["epsilon_high"] if high is None else high
    return loss.dual(x, joined(free, rho.clamp(low, high) * a), a)


def mean_of_kl(loss: Plain, right: Right, x: SimpleNamespace, count: Tensor | int) -> Tensor:
    """The loss, its KL with a mean of its own."""
    if x.choices["kl"] == "none":
        return right(x)
    policy = right(copied(x, choices={**x.choices, "kl": "none"}))
    penalty = (loss.chosen(x, loss.penalty(x)) / count).sum()
    return policy + x.how["beta"] * penalty * len(x.keep) / x.step.responses * x.step.ranks


def scale(loss: Plain, x: SimpleNamespace, r: Tensor, batch: Tensor) -> Tensor | float:
    """What centred rewards are divided by."""
    if x.choices["advantage"] in ("group-std", "batch-std"):
        return loss.deviation(x, r, batch) + x.how["std_eps"]
    return 1.0


def packed_boundary(keep: Tensor, x: SimpleNamespace) -> Tensor:
    """The mask; packed log-probs were rolled, and a response's last one is the next one's first."""
    if x.log_probs_old is not None:
        packed = x.log_probs_old[keep]
        ends = keep.sum(1).cumsum(0)[:-1]
        ends = ends[(ends > 0) & (ends < len(packed))]
        packed[ends - 1] = packed[ends].clone()
        x.log_probs_old = x.log_probs_old.masked_scatter(keep, packed)
    return keep


def zero_filled(x: SimpleNamespace) -> SimpleNamespace:
    """The batch with 0 for every log-prob that is no number."""
    columns = {name: value for name, value in vars(x).items() if name.startswith("log_probs")}
    filled = {
        name: value if value is None else value.nan_to_num(0.0) for name, value in columns.items()
    }
    return having(x, **filled)


def _method(name: str, does: str) -> Callable[..., Any]:
    right, code = getattr(Plain, name), compile(does, name, "eval")
    names = [*signature(right).parameters][1:]

    def wrong(loss: Plain, *given: Any) -> Any:
        values = dict(zip(names, given, strict=True))
        if "x" in values:
            x = values["x"]
            values |= {"how": x.how, "choices": x.choices, "mode": x.choices.get("aggregate")}
        return eval(code, globals() | values | {"loss": loss, "right": partial(right, loss)})

    return wrong


def _methods(row: dict[str, str]) -> Iterator[tuple[str, str]]:
    if row["method"] == "given":
        yield "term", f"right(x, {row['does']})"
        yield "advantages", f"(lambda a: {row['does']})(right(x)[:, None])[:, 0]"
    else:
        yield row["method"], row["does"]


def _planted() -> Iterator[tuple[str, type[Plain]]]:
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for (mistake, _), rows in groupby(
            csv.DictReader(file), lambda row: (row["mistake"], row["form"])
        ):
            made = {name: _method(name, does) for row in rows for name, does in _methods(row)}
            yield mistake, type("Planted", (Plain,), made)


BUGS = {
    mistake: [loss for _, loss in forms]
    for mistake, forms in groupby(_planted(), lambda each: each[0])
}
"""Mistake → the loss with it, in each of its forms."""
