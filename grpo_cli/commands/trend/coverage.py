"""Which series of a run were looked at for changes, and which could not be computed, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from grpo_cli.commands.trend.findings import LIMITS
from grpo_cli.commands.trend.metrics import ALL, OBJECTIVE, Metric
from grpo_cli.commands.trend.onsets import LEAST
from grpo_cli.commands.trend.step import Step, series_of
from grpo_cli.objective.inputs import MissingColumnError


class Coverage(NamedTuple):
    """What a verdict about a run is based on.

    Attributes:
        steps: how many steps there are.
        watched: how many series were long enough to look for changes in them.
        limited: whether there is a series of which a framework publishes a limit.
        missing: what the records lack → the series that need it.
        assumed: the series that are constant because no record has log_probs_old.
    """

    steps: int
    watched: int
    limited: bool
    missing: Mapping[str, Sequence[str]]
    assumed: Sequence[str]

    @property
    def verdict(self) -> str:
        """What there is to say where nothing was found."""
        limits = "; no limit passed" if self.limited else ""
        if self.steps < LEAST:
            are = f"there {'is' if self.steps == 1 else 'are'} {self.steps}"
            return f"shifts and drifts are looked for in {LEAST} steps, {are}{limits}"
        if not self.watched:
            return f"no series has a value in {LEAST} steps, so no change can be found{limits}"
        series = f"{self.watched} series" if self.watched > 1 else "1 series"
        return f"no change found in {series} over {self.steps:,} steps{limits}"

    @property
    def gaps(self) -> list[str]:
        """A sentence each for the series that were not computed, and those that say nothing."""
        said = []
        if self.missing:
            reasons = (
                f"{', '.join(names)} ({'needs' if len(names) == 1 else 'need'} {what})"
                for what, names in self.missing.items()
            )
            said.append(f"not computed: {'; '.join(reasons)}")
        if self.assumed:
            said.append(
                f"constant by assumption: {', '.join(self.assumed)} (log_probs_old is missing, so "
                "every ratio is taken as 1)"
            )
        return said


def coverage(
    steps: Sequence[Step],
    fields: Collection[str] | None,
    missing: Mapping[str, MissingColumnError],
    *,
    on_policy: bool,
) -> Coverage:
    """What there is of a run.

    Args:
        steps: by number.
        fields: the columns that were asked for; None for those that are shown unasked.
        missing: the columns for want of which nothing was evaluated.
        on_policy: whether no record has log_probs_old.
    """
    counts = {one.name: _known(one, steps) for one in ALL}
    assumed = [one for one in ALL if on_policy and one.worst == "ratio" and counts[one.name]]
    watched = [one for one in ALL if one.watched and counts[one.name] >= LEAST]
    lacks: dict[str, list[str]] = {}
    for one in ALL if steps else ():
        asked = one.usual if fields is None else one.name in fields
        if asked and not counts[one.name]:
            lacks.setdefault(_needed(one, missing), []).append(one.name)
    return Coverage(
        len(steps),
        len([one for one in watched if one not in assumed]),
        any(counts[limit.metric] for limit in LIMITS),
        lacks,
        [one.name for one in assumed if fields is None or one.name in fields],
    )


def _known(metric: Metric, steps: Sequence[Step]) -> int:
    return int(np.count_nonzero(~np.isnan(series_of(steps, metric.name)))) if steps else 0


def _needed(metric: Metric, missing: Mapping[str, MissingColumnError]) -> str:
    """What a metric needs, as far as the records lack it."""
    if metric.needs != OBJECTIVE or not missing:
        return metric.needs
    columns = dict.fromkeys(one.path.rpartition(".")[2] for one in missing.values())
    return ", ".join(columns)
