"""A bundle's replay: which stage differs first, within records and in what spans them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grpo_cli.bundle import Chain
from grpo_cli.commands.verify.answer import Replay, ReplayedStage, StageDifference, Verdict
from grpo_cli.commands.verify.compare import OF_SUMS, Column, Tolerance
from grpo_cli.commands.verify.expected import METRIC, QUANTITIES, Expectation
from grpo_cli.commands.verify.stages import Pair, Part, replayed
from grpo_cli.errors import InputError

STAGES = ("settings", "rewards", "advantages", "tokens", "loss", "step loss", METRIC)
"""In the order in which a trainer computes them."""


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
        self._stages = {
            stage: ReplayedStage(stage, 0, 0, 0.0, first=None, skipped=()) for stage in STAGES
        }
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
        sealed = part.seal.get("signature")
        if part.signature is None or not isinstance(sealed, str):
            return
        yours, grpo = (text.rpartition("|v:")[0].split("|") for text in (sealed, part.signature))
        pairs = [pair for pair in zip(yours, grpo, strict=False) if pair[0] != pair[1]]
        first = _first(part, "signature", *(pairs[0] if pairs else (sealed, part.signature)))
        self._count("settings", 1, int(yours != grpo), 0.0, first)

    def add_verdict(self, part: Part, verdict: Verdict, stage: str | None) -> None:
        """Adds what became of a record's own stages.

        Args:
            part: the record.
            verdict: what became of it.
            stage: the stage at which it differs; None where it agrees. What follows from tokens
                that differ is no difference of its own.
        """
        compared = [_STAGE.get(key, METRIC) for key in verdict.compared]
        for name in dict.fromkeys(compared):
            self._count(name, compared.count(METRIC) if name == METRIC else 1)
        if stage is not None and (first := verdict.first) is not None:
            differs = _first(part, first.key, first.expected, first.got)
            differs = replace(differs, response=first.response, token=first.token)
            count, off = first.differing if stage == METRIC else 1, abs(first.expected - first.got)
            self._count(stage, int(stage not in compared), count, off, differs)
        for metric in verdict.metrics if stage != "tokens" else ():
            differs = _first(part, metric.key, metric.expected, metric.got)
            self._count(METRIC, 0, 1, abs(metric.expected - metric.got), differs)

    def _compare(self, stage: str, pair: Pair, tolerance: Tolerance) -> None:
        """Adds numbers of a record; what grpo has no finite number for is not compared."""
        part, key, yours, grpo, scale = pair
        grpo = np.where(np.isfinite(grpo), grpo, np.nan)
        given = np.ones(len(yours), dtype=np.bool_)
        expectation = Expectation(key, stage, "response", yours, given)
        column = Column(expectation, grpo, yours, given, np.array([len(yours)]), scale, 0.1)
        differs = ~tolerance.agree(column, grpo)
        first, off = None, 0.0
        if differs.any():
            at = int(np.argmax(differs))
            off = float(np.nanmax(np.abs(yours - grpo)[differs], initial=0.0))
            first = _first(part, key, float(yours[at]), float(grpo[at]))
            first = replace(first, response=at if stage in ("rewards", "advantages") else None)
        self._count(stage, int((~np.isnan(grpo)).sum()), int(differs.sum()), off, first)

    def _count(
        self,
        stage: str,
        compared: int,
        differing: int = 0,
        off: float = 0.0,
        first: StageDifference | None = None,
    ) -> None:
        """Adds numbers of a stage: compared, differing, by how much at most, and the first."""
        old = self._stages[stage]
        self._stages[stage] = replace(
            old,
            compared=old.compared + compared,
            differing=old.differing + differing,
            largest=max(old.largest, off),
            first=old.first or (first if differing else None),
        )

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
            if isinstance(found, Pair):
                self._compare(stage, found, tolerance)
            else:
                old = self._stages[stage]
                reasons = dict.fromkeys((*old.skipped, found))
                self._stages[stage] = replace(old, skipped=tuple(reasons))
        stages = [*self._stages.values()]
        lasts = [] if self._selects else [chain.last for chain in self._chains.values()]
        return Replay(
            sha256=[str(last["sha256"]) for last in lasts if last],
            records=len(self.parts),
            steps=len({(part.run, part.step) for part in self.parts if part.step is not None}),
            responses=sum(len(part.groups) for part in self.parts),
            first_stage=next((each.stage for each in stages if each.differing), None),
            stages=stages,
        )


def _first(part: Part, key: str, yours: float | str, grpo: float | str) -> StageDifference:
    """Where a record differs under a key: a number of all of it, unless it is placed."""
    return StageDifference(part.name, part.source, part.line, key, None, None, yours, grpo)
