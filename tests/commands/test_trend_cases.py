"""What ``grpo trend`` says of the runs that expressions make: ``cases/trends*.txt``."""

from __future__ import annotations

import json
import math
import random
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, count, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trended
from command import answer, run
from files import blocks_of, expressions
from trended import (
    COLUMNS,
    IDS,
    PLAIN,
    SAMPLES,
    STEP,
    centred,
    given,
    healthy,
    log_of,
    metrics,
    series,
    steps,
    trend,
    write,
    written,
)

import grpo_cli
from grpo_cli import evaluate
from grpo_cli.batch import F64

T = np.arange(60)


def z(seed: int, count: int = 60) -> F64:
    return np.random.default_rng(seed).standard_normal(count)


def normal(step: int) -> F64:
    """Noise of each token of a step."""
    return np.random.default_rng(1000 + step).normal(size=(4, 8, 16))


def learning(name: str, count: int = 40) -> F64:
    """A series of a healthy run that learns fastest in its first steps."""
    steps, noise = np.arange(count), 1.0 + 0.03 * z(8, count)
    return {
        "kl": 1e-5 * (steps + 1.0) ** 1.5 * noise,
        "entropy": (1.0 + 2.0 * np.exp(-steps / 6.0)) * (1.0 + 0.01 * z(9, count)),
        "grad_norm": 0.03 * noise,
        "reward": 0.3 + 0.4 * (1.0 - np.exp(-steps / 8.0)) + 0.02 * z(10, count),
        "completion_length": 300.0 * (1.0 + np.minimum(steps, 10) / 10.0) * noise,
        "clip_ratio": np.minimum(steps, 8) / 80.0 * noise,
    }[name]


class Runs:
    """Writes runs into files, the next number each."""

    def __init__(self, folder: Path) -> None:
        self._next = (folder / f"{number}.jsonl" for number in count())

    def rows(self, rows: Any) -> Path:
        return write(next(self._next), rows)

    def log(self, _first: int = 0, **values: Any) -> Path:
        """A trainer's log: of each series its values, from the first step on."""
        return self.log_at(**{
            name: dict(enumerate(map(float, each), _first)) for name, each in values.items()
        })  # fmt: skip

    def log_at(self, **values: Mapping[int, float]) -> Path:
        """A trainer's log: of each series its values by step."""
        return log_of(next(self._next).with_suffix(".json"), values)

    def each_step(self, steps: int, record: Callable[[int], Mapping[str, Any]]) -> Path:
        """A record for each step, of lists or arrays."""
        return self.rows(
            {"step": at} | {k: v.tolist() if hasattr(v, "tolist") else v for k, v in of.items()}
            for at in range(steps)
            for of in [record(at)]
        )

    def each_group(self, steps: int, groups: int, record: Callable[..., Any]) -> Path:
        """Such a record for each group of each step."""
        return self.rows(
            {"step": at, "id": f"{at}/{group}"}
            | {k: v.tolist() if hasattr(v, "tolist") else v for k, v in record(at, group).items()}
            for at in range(steps)
            for group in range(groups)
        )

    def planted(
        self, change: Callable[..., Any], first: int = STEP, seed: int = 7, **by: Any
    ) -> Path:
        """A healthy run of which columns of the steps from ``first`` on are changed.

        ``by``: fields made of a step and a group.
        """
        rows = [now | change(now, t) if t >= first else now for t, now in enumerate(healthy(seed))]
        return written(next(self._next), rows, **by)

    def whole(self, change: Callable[..., Any], **by: Any) -> Path:
        """The same with advantages, token ids and texts."""
        texts = [[f"t{one}" for one in row] for row in IDS]
        by = {"token_ids": lambda t, g: IDS, "tokens": lambda t, g: texts} | by
        rows = [now | change(now, t) if t >= STEP else now for t, now in enumerate(healthy())]
        rows = [{"advantages": given(now)} | now for now in rows]
        return written(next(self._next), rows, **by)

    def rewards(self, **values: Any) -> Path:
        """A run whose reward functions have these values."""
        return series(next(self._next), {name: [*map(float, one)] for name, one in values.items()})

    def entropies(self, values: Any) -> Path:
        """A run whose entropy is this number at each step."""
        return self.rows(
            PLAIN | {"step": at, "entropies": [[x, x], [x]]} for at, x in enumerate(values)
        )

    def mismatched(self, values: Any) -> Path:
        """A run in which log π_trainer − log π_engine is this number at each step."""
        return self.rows(
            {"step": at, "log_probs": [[-9.0], [-9.0]], "rewards": [1.0, 0.0]}
            | ({} if x is None else {"log_probs_rollout": [[-9.0 - x], [-9.0 - x]]})
            for at, x in enumerate(values)
        )

    def moved_by(self, column: str, sizes: Any) -> Path:
        """A run in which log π of a column is ± this number off that of the policy, by turns."""
        old, signs = np.full((2, 20), -2.0), np.resize([1.0, -1.0], (2, 20))
        usual = {"log_probs": old, "log_probs_old": old, "rewards": [1.0, 0.0]}
        return self.each_step(len(sizes), lambda at: usual | {column: old + sizes[at] * signs})

    def lengths(self, lengths: Any, seed: int = 5, padded: int | None = None) -> Path:
        """A run of these lengths, a step each, with rewards that differ.

        From the step ``padded`` on all have 30 tokens, and there are log-probs of a reference.
        """
        noise, rows = np.random.default_rng(seed), []
        for at, counts in enumerate(lengths):
            new = [-noise.exponential(1.0, n) - 1e-3 for n in counts]
            columns = {"log_probs": new}
            if padded is not None:
                columns["ref_log_probs"] = [
                    np.minimum(a + noise.normal(0, 0.1, len(a)), 0) for a in new
                ]
            width = 30 * (padded is not None and at >= padded)
            rows.append({"step": at, "rewards": [n % 2 for n in range(len(counts))]} | {
                name: [[*a.tolist(), *[0.0] * (width - len(a))] for a in column]
                for name, column in columns.items()
            })  # fmt: skip
        return self.rows(rows)


