"""A run as a page, with its log, as ``report`` has it too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo_cli.commands.options.everywhere import command_line
from grpo_cli.commands.page.block import deflated, finite
from grpo_cli.commands.page.page import html
from grpo_cli.commands.trend.comparison import LogComparison
from grpo_cli.commands.trend.events import Event
from grpo_cli.commands.trend.metrics import metric
from grpo_cli.commands.trend.step import Finding, Steps
from grpo_cli.commands.trend.view import known, verdict_of

Head = Mapping[str, Any]
Log = LogComparison | None


def head(
    steps: Steps, events: Sequence[Event], log: LogComparison | None, verdict: str
) -> dict[str, Any]:
    """What the page's script reads of a run of which no step's groups are kept."""
    return {
        "verdict": verdict,
        "steps": steps.numbers,
        "files": steps.files,
        "metrics": [
            {
                "name": name,
                "family": "log" if column is None else column.family,
                "usual": column is None or column.usual,
                "log": (row := steps.watch(name)) is not None and row.is_log,
                "values": steps.values(name),
            }
            for name in known(steps)
            for column in (metric(name),)
            if column is not None or steps.logged
        ],
        "findings": [
            _finding(one) | {"event": at}
            for at, event in enumerate(events)
            for one in event.findings
        ],
        "checks": [event.check for event in events],
        "log": None if log is None else _log(steps, log),
        "kept": {},
        "groups": {},
    }


def with_other(whole: Head, name: str, other: Steps) -> dict[str, Any]:
    """The head with another run's series, at the steps of this one."""
    series = {
        metric: dict(zip(other.numbers, other.values(metric), strict=True))
        for metric in other.metrics
    }
    metrics = [
        one | {"against": [series[one["name"]].get(step) for step in whole["steps"]]}
        if one["name"] in series
        else one
        for one in whole["metrics"]
    ]
    return dict(whole) | {"metrics": metrics, "against": name}


def _finding(finding: Finding) -> dict[str, Any]:
    """A finding, and what shows it best: a quantity that tokens can be coloured by."""
    column = metric(finding.metric)
    worst = None if column is None else column.worst
    return finite(asdict(finding)) | {"by": "log_prob" if worst == "nll" else worst}


def _log(steps: Steps, log: LogComparison) -> dict[str, Any]:
    """The logged series at the steps of the run, and whether each agrees with ours."""
    return {
        "framework": log.framework,
        "series": [
            {
                "name": f"log: {name}",
                "said": " ".join(verdict_of(compared[name])) if name in compared else "",
                "values": [values.get(number) for number in steps.numbers],
            }
            for compared in ({one.name: one for one in log.series},)
            for name, values in log.logged.items()
        ],
    }


def page(
    steps: Steps,
    places: Sequence[str],
    signatures: Sequence[str],
    head: Head,
    blocks: Sequence[tuple[str, str]] = (),
) -> Iterator[str]:
    """The page in parts; ``blocks``: the tokens of groups."""
    first, last = places[0], places[-1]
    yield from html(
        title=f"a run of {len(steps):,} step{'' if len(steps) == 1 else 's'}",
        place=first if len(places) == 1 else f"{first} … {last} ({len(places):,} files)",
        command=command_line(),
        signature="\n".join(signatures),
        settings={"color_by": None, "top": 10},
        blocks=[("run", deflated(head)), *blocks],
    )
