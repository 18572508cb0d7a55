"""Padded tensors, and gradients by them → the ragged lists of a record, in main memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def copied(tensor: Any) -> Array:
    """A tensor's numbers as they are now: frameworks go on to change their tensors in place."""
    tensor = tensor.detach()
    if tensor.is_floating_point() and tensor.dtype.itemsize < 4:
        tensor = tensor.float()  # numpy has no bfloat16
    array: Array = tensor.to("cpu", copy=True).numpy()
    return array


def number(value: Any) -> Any:
    """A tensor or a numpy number of one element as Python's own; anything else as it is."""
    return value.item() if hasattr(value, "item") else value


def widths(mask: Array) -> list[int]:
    """[R] the tokens of each response, up to the last one that the mask keeps."""
    counts = mask != 0
    last = mask.shape[1] - np.argmax(counts[:, ::-1], axis=1)
    return [int(one) for one in np.where(counts.any(axis=1), last, 0)]


def ragged(values: Array, lengths: list[int]) -> list[Array]:
    """[R, T] padded to the right → one array for each response."""
    kind = np.float64 if np.issubdtype(values.dtype, np.floating) else np.int64
    return [row[:length].astype(kind) for row, length in zip(values, lengths, strict=True)]


def record_of(
    about: Mapping[str, Any],
    columns: Mapping[str, Array],
    shown: Array,
    mask: Array,
    rest: Mapping[str, Any],
    expected: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of padded columns.

    Args:
        about, rest: what it has before and after its columns.
        columns: [R] one number for each response, or [R, T].
        shown: [R, T] the tokens that are no padding.
        mask: [R, T] the tokens that count; not written where they all do.
        expected: what the trainer computed.
    """
    lengths = widths(shown)
    found = {
        name: ragged(values, lengths) if values.ndim > 1 else values.astype(np.float64)
        for name, values in columns.items()
    }
    kept = ragged(mask != 0, lengths)
    if not all(row.all() for row in kept):
        found["mask"] = kept
    if "loss_gradient" in expected:
        expected = {**expected, "loss_gradient": ragged(expected["loss_gradient"], lengths)}
    return {**about, **found, **rest, "expected": expected}


def gradient_of(loss: Any, log_probs: Any) -> Array:
    """[R, T] ∂loss/∂log_probs; zeros where the loss does not depend on them.

    Only the graph between the two is walked, and it stays for the backward pass that follows.
    """
    found = None
    if loss.requires_grad:
        import torch

        (found,) = torch.autograd.grad(loss, log_probs, retain_graph=True, allow_unused=True)
    return np.zeros(tuple(log_probs.shape)) if found is None else copied(found)
