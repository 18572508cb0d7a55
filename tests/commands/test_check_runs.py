"""What ``grpo check`` finds in records that expressions make: ``cases/checks*.txt``.

Each rule at its bounds, in small records, is in ``cases/check``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from files import expressions
from test_check_cases import shortened
from trended import write

from grpo_cli import check

Row = dict[str, Any]
ROLLOUTS, SAMPLES = (
    Path(__file__).parents[1] / "data/rollouts",
    Path(__file__).parents[2] / "samples",
)
COLUMNS = {name: f"log_probs_{name}" for name in ("new", "old", "ref", "rollout")}


def listed(value: Any) -> Any:
    """Arrays as lists, however deep they are."""
    if isinstance(value, list | tuple):
        return [*map(listed, value)]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def row(**fields: Any) -> Row:
    """A record of log-probs by their columns' names; rewards are 0 and 1 by turns."""
    of = {COLUMNS.get(name, name): listed(value) for name, value in fields.items()}
    size = len(next(iter(of.values())))
    return {"log_probs_new": of.get("log_probs_old")} | {"rewards": [0.0, 1.0] * (size // 2)} | of


def rows(seed: int, steps: int | range, record: Callable[[Any, int], Row]) -> list[Row]:
    """Such records, drawn one after the other."""
    draw = np.random.default_rng(seed)
    return [row(**record(draw, at)) for at in (range(steps) if isinstance(steps, int) else steps)]


def under(column: Any) -> Any:
    """Log-probs below 0."""
    return np.minimum(column, -1e-6)


def changed(every: list[Row], at: Any = slice(None), **columns: Callable[[Any], Any]) -> list[Row]:
    """The records, of which some have other columns."""
    places = {*(range(len(every))[at] if isinstance(at, slice) else at)}
    return [
        one | {
            COLUMNS.get(name, name): listed(change(np.array(one[COLUMNS.get(name, name)])))
            for name, change in columns.items()
        } if number in places else one
        for number, one in enumerate(every)
    ]  # fmt: skip


def without(every: list[Row], *names: str) -> list[Row]:
    return [{name: one[name] for name in one if name not in names} for one in every]


def exchanged(every: list[Row], one: str, other: str) -> list[Row]:
    """The records with two columns in each other's place."""
    one, other = COLUMNS[one], COLUMNS[other]
    return [each | {one: each[other], other: each[one]} for each in every]


def policies(seed: int, records: int = 4, size: int = 8, tokens: int = 30) -> list[Row]:
    """Tokens of an engine that has the old weights, and what three policies make of them."""

    def record(draw: Any, _: int) -> Row:
        logits = draw.normal(size=(size * tokens, 24)) * draw.choice([1.0, 3.0], (size * tokens, 1))
        taken, made = np.argmax(logits + draw.gumbel(size=logits.shape), axis=1), {}
        for name, spread in {"new": 0.06, "old": 0.0, "ref": 0.12, "rollout": 0.004}.items():
            other = logits + draw.normal(0.0, 1.0, logits.shape) * spread
            log_p = other - np.logaddexp.reduce(other, axis=1, keepdims=True)
            made[name] = log_p[np.arange(len(taken)), taken].reshape(size, tokens)
            if name == "new":
                made["entropies"] = -(np.exp(log_p) * log_p).sum(axis=1).reshape(size, tokens)
        return made

    return rows(seed, records, record)


def small_run(
    size: int, heat: dict[str, float], since: int = 0, only: Collection[int] = range(72)
) -> list[Row]:
    """12 steps of 6 prompts, the update of every second step sharpening a prompt by a quarter."""

    def record(draw: Any, at: int) -> Row:
        logits = draw.normal(0.0, 0.8, (size * 12, 16))
        taken, made = np.argmax(logits + draw.gumbel(size=logits.shape), axis=1), {}
        update, noise = (spread * draw.normal(size=logits.shape) for spread in (0.05, 0.004))
        new = logits * (1.25 if at % 12 == 3 else 1.0) + update
        for name, values in {"new": new, "old": logits, "rollout": logits + noise}.items():
            scaled = values / (heat.get(name, 1.0) if at >= since and at in only else 1.0)
            log_p = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
            made[name] = log_p[np.arange(len(taken)), taken].reshape(size, 12)
        return made | {"step": at // 6}

    return rows(7, 72, record)


def written_after(prompts: int, moved: int) -> list[Row]:
    """Ids of a model that looks at one token back, moved by so many, with an engine's noise.

    Eight responses to one prompt or each to another; of 0 prompts, log-probs of no model.
    """
    draw = np.random.default_rng(7)
    logits = draw.normal(0.0, 1.5, (12, 12))
    chances, made = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), []
    for _ in range(12):
        asked = draw.integers(0, 12, max(prompts, 1)).repeat(8 // max(prompts, 1))
        ids, new = np.empty((8, 6), dtype=int), np.empty((8, 6))
        for response, at in np.ndindex(8, 6):
            before = ids[response, at - 1] if at else asked[response]
            ids[response, at] = draw.choice(12, p=chances[before])
            new[response, at] = np.log(chances[before, ids[response, at]])
        noise = 1.0 if prompts == 0 else 0.002
        columns = {name: under(new + draw.normal(0.0, noise, new.shape)) for name in ("new", "old")}
        around = np.column_stack([asked, ids, draw.integers(0, 12, 8)])
        made.append(row(**columns, token_ids=around[:, 1 - moved : 7 - moved]))
    return made


def scored(rewards: Any, change: Callable[[Any], Any] = np.positive, seed: int = 9) -> Row:
    """A group whose advantages, (r − r̄) / σ, are changed."""
    rewards = np.array(rewards, dtype=float)
    given = (rewards - rewards.mean()) / (rewards.std(ddof=1) or 1.0)
    new = np.random.default_rng(seed).normal(-3, 0.5, (len(rewards), 6))
    return row(new=new, rewards=rewards, advantages=change(given))


def small(seed: int, widths: tuple[int, ...] = (4, 4), **more: Any) -> Row:
    """A record whose old log-probs are those of the next token."""
    draw = np.random.default_rng(seed)
    new = [-draw.exponential(2.0, width) - 0.01 for width in widths]
    return row(new=new, old=[[*one[1:], -1.0] for one in new], **more)


def sound(seed: int, widths: tuple[int, ...] = (63, 63), **more: Any) -> Row:
    """The same record with its own old log-probs."""
    made = small(seed, widths, **more)
    return made | {"log_probs_old": [[x - 0.01 for x in one] for one in made["log_probs_new"]]}


# ---- what is printed -----------------------------------------------------------------------------


def found(of: Any, *codes: str, words: bool = True) -> list[str]:
    """The findings of these codes, or all that are no information, and the first's message.

    Of each severity and code how many there are, and where the first ones are.
    """
    every: dict[str, list[Any]] = {}
    for one in check(of, limit=0).findings:
        if one.code in codes or (not codes and one.severity != "info"):
            every.setdefault(f"{one.severity}: {one.code}", []).append(one)
    lines = []
    for name, each in every.items():
        at = ", ".join(map(place, each[:4])) + (f", … ({len(each)})" if len(each) > 4 else "")
        lines.append(f"{name} at {at}" + (f": {each[0].message}" if words else ""))
    return lines or ["nothing"]


def place(finding: Any) -> str:
    """Record, response and token."""
    at = (finding.record, finding.response, finding.token)
    step = "" if finding.step is None else f" of step {finding.step}"
    return "/".join(str(one) for one in at if one is not None) + step


def evidence(of: Any, code: str) -> list[Any]:
    """What each finding of a code rests on."""
    return [
        shortened(dict(one.evidence)) for one in check(of, limit=0).findings if one.code == code
    ] or ["nothing"]


def advice(of: Any, code: str) -> list[str]:
    return [*dict.fromkeys(one.advice for one in check(of, limit=0).findings if one.code == code)]


@pytest.mark.parametrize("name", ["checks", pytest.param("checks_more", marks=pytest.mark.more)])
def test_what_is_found(name: str, folder: Path) -> None:
    next_file = (Path(f"{number}.jsonl") for number in count())

    def files(*every: Iterable[Row]) -> list[str]:
        return [str(write(next(next_file), one)) for one in every]

    def printed(of: list[Row], *flags: str) -> str:
        path = write(next(next_file), of)
        return run("check", path, *flags, COLUMNS="500").stdout.replace(str(path), "FILE").strip()

    makers = (policies, small_run, written_after, scored, small, sound, row, rows, files)
    changes = (listed, under, changed, without, exchanged, partial, product)
    asked = (found, evidence, advice, place, check, printed, answer)
    names: dict[str, Any] = {one.__name__: one for one in (*makers, *changes, *asked)}
    names |= {"np": np, "math": math, "json": json, "ROLLOUTS": ROLLOUTS, "SAMPLES": SAMPLES}
    expressions(Path(__file__).parent / "cases" / f"{name}.txt", names)
