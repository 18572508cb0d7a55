"""Reverse-mode differentiation of numpy expressions, as little as a policy loss needs.

So a loss is written as in torch, a wrong one differs in one line, and stop-gradients, ties of a
minimum and edges of a clamp do what torch's do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trials.simulate.policy import F64, I64

Pull = Callable[[F64], F64]


class Var:
    """A value, and how a change of it goes back to what it was made from."""

    __array_ufunc__ = None

    def __init__(self, value: object, *sources: tuple[Var, Pull]) -> None:
        self.value = np.asarray(value, dtype=np.float64)
        self.sources = sources
        self.slope: F64 = np.zeros_like(self.value)

    def __add__(self, other: object) -> Var:
        right = _var(other)
        return Var(self.value + right.value, (self, _same(self)), (right, _same(right)))

    def __mul__(self, other: object) -> Var:
        right = _var(other)
        return Var(
            self.value * right.value,
            (self, lambda slope: _shaped(slope * right.value, self)),
            (right, lambda slope: _shaped(slope * self.value, right)),
        )

    def __neg__(self) -> Var:
        return self * -1.0

    def __sub__(self, other: object) -> Var:
        return self + -_var(other)

    def __rsub__(self, other: object) -> Var:
        return _var(other) + -self

    def __truediv__(self, other: object) -> Var:
        return self * (1.0 / np.asarray(other, dtype=np.float64))

    __radd__, __rmul__ = __add__, __mul__

    def backward(self) -> None:
        """Fills ``slope`` of everything that this was made from."""
        order: list[Var] = []
        _sort(self, order, set())
        for one in order:
            one.slope = np.zeros_like(one.value)
        self.slope = np.ones_like(self.value)
        for one in reversed(order):
            for source, pull in one.sources:
                source.slope = source.slope + pull(one.slope)


def _sort(one: Var, order: list[Var], seen: set[int]) -> None:
    if id(one) not in seen:
        seen.add(id(one))
        for source, _ in one.sources:
            _sort(source, order, seen)
        order.append(one)


def _var(value: object) -> Var:
    return value if isinstance(value, Var) else Var(value)


def _shaped(slope: F64, like: Var) -> F64:
    """Summed over what broadcasting repeated (scalars only)."""
    return slope if slope.shape == like.value.shape else np.asarray(slope.sum())


def _same(like: Var) -> Pull:
    return lambda slope: _shaped(slope, like)


def stop(x: Var) -> Var:
    """The value, without a gradient."""
    return Var(x.value)


def exp(x: Var) -> Var:
    value = np.exp(x.value)
    return Var(value, (x, lambda slope: slope * value))


def absolute(x: Var) -> Var:
    return Var(np.abs(x.value), (x, lambda slope: slope * np.sign(x.value)))


def clamp(x: Var, low: float, high: float) -> Var:
    """Clipped; the gradient passes at the bounds and between them."""
    inside = (x.value >= low) & (x.value <= high)
    return Var(np.clip(x.value, low, high), (x, lambda slope: slope * inside))


def through(x: Var, low: float, high: float) -> Var:
    """Clipped, straight-through: the gradient passes everywhere."""
    return Var(np.clip(x.value, low, high), (x, lambda slope: slope))


def least(a: Var, b: Var) -> Var:
    """The minimum; a tie shares the gradient, as torch.minimum does."""
    first = (a.value < b.value) + 0.5 * (a.value == b.value)
    return Var(
        np.minimum(a.value, b.value),
        (a, lambda slope: slope * first),
        (b, lambda slope: slope * (1.0 - first)),
    )


def most(a: Var, b: Var) -> Var:
    return -least(-a, -b)


def rows(x: Var, index: I64, count: int) -> Var:
    """[N] → [R] sums over the tokens of each response."""
    summed = np.bincount(index, x.value, minlength=count)
    return Var(summed, (x, lambda slope: slope[index]))


def spread(x: Var, index: I64) -> Var:
    """[R] → [N] each response's value at its tokens."""
    count = len(x.value)
    return Var(x.value[index], (x, lambda slope: np.bincount(index, slope, minlength=count)))


def total(x: Var) -> Var:
    return Var(x.value.sum(), (x, lambda slope: np.full(x.value.shape, slope)))