def found(path: object, *flags: object, only: str = "") -> list[str]:
    """The verdict, what is to be done, and each finding: its steps, and when it was seen.

    With ``only`` the findings of a metric alone.
    """
    document = trend(path, *flags)
    lines = [] if only else [document["verdict"], *events(document)]
    for one in document["findings"]:
        if only in ("", "*", one["metric"]):
            until = "" if one["end"] is None else f" to {one['end']}"
            lines.append(
                f"{one['severity']}: {one['metric']} {one['kind']} {one['direction']} "
                f"{one['onset']}{until}, seen {one['seen']}, worst {one['worst_step']}"
                + ("" if one["score"] is None else f", score {one['score']:.4g}")
            )
    return lines or ["nothing"]


def events(document: Any) -> Iterator[str]:
    for one in document["events"]:
        yield f"{one['severity']}: {one['summary']}"
        yield from [f"  fix: {one['fix']}"] if one["fix"] else []
        yield from (f"  check: {line}" for line in one["check"])


def sentences(path: object, metric: str, *flags: object) -> list[str]:
    """The sentences of a metric's findings."""
    every = [one["sentence"] for one in trend(path, *flags)["findings"] if one["metric"] == metric]
    return [one.replace(str(path), "RUN") for one in every] or ["nothing"]


def short(path: object, metric: str = "") -> str:
    """The warnings of a run, or of a metric, in a line: their kinds, way and steps."""
    return ", ".join(
        ("" if metric else f"{one['metric']} ")
        + f"{one['kind']} {one['direction']} {one['onset']} to {one['end']} (seen {one['seen']})"
        + (f" every {one['period']}" if one["period"] else "")
        for one in trend(path)["findings"]
        if one["severity"] == "warning" and metric in ("", one["metric"])
    ) or "nothing"  # fmt: skip


def fails(path: object, condition: str, *flags: object) -> str:
    """The exit code of ``--fail-on``, and why."""
    result = run("trend", path, "-v", "dr", "--fail-on", condition, *flags)
    reasons = [line for line in result.stderr.splitlines() if "--fail-on" in line]
    return "\n".join([str(result.exit_code), *reasons])


