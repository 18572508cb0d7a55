"""A run that was read, from its records or a trainer's log, and what happened in it."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_cli.commands.trend.comparison import Trend, compare_log
from grpo_cli.commands.trend.coverage import Coverage
from grpo_cli.commands.trend.events import events, verdict
from grpo_cli.commands.trend.findings import findings
from grpo_cli.commands.trend.inspection import with_checks
from grpo_cli.commands.trend.logs import Log
from grpo_cli.commands.trend.passes import passes_of
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Flags, Steps


def trend_of(
    run: Run | None,
    steps: Steps,
    flags: Flags,
    *,
    columns: Sequence[str] | None = None,
    log: Log | None = None,
    framework: str | None = None,
) -> tuple[Trend, Coverage]:
    """What happened in a run, and what that is based on.

    Args:
        run: the run, read; None where the steps are of a log.
        steps: its steps.
        flags: what it was read with, for the commands that findings name.
        columns: the metrics that were asked for; None for those shown unasked.
        log: what a trainer logged.
        framework: whose names the log has.
    """
    ungrouped = None if run is None else run.ungrouped
    found = findings(steps, flags, ungrouped)
    happened = events(found, steps)
    found = sorted((one for event in happened for one in event.findings), key=lambda one: one.onset)
    variant, signatures, compared, covered = "", list[str](), None, Coverage(steps, columns)
    if run is not None:
        happened = with_checks(happened, steps, run)
        covered = Coverage(steps, columns, run.missing, on_policy=not run.moved)
        compared = compare_log(framework, log, run.logged, run.token_means, steps)
        variant, signatures = run.plan.variant, [*run.signatures]
    sentence = verdict(steps, happened, covered)
    sentence = f"{ungrouped}; {sentence}" if ungrouped else sentence
    passes = passes_of(steps, found, flags)
    return Trend(variant, signatures, steps, found, happened, sentence, compared, passes), covered
