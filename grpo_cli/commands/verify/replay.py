"""A bundle's replay: which stage differs first, within records and in what spans them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo_cli.bundle import Chain
from grpo_cli.commands.verify.answer import Replay, ReplayedStage, StageDifference, Verdict
from grpo_cli.commands.verify.compare import OF_SUMS, Column, Tolerance
from grpo_cli.commands.verify.expected import METRIC, Expectation
from grpo_cli.commands.verify.quantities import QUANTITIES
from grpo_cli.commands.verify.stages import Pair, Part, replayed
from grpo_cli.errors import InputError

STAGES = ("settings", "rewards", "advantages", "tokens", "loss", "step loss", METRIC)
"""In the order in which a trainer computes them."""


@dataclass
class Tally:
    """What became of one stage; the attributes are those of ``ReplayedStage``."""

    compared: int = 0
    differing: int = 0
    largest: float = 0.0
    first: StageDifference | None = None
    skipped: dict[str, None] = field(default_factory=dict)

    def compare(self, stage: str, pair: Pair, tolerance: Tolerance) -> None:
        """Adds numbers of a record; what grpo has no finite number for is not compared."""
        part, key, yours, grpo, scale = pair
        grpo = np.where(np.isfinite(grpo), grpo, np.nan)
        given = np.ones(len(yours), dtype=np.bool_)
        expectation = Expectation(key, stage, "response", yours, given, lambda _: None)
        column = Column(expectation, grpo, yours, given, np.array([len(yours)]), scale, 0.1)
        differs = ~tolerance.agree(column, grpo)
        self.compared += int((~np.isnan(grpo)).sum())
        if differs.any():
            self.differing += int(differs.sum())
            self.largest = float(np.nanmax(np.abs(yours - grpo)[differs], initial=self.largest))
            at = int(np.argmax(differs))
            place = at if stage in ("rewards", "advantages") else None, None
            self.differ(part, key, place, (float(yours[at]), float(grpo[at])))

    def differ(
        self,
        part: Part,
        key: str,
        place: tuple[int | None, int | None],
        pair: tuple[Any, Any],
    ) -> None:
        """Adds where a record differs: the response and its token, yours and grpo's."""
        if isinstance(pair[0], float):
            self.largest = max(self.largest, abs(pair[0] - pair[1]))
        if self.first is None:
            self.first = StageDifference(part.name, part.source, part.line, key, *place, *pair)


def stage_of(stage: str, causes: Sequence[str], *, other_weights: bool = False) -> str:
    """The stage of a bundle that a difference within a record belongs to.

    Args:
        stage: the stage of the objective that makes what differs first.
        causes: the stages of its causes.
        other_weights: whether each response's gradient is a multiple of grpo's.
    """
    known = causes[0] if causes else stage
    if known in ("aggregate", *OF_SUMS) or (not causes and stage == "gradient" and other_weights):
        return "loss"
    return {"advantage": "advantages", METRIC: METRIC}.get(known, "tokens")


_STAGE = {key: stage_of(quantity.stage, ()) for quantity in QUANTITIES for key in quantity.keys}
"""Key of ``expected`` → the stage of a bundle; metrics are in none."""


class Bundle:
    """The records of a bundle, as they come: checked to follow each other, and then replayed.

    Args:
        selects: whether only some records are read, so that not each follows the one before.
    """

    def __init__(self, *, selects: bool) -> None:
        self._selects = selects
        self._chains: dict[str, Chain] = {}
        self._plain: dict[str, Verdict] = {}
        self._tallies = {stage: Tally() for stage in STAGES}
        self.parts: list[Part] = []

    def add(self, part: Part) -> None:
        """Adds a record.

        Raises:
            InputError: where it does not follow the one before.
        """
        self.parts.append(part)
        why = self._chains.setdefault(part.source, Chain()).add(part.seal)
        if why is not None and not self._selects:
            raise InputError(why, path="bundle", source=part.source, line=part.line)
        self._compare_settings(part)

    def _compare_settings(self, part: Part) -> None:
        """Compares the signature with the one that the bundle was made with, but for versions."""
        sealed, tally = part.seal.get("signature"), self._tallies["settings"]
        if part.signature is None or not isinstance(sealed, str):
            return
        yours, grpo = (text.rpartition("|v:")[0].split("|") for text in (sealed, part.signature))
        pairs = [pair for pair in zip(yours, grpo, strict=False) if pair[0] != pair[1]]
        tally.compared += 1
        if yours != grpo:
            tally.differing += 1
            pair = pairs[0] if pairs else (sealed, part.signature)
            tally.differ(part, "signature", (None, None), pair)

    def add_verdict(self, part: Part, verdict: Verdict, stage: str | None) -> None:
        """Adds what became of a record's own stages.

        Args:
            part: the record.
            verdict: what became of it.
            stage: the stage at which it differs; None where it agrees. What follows from tokens
                that differ is no difference of its own.
        """
        compared = [_STAGE.get(key, METRIC) for key in verdict.compared]
        metrics = self._tallies[METRIC]
        for name in {*compared} - {METRIC}:
            self._tallies[name].compared += 1
        metrics.compared += compared.count(METRIC)
        if stage is not None and verdict.first is not None:
            first, tally = verdict.first, self._tallies[stage]
            tally.compared += stage not in compared
            tally.differing += first.differing if stage == METRIC else 1
            tally.differ(
                part, first.key, (first.response, first.token), (first.expected, first.got)
            )
        for metric in verdict.metrics if stage != "tokens" else ():
            metrics.differing += 1
            metrics.differ(part, metric.key, (None, None), (metric.expected, metric.got))

    def add_plain(self, verdict: Verdict) -> None:
        """Adds a record that is of no bundle."""
        self._plain.setdefault(verdict.source, verdict)

    def result(self, tolerance: Tolerance) -> Replay:
        """Replays the stages that span records.

        Raises:
            InputError: where the last records are missing, or a record of a file has no bundle.
        """
        for source, plain in self._plain.items():
            if source in self._chains and not self._selects:
                none = "the record has none, but others of the file do: it may have been changed"
                raise InputError(none, path="bundle", source=source, line=plain.line)
        for source, chain in self._chains.items():
            if (why := chain.end()) is not None and not self._selects:
                raise InputError(why, path="bundle", source=source)
        for stage, found in replayed(self.parts):
            if isinstance(found, str):
                self._tallies[stage].skipped[found] = None
            else:
                self._tallies[stage].compare(stage, found, tolerance)
        stages = [
            ReplayedStage(stage, **{**vars(tally), "skipped": tuple(tally.skipped)})
            for stage, tally in self._tallies.items()
        ]
        lasts = [] if self._selects else [chain.last for chain in self._chains.values()]
        return Replay(
            sha256=[str(last["sha256"]) for last in lasts if last],
            records=len(self.parts),
            steps=len({(part.run, part.step) for part in self.parts if part.step is not None}),
            responses=sum(len(part.groups) for part in self.parts),
            first_stage=next((each.stage for each in stages if each.differing), None),
            stages=stages,
        )
