"""ms-swift before 4.6 where its number is not the newest release's."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.frameworks.framework import Change
from grpo_cli.frameworks.ms_swift.rows import ROWS
from grpo_cli.objective.row import use

_WINDOW = ("ms-swift/dapo", "ms-swift/cispo", "ms-swift/fipo")

CHANGES = (
    Change(
        since="4.6.0",
        what="dapo, cispo and fipo are no longer divided by gradient_accumulation_steps on top of "
        "num_items_in_batch.",
        rows=_WINDOW,
        before="4.5",
    ),
)

EARLIER = {
    f"{name}@4.5": replace(
        ROWS[name],
        version="ms-swift 4.5.3",
        aggregate=use("ms-swift/dapo-accumulated"),
        note="As ms-swift 4.5.0 to 4.5.3 computed it: divided by num_items_in_batch and by "
        "gradient_accumulation_steps.",
    )
    for name in _WINDOW
}