def against(first: object, second: object) -> list[str]:
    """What differs between two runs: from which step on, in how many steps, and how sure."""
    words = ("trend", first, "--against", second)
    headline, *rest = run(*words, COLUMNS="200").stdout.splitlines()
    document, text = answer(*words), " ".join(" ".join(rest).split())
    lines = [headline, *document["notes"], f"steps: {document['steps']}"]
    lines += re.findall(r"too few to judge [^.]*", text)
    lines += [line for line in rest if line.startswith("equal:")]
    shown = {line.split()[1]: "±" in line for line in rest if line[:1] == "≠"}
    for one in document["metrics"]:
        differs = f"differs from {one['since']} on" if one["differs"] else "no difference"
        interval = f", {one['low']:.3g} to {one['high']:.3g}" if one["low"] is not None else ""
        printed = ", its interval is printed" if shown.get(one["name"]) else ""
        lines.append(f"{one['name']}: {differs}{interval}{printed}")
    assert [*shown] == [one["name"] for one in document["metrics"] if one["differs"]]
    return lines


def compared(path: object, log: object, *flags: object) -> list[str]:
    """Each series of a log, with what it is compared with."""
    document, lines = trend(path, "--log", log, *flags)["log"], []
    for one in document["series"]:
        line = f"{one['name']}: {'agrees' if one['agrees'] else 'differs'}, {one['steps']} steps"
        if one["first"] is not None:
            line += f", from step {one['first']}: {one['logged']:.6g}, not {one['recomputed']:.6g}"
        lines.append(line + (f"; {one['because']}" if one["because"] else ""))
    return [document["framework"], *lines]


def values(path: object, name: str, *flags: object) -> str:
    """A column of the steps, equal neighbours counted."""
    found = groupby(step.get(name, "missing") for step in trend(path, *flags)["steps"])
    return ", ".join(f"{value} × {len([*every])}" for value, every in found)


def put(array: Any, place: Any, value: Any) -> Any:
    """A copy with another value at a place."""
    copy = array.copy()
    copy[place] = value
    return copy


def unlike(numbers: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Which numbers are not those that somebody worked out by hand."""

    def same(one: float | None, other: float | None) -> bool:
        return one == other or (
            None not in (one, other) and math.isclose(one, other, rel_tol=1e-13)
        )

    wrong = {name: numbers[name] for name in wanted if not same(numbers[name], wanted[name])}
    return f"{wrong} is not by hand" if wrong else "as by hand"


def ends(*words: object) -> str:
    """The exit code of a command, and what it says on standard error."""
    result = run(*words)
    said = re.sub(r"(?<!\S)/\S*/\d+\.jsonl?", "RUN", result.stderr).rstrip()
    return f"{result.exit_code} {said}".rstrip()


def file(name: str, rows: Any) -> str:
    """Records in the current folder."""
    return str(write(Path(name), rows))


def cut(size: int, ask: Callable[[], Any]) -> Any:
    """What is answered where files are read in blocks of so many bytes."""
    with blocks_of(size):
        return ask()


def notes(path: object, *flags: object) -> list[str]:
    return [one.replace(str(path), "RUN") for one in trended.notes(path, *flags)]


@pytest.mark.parametrize(
    "name",
    [
        *("trends", "trend_numbers"),
        *(pytest.param(one, marks=pytest.mark.more) for one in ("trends_more", "trend_steps")),
    ],
)
def test_what_is_found(name: str, folder: Path) -> None:
    runs = Runs(folder)
    made = {one: getattr(runs, one) for one in dir(runs) if not one.startswith("_")}
    made |= {one.__name__: one for one in (z, learning, normal, put, file, cut)}
    asked = (found, sentences, short, fails, against, compared, values, unlike, ends, notes)
    theirs = (centred, given, run, answer, trend, steps, evaluate, accumulate, json, math, random)
    names = made | {one.__name__: one for one in (*asked, *theirs)} | {"np": np, "pa": pa, "pq": pq}
    names |= {"T": T, "PLAIN": PLAIN, "SAMPLES": SAMPLES, "COLUMNS": COLUMNS, "IDS": IDS}
    names |= {"NO_KL": ("-v", "grpo", "--beta", "0"), "step": metrics, "re": re, "shlex": shlex}
    names |= {"grpo_trend": grpo_cli.trend, "Path": Path}
    expressions(Path(__file__).parent / "cases" / f"{name}.txt", names)
