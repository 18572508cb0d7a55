"""One entry of a list: what somebody's trainer got wrong, and what an answer must say of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from trials.product import Record, table
from trials.strangers.losses import Case
from trials.strangers.settings import Wish
from trials.strangers.world import Random

MISMATCH = r"mismatch|outlier|ratio|off.?policy|noise|weights?\b|engine"
STAGES = {
    "advantage": r"advantage|baseline|reward|\bstd\b|whiten|standardi|normali",
    "ratio": r"ratio|importance|\bold\b|on.?policy",
    "clip": r"\bclip|epsilon|ε|surrogate|trust region|delta|δ|temperature|tau|τ",
    "kl": r"\bkl\b|penalty|reference|\bbeta\b|β",
    "correction": r"correct|engine|rollout|vllm|sampling|sampler|icepop|\btis\b",
    "mask": r"mask|padd|truncat|not counted|left out|tool|quantile|end.of",
    "aggregation": r"aggregat|denominat|divid|averag|\bmean\b|num_items|length|weigh",
    "entropy": r"entrop",
    "scale": r"accumulation|ranks?\b|process|scale|factor|times|twice|micro.?batch|dp_size",
}
"""What an answer that names the stage says, whatever cause it gives."""


@dataclass(frozen=True)
class Entry:
    """A mistake.

    Attributes:
        name, thread: the mistake, and owner/repository#number of its fix or report.
        does: the case with the mistake, as an expression of ``case`` and ``strength``; for a fault,
            the records with it, of ``random`` and ``strength``.
        names: the module whose names the expression has.
        wanted: finds an answer that names it.
        agent: whether it concerns turns, trajectories, tools or versions of the weights.
    """

    name: str
    thread: str
    does: str
    names: ModuleType
    wanted: str

    def gives(self, **names: Any) -> Any:
        return eval(self.does, {**vars(self.names), **names})

    def named_by(self, text: str) -> bool:
        return re.search(self.wanted, text, re.IGNORECASE | re.DOTALL) is not None


@dataclass(frozen=True)
class Mistake(Entry):
    """A wrong loss.

    Attributes:
        wish: the batches that it shows on.
        value: whether the loss differs; else the gradient alone.
        stage: one of ``STAGES``.
    """

    wish: Wish = field(default_factory=Wish)
    strengths: tuple[Any, ...] = ()
    value: bool = True
    agent: bool = False
    stage: str = ""

    def planted(self, case: Case, strength: Any = None) -> Case:
        found: Case = self.gives(case=case, strength=strength)
        return found

    def places(self, text: str) -> bool:
        return re.search(STAGES[self.stage], text, re.IGNORECASE) is not None


@dataclass(frozen=True)
class Fault(Entry):
    """A wrong column.

    Attributes:
        also: finds errors that are honest consequences.
        mild: whether a note (an info) is enough.
        refused: whether an error of the input that names it is an answer.
    """

    strengths: tuple[Any, ...] = (None,)
    also: str = MISMATCH
    mild: bool = False
    refused: bool = False
    agent: bool = False

    def records(self, random: Random, strength: Any) -> list[Record]:
        found: list[Record] = self.gives(random=random, strength=strength)
        return found

    def excused(self, text: str) -> bool:
        return self.named_by(text) or re.search(self.also, text, re.IGNORECASE) is not None


def listed(kind: type[Entry], module: str, name: str, names: ModuleType) -> dict[str, Any]:
    """The entries of a table by name; of the patterns in ``wanted`` all have to be found."""
    found: dict[str, Any] = {}
    for one in table(module, name):
        more: dict[str, Any] = {"wish": Wish(**one["wish"])} if "wish" in one else {}
        more |= {"names": names, "wanted": _all(*one["wanted"])}
        found[one["name"]] = kind(**one | more)
    return found


def _all(first: str, *more: str) -> str:
    return "".join(f"(?=.*(?:{pattern}))" for pattern in (first, *more)) if more else first


# ---- the rows of answers -------------------------------------------------------------------------


KIND = "kind: "
"""How rows of one kind of mistake begin; they are listed by ``--json`` alone."""


def row(answer: str) -> str:
    return f"unread list: {answer}"


def kind(what: str, name: str) -> str:
    return f"{KIND}third {what}: {name}"
