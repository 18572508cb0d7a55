"""Reverse-mode differentiation of what losses in numpy do with an array.

So a loss is written as in torch, a wrong one differs in one line, and stop-gradients, ties of a
minimum and edges of a clamp do what torch's do. ``np.real`` of a ``Var`` is its value: it stops the
gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Pull = Callable[[Array], Array]


class Var(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that remembers what it was computed from."""

    def __init__(self, value: Any, *sources: tuple[Var, Pull]) -> None:
        self.value = np.asarray(value, dtype=float)
        self.sources = sources
        self.slope = np.zeros_like(self.value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        values = [value_of(one) for one in inputs]
        result = getattr(ufunc, method)(*values)
        if result.dtype == bool:
            return result
        slopes = SLOPES[ufunc](result, *values)
        sources = [
            (one, _pull(slope, one.shape))
            for one, slope in zip(inputs, slopes, strict=True)
            if isinstance(one, Var)
        ]
        return Var(result, *sources)

    def __array_function__(self, function: Any, _: Any, inputs: Any, more: Any) -> Any:
        if function is np.where:
            test, yes, no = inputs
            value = np.where(test, value_of(yes), value_of(no))
            parts = ((yes, test), (no, ~np.asarray(test)))
            sources = [(one, _pull(at, one.shape)) for one, at in parts if isinstance(one, Var)]
            return Var(value, *sources)
        if function is np.concatenate:
            return _joined(inputs[0], **more)
        return function(*(value_of(one) for one in inputs), **more)

    def __getitem__(self, key: Any) -> Var:
        def pull(slope: Array) -> Array:
            found = np.zeros_like(self.value)
            np.add.at(found, key, slope)
            return found

        return Var(self.value[key], (self, pull))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Var:
        value = self.value.sum(axis=axis, keepdims=True)
        shape = value.shape if keepdims else self.value.sum(axis=axis).shape
        wide = value.shape
        return Var(
            value.reshape(shape),
            (self, lambda slope: np.broadcast_to(slope.reshape(wide), self.shape)),
        )

    def mean(self, axis: Any = None, keepdims: bool = False) -> Var:
        found = self.sum(axis, keepdims)
        return found * (found.value.size / self.value.size)

    def backward(self) -> None:
        """Fills ``slope`` of everything that this was computed from."""
        order: list[Var] = []
        _sort(self, order, set())
        for one in order:
            one.slope = np.zeros_like(one.value)
        self.slope = np.ones_like(self.value)
        for one in reversed(order):
            for source, pull in one.sources:
                source.slope = source.slope + pull(one.slope)


def value_of(one: Any) -> Any:
    return one.value if isinstance(one, Var) else one


SLOPES: dict[Any, Callable[..., tuple[Any, ...]]] = {
    np.add: lambda result, a, b: (1.0, 1.0),
    np.subtract: lambda result, a, b: (1.0, -1.0),
    np.multiply: lambda result, a, b: (b, a),
    np.divide: lambda result, a, b: (1.0 / b, -result / b),
    np.negative: lambda result, a: (-1.0,),
    np.exp: lambda result, a: (result,),
    np.absolute: lambda result, a: (np.sign(a),),
}


def _pull(factor: Any, shape: tuple[int, ...]) -> Pull:
    return lambda slope: _narrowed(slope * factor, shape)


def _narrowed(slope: Array, shape: tuple[int, ...]) -> Array:
    """Summed over what broadcasting repeated."""
    slope = slope.sum(axis=tuple(range(slope.ndim - len(shape))))
    wide = tuple(at for at, size in enumerate(shape) if size == 1 != slope.shape[at])
    return slope.sum(axis=wide, keepdims=True)


def _joined(parts: Any, axis: int = 0) -> Var:
    ends = np.cumsum([one.shape[axis] for one in parts])
    return Var(
        np.concatenate([value_of(one) for one in parts], axis=axis),
        *(
            (one, lambda slope, at=at: np.split(slope, ends[:-1], axis=axis)[at])
            for at, one in enumerate(parts)
            if isinstance(one, Var)
        ),
    )


def _sort(one: Var, order: list[Var], seen: set[int]) -> None:
    if id(one) not in seen:
        seen.add(id(one))
        for source, _ in one.sources:
            _sort(source, order, seen)
        order.append(one)


# ---- what torch has ------------------------------------------------------------------------------


def stop(x: Var) -> Var:
    """The value, without a gradient."""
    return Var(x.value)


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


def rows(x: Var, index: Array, count: int) -> Var:
    """[N] → [R] sums over the tokens of each response."""
    summed = np.bincount(index, x.value, minlength=count)
    return Var(summed, (x, lambda slope: slope[index]))


def spread(x: Var, index: Array) -> Var:
    """[R] → [N] each response's value at its tokens."""
    count = len(x.value)
    return Var(x.value[index], (x, lambda slope: np.bincount(index, slope, minlength=count)))
