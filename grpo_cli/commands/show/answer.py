"""What ``show`` answers of a batch: its most telling tokens, or token strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpo_cli.commands.answer import Answer


@dataclass(frozen=True)
class Shown(Answer):
    """The tokens, or token strings, of a batch that stand out, the first the most.

    Attributes:
        variant, signature: the objective.
        of: what a row is.
        by: the number that ranks the rows, by its size.
        count: how many tokens or token strings there are, of those that ``having`` keeps.
        carried: the part of Σ |contribution| of the batch (of Σ |gradient|, unless ranked by
            contribution) that the rows have; None where there are several batches.
        total: the batch's numbers by name.
        rows: the tokens or the token strings.
        notices: notes on the input and the numbers.
    """

    variant: str
    signature: str
    of: Literal["token", "string"]
    by: str
    count: int
    carried: float | None
    total: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    notices: Sequence[str] = ()
