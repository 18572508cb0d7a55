"""Padded tensors, and gradients by them → the ragged lists of a record, in main memory."""

from __future__ import annotations

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


def per_response(values: Array, lengths: list[int]) -> Array | list[Array]:
    """[R] one number for each response, or [R, T] ragged."""
    return ragged(values, lengths) if values.ndim > 1 else values.astype(np.float64)


def holes(mask: Array, lengths: list[int]) -> list[Array] | None:
    """The mask as a record has it; None where every token within ``lengths`` counts."""
    rows = ragged(mask != 0, lengths)
    return None if all(row.all() for row in rows) else rows


def gradient_of(loss: Any, log_probs: Any) -> Array:
    """[R, T] ∂loss/∂log_probs; zeros where the loss does not depend on them.

    Only the graph between the two is walked, and it stays for the backward pass that follows.
    """
    found = None
    if loss.requires_grad:
        import torch

        (found,) = torch.autograd.grad(loss, log_probs, retain_graph=True, allow_unused=True)
    return np.zeros(tuple(log_probs.shape)) if found is None else copied(found)
