"""A run as a page: its series, its findings, and its log, as ``report`` has them too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo_cli.commands.options.everywhere import command_line
from grpo_cli.commands.page.block import deflated, finite
from grpo_cli.commands.page.page import html
from grpo_cli.commands.trend.comparison import LogComparison
from grpo_cli.commands.trend.metrics import metric
from grpo_cli.commands.trend.step import Finding, Step
from grpo_cli.commands.trend.view import known, verdict_of

Head = Mapping[str, Any]
Log = LogComparison | None


def head(
    steps: Sequence[Step], findings: Sequence[Finding], log: LogComparison | None
) -> dict[str, Any]:
    """What the page's script reads of a run as a whole."""
    return {
        "steps": [step.number for step in steps],
        "files": [step.file for step in steps],
        "metrics": [
            {
                "name": name,
                "family": column.family,
                "usual": column.usual,
                "values": [step.metrics[name] for step in steps],
            }
            for name in known(steps)
            if (column := metric(name)) is not None
        ],
        "findings": [_finding(finding) for finding in findings],
        "log": None if log is None else _log(steps, log),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    """A finding, and what shows it best: a quantity that tokens can be coloured by."""
    column = metric(finding.metric)
    worst = None if column is None else column.worst
    return finite(asdict(finding)) | {"by": "log_prob" if worst == "nll" else worst}


def _log(steps: Sequence[Step], log: LogComparison) -> dict[str, Any]:
    """The logged series at the steps of the run, and whether each agrees with ours."""
    numbers = [step.number for step in steps]
    return {
        "framework": log.framework,
        "series": [
            {
                "name": f"log: {name}",
                "said": " ".join(verdict_of(compared[name])) if name in compared else "",
                "values": [values.get(number) for number in numbers],
            }
            for compared in ({one.name: one for one in log.series},)
            for name, values in log.logged.items()
        ],
    }


def page(
    steps: Sequence[Step],
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


def alone(
    steps: Sequence[Step], findings: Sequence[Finding], log: LogComparison | None
) -> dict[str, Any]:
    """The head of a page that keeps no step's groups."""
    return head(steps, findings, log) | {"kept": {}, "groups": {}, "lost": 0}
