"""The page of a run: its series, its steps, their groups, their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from grpo_cli.batch import F64
from grpo_cli.commands.options.everywhere import command_line
from grpo_cli.commands.page.page import deflated, html, still_totals
from grpo_cli.commands.report.groups import choose, limit_tokens, read_groups, worst_in
from grpo_cli.commands.trend.comparison import LogComparison, Trend
from grpo_cli.commands.trend.events import Event, measure
from grpo_cli.commands.trend.metrics import legend, metric, unit, worst_kind
from grpo_cli.commands.trend.options import StoredOptions, TrendOptions
from grpo_cli.commands.trend.questions.against import LEAST_COMMON, compare_runs
from grpo_cli.commands.trend.questions.at import metrics_at
from grpo_cli.commands.trend.questions.parts import PartSteps, answer_by, windows_of
from grpo_cli.commands.trend.questions.view import with_error
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Finding, Steps
from grpo_cli.commands.trend.verdict import last_good_step, main_event, other_events
from grpo_cli.commands.trend.view import known, usual, verdict_of
from grpo_cli.terminal.numbers import markup

_MAIN = {
    *("reward_mean", "loss", "recorded_loss", "kl_k3", "clip_high", "entropy", "length_mean"),
    *("gradient_norm", "eval/"),
}
"""Series whose charts are open where nothing was found in them."""


def page_of(
    run: Run | Steps,
    other: Run | Steps | None,
    answer: Trend,
    places: Sequence[str],
    options: TrendOptions,
    stored: StoredOptions,
    command: str | None = None,
) -> Iterator[str]:
    """The page of a run that was read, in parts.

    Args:
        run: the run, or the steps of a log.
        other: another run, whose series are drawn as well.
        options: its flags; ``--by`` adds the parts of changes.
        command: what writes it; None: this command line.
    """
    blocks: list[tuple[str, str]] = []
    title = _title(answer)
    if isinstance(run, Steps):
        whole = _head(answer) | {"lost": 0}
    else:
        whole, blocks = _of_records(run, answer, options.by, stored)
    if other is not None:
        steps = other if isinstance(other, Steps) else other.read()
        named = (options.against or [""])[0]
        if len({*steps.numbers} & {*answer.steps.numbers}) >= LEAST_COMMON:
            compared = compare_runs(answer.steps, steps)
            differing = {
                one.name: {
                    "here": one.first,
                    "there": one.second,
                    "there − here": with_error(one),
                    "since": one.since,
                }
                for one in compared.differing
            }
            whole["against"] = {"verdict": compared.headline, "metrics": differing}
            title = f"Against {named}: {compared.headline}."
        whole["others"] = [named]
        places_of = {number: at for at, number in enumerate(steps.numbers)}
        for one in whole["metrics"]:
            values = [*steps.values(one["name"]), None]
            row = [values[places_of.get(at, -1)] for at in whole["steps"]]
            one["others"] = [row]
    first, last = places[0], places[-1]
    count = len(answer.signatures) - 1
    more = f" and {count:,} more (grpo trend --json)" if count > 0 else ""
    return html(
        title=title,
        place=first if len(places) == 1 else f"{first} … {last} ({len(places):,} files)",
        command=command or command_line(),
        signature=f"{answer.signatures[0]}{more}" if answer.signatures else "",
        settings={"color_by": None, "top": 10},
        still=_still(answer),
        blocks=[("run", deflated(whole)), *blocks],
    )


def _title(answer: Trend) -> str:
    """What happened, in a sentence."""
    event = main_event(answer.events)
    title = answer.verdict.partition(";")[0] if event is None else event.title + event.until
    return f"{title[:1].upper()}{title[1:]}."


def _still(answer: Trend) -> Iterator[str]:
    """What the page shows until its script has run: the findings, and the last step's numbers."""
    rows = "".join(
        f"<li><b>{markup(one.kind)}</b> {markup(one.sentence)}</li>" for one in answer.findings
    )
    yield f"<h2>Findings</h2>\n<ol>{rows}</ol>\n" if rows else "<h2>Findings</h2>\n<p>None.</p>\n"
    steps = answer.steps
    if steps.numbers:
        yield f"<h2>Step {steps.numbers[-1]:,}</h2>\n"
        yield still_totals({name: steps.values(name)[-1] for name in usual(steps)})


