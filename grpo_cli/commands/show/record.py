"""One record, evaluated alone: its tokens in colours, and those that stand out."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_cli.commands.page.page import completions_of, text_fields
from grpo_cli.commands.show.batch import Shown
from grpo_cli.commands.show.figure import figure
from grpo_cli.commands.show.picture import Picture, moves_clipped, picture
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.rows.fields import EXTRAS
from grpo_cli.engine.rows.rows import rows
from grpo_cli.engine.rows.source import Source
from grpo_cli.engine.totals import record_sizes
from grpo_cli.records import Raw
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True)
class ShownRecord(Shown):
    """The tokens of one record that stand out; a notebook shows all its tokens in colours too.

    Attributes:
        picture: the record to be drawn.
    """

    picture: Picture | None = None

    def fields(self) -> dict[str, Any]:
        """The fields by their JSON keys."""
        return {name: value for name, value in super().fields().items() if name != "picture"}

    def _repr_html_(self) -> str:
        """The tokens in colours, and the table."""
        assert self.picture is not None
        encoded = b64encode(figure(self.picture)[0].encode()).decode()  # as an image its styles
        drawn = f'<img alt="tokens" src="data:image/svg+xml;base64,{encoded}">'  # stay its own
        return drawn + super()._repr_html_()


def with_picture(found: Shown, reader: Reader, plan: Plan, by: str) -> ShownRecord:
    """The answer of an input of one record, with its picture, coloured ``by`` what ranks it."""
    raw, record = next(reader.records())
    breakdown = Chunk.of([record]).run(Evaluator(plan).evaluate)
    source = Source([record], breakdown, lambda: record_sizes(breakdown))
    return ShownRecord(**vars(found), picture=picture_of(source, raw, by, None))


def picture_of(source: Source, raw: Raw, by: str | None, only: Sequence[int] | None) -> Picture:
    """The record of a source, to be drawn; ``only`` some of its responses."""
    asked = [name for name in EXTRAS["token"] if name != "log_prob" or by == name]
    (row,) = rows(source, "token", asked)
    moved, mover = moves_clipped(source.breakdown)
    starts = source.breakdown.batch.responses.starts[1:]
    for response, part in zip(row["responses"], np.split(moved, starts), strict=True):
        response["tokens"]["moved"] = part
    texts = completions_of(text_fields(raw.value), len(row["responses"]))
    return picture(row, color_by=by, only=only or None, mover=mover, completions=texts)
