"""Parts of views and several side by side, to compare their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grpo_cli.commands.check.record_view import View


def compared(view: View, keep: NDArray[np.bool_]) -> View:
    """The records to keep, with what is needed to compare their columns."""
    rows = np.repeat(keep, view.counts)
    tokens = np.repeat(rows, view.widths)
    return replace(
        view,
        places=[place for place, kept in zip(view.places, keep.tolist(), strict=True) if kept],
        values=(),
        counts=view.counts[keep],
        widths=view.widths[rows],
        columns={name: column[tokens] for name, column in view.columns.items()},
        mask=None if view.mask is None else view.mask[tokens],
        groups=np.zeros(int(rows.sum()), dtype=np.int64),
        rewards=None,
        advantages=None,
        samples=None if view.samples is None else view.samples[keep],
    )


def joined(views: Sequence[View]) -> View:
    """Views of one layout, to be compared, side by side."""
    first = views[0]
    if len(views) == 1:
        return first
    masks = None
    if any(view.mask is not None for view in views):
        each = [np.ones(v.written.total, np.bool_) if v.mask is None else v.mask for v in views]
        masks = np.concatenate(each)
    return replace(
        first,
        places=[place for view in views for place in view.places],
        counts=np.concatenate([view.counts for view in views]),
        widths=np.concatenate([view.widths for view in views]),
        columns={
            name: np.concatenate([view.columns[name] for view in views]) for name in first.columns
        },
        mask=masks,
        groups=np.concatenate([view.groups for view in views]),
        samples=np.concatenate([view.samples for view in views if view.samples is not None]),
    )