def _of_records(
    run: Run, answer: Trend, field: str | None, stored: StoredOptions
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """What the page's script reads of a run of records, and the tokens of its groups."""
    steps = answer.steps
    choice = choose(
        steps, answer.findings, most=stored.steps, groups=stored.groups, seed=stored.seed
    )
    read = read_groups(run, [steps[steps.numbers.index(one)] for one in choice.steps], choice)
    lost = limit_tokens(read.steps, choice.groups, stored.tokens)
    whole = _head(answer) | {"alone": run.alone}
    if field is not None:
        parts = PartSteps(run.reader, run.plan, run.step_source, field)
        windows = windows_of(steps, answer.events)
        whole["by"] = answer_by(field, parts, steps, windows, ()).to_dict()
    blocks: list[tuple[str, str]] = []
    groups: dict[str, list[dict[str, Any]]] = {}
    for step, several in sorted(read.all_groups.items()):
        rows = groups[str(step)] = []
        worst = steps[steps.numbers.index(step)].worst
        for group in several:
            name = f"block-{len(blocks)}" if group.block else None
            rows.append(group.facts | {"worst_in": worst_in(group.facts, worst), "block": name})
            blocks += [(name, group.block)] if name is not None else []
    reasons = {str(number): why for number, why in choice.steps.items()}
    sample = {"seed": choice.seed, "sampled": choice.groups, "lost": lost, "most": stored.tokens}
    shown = steps.with_metrics(_in_tables(answer))
    around = {  # as ``trend --at``
        str(number): {
            one.name: [one.before, one.after, one.size]
            for one in metrics_at(shown, steps.numbers.index(number), answer.findings)
        }
        for number in choice.steps
    }
    return whole | {"kept": reasons, "groups": groups, "around": around} | sample, blocks


def _in_tables(answer: Trend) -> dict[str, F64]:
    """The metrics that tables of a step have: the usual ones, and those of findings."""
    named = {one.metric for one in answer.findings}
    return {
        name: values
        for name, values in answer.steps.metrics.items()
        if name in named or (column := metric(name)) is None or column.usual
    }


def _head(answer: Trend) -> dict[str, Any]:
    """What the page's script reads of a run without kept groups."""
    steps, events, main = answer.steps, answer.events, main_event(answer.events)
    columns, last = {name: metric(name) for name in known(steps)}, answer.last_good_step
    good = [] if last is None else [("last good step", f"{last:,} ({len(steps):,} steps in all)")]
    return {
        "verdict": answer.verdict,
        "facts": [("", one) for one in answer.verdict.split("; ")[1:]]
        if main is None
        else [*_facts(main), *good, *(("also", o.title) for o in other_events(events))],
        "steps": steps.numbers,
        "files": steps.files,
        "metrics": [
            {
                "name": name,
                "about": legend(name),
                "unit": unit(name),
                "family": "log" if column is None else column.family,
                "main": (row := steps.watch(name)) is not None and row.name in _MAIN,
                "usual": column is None or column.usual,
                "spare": 0 if column is None else column.spare,
                "log": row is not None and row.is_log,
                "values": steps.values(name),
            }
            for name, column in columns.items()
            if column is not None or steps.logged
        ],
        "findings": [
            asdict(one)
            | {"by": _color(one), "event": at, "measure": measure(one), "first": one is event.first}
            for at, event in enumerate(events)
            for one in event.findings
        ],
        "events": [
            {
                "title": event.title,
                "main": event is main,
                "facts": _facts(event),
                "check": [event.rest_of(one) for one in event.news],
                "fix": event.fix,
                "last_good": last_good_step(steps, [event]),
                "commands": [] if steps.logged else event.commands,
            }
            for event in events
        ],
        "last_good": last,
        "log": None if answer.log is None else _log(steps, answer.log),
        "kept": {},
        "groups": {},
    }


def _facts(event: Event) -> list[tuple[str, str]]:
    """Its likely cause, part and fix."""
    return [(name, text) for name, text in event.facts if name in ("likely cause", "fix")]


def _color(finding: Finding) -> str | None:
    """What shows a finding best: a quantity that tokens can be coloured by."""
    worst = worst_kind(finding.metric)
    return "log_prob" if worst == "nll" else worst


def _log(steps: Steps, log: LogComparison) -> dict[str, Any]:
    """The logged series at the steps of the run, and whether each agrees with ours."""
    verdicts = {one.name: " ".join(verdict_of(one)) for one in log.series}
    return {
        "framework": log.framework,
        "series": [
            {
                "name": f"log: {name}",
                "verdict": verdicts.get(name, ""),
                "values": [values.get(number) for number in steps.numbers],
            }
            for name, values in log.logged.items()
        ],
    }
