"""Trainings that cover every pair of a trainer's option values, each judged by ``grpo verify``.

``trl_pairwise.py`` and ``verl_pairwise.py`` say which options there are, and how one configuration
is trained and recorded.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command import run as grpo
from rows import choose, completed

from grpo_cli import evaluate
from grpo_cli.hooks.writer import line_of

from .agreement import GOLDEN

Configuration = dict[str, Any]
Record = dict[str, Any]
Pair = tuple[tuple[str, int], tuple[str, int]]

SEED = 25
RTOL = "1e-6"
ERRORS = ("loss", "gradient", "advantages")


@dataclass(frozen=True)
class Array:
    """The options of a trainer that reach its loss.

    Attributes:
        name: the trainer's.
        options: option → its values.
        train: trains the configuration of a number for two steps in a folder of its own; the
            records, with what the trainer computed.
        loss_of: a configuration → the name of its loss.
        allowed: whether the trainer takes a configuration.
        advantage_error: the largest relative error of the advantages of a training, where
            the records alone do not show it.
    """

    name: str
    options: Mapping[str, Sequence[Any]]
    train: Callable[[Configuration, Path, int], list[Record]]
    loss_of: Callable[[Configuration], str]
    allowed: Callable[[Configuration], bool]
    advantage_error: Callable[[Configuration, list[Record]], float] = lambda *_: 0.0

    def rows(self) -> list[Configuration]:
        """The configurations: every pair of values that the trainer takes."""
        return covering_array(self.options, seed=SEED, allowed=self.allowed)


@dataclass
class Tally:
    """Of the configurations of one loss: how many, how many differ, and the largest errors."""

    configurations: int = 0
    records: int = 0
    differ: int = 0
    loss: float = 0.0
    gradient: float = 0.0
    advantages: float = 0.0
    metrics: Counter[str] = field(default_factory=Counter)

    def raise_to(self, errors: Mapping[str, float]) -> None:
        """Keeps the larger of each error."""
        for name, error in errors.items():
            setattr(self, name, max(getattr(self, name), error))


def judged(
    array: Array, rows: Sequence[Configuration], folder: Path
) -> tuple[dict[str, Tally], list[str]]:
    """Trains configurations; loss → tally, and a line for each configuration that differs."""
    tallies: dict[str, Tally] = {}
    differing = []
    for number, row in enumerate(rows):
        place = folder / f"{array.name}-{number}"
        place.mkdir()
        records = array.train(row, place, number)
        verdicts = verified(records, place / "judged.jsonl")
        found = [verdict for verdict in verdicts.values() if not verdict["agrees"]]
        compared = [record for record in records if record["id"] in verdicts]
        tally = tallies.setdefault(array.loss_of(row), Tally())
        tally.configurations += 1
        tally.records += len(compared)
        tally.metrics.update(
            {metric["key"] for verdict in verdicts.values() for metric in verdict["metrics"]}
        )
        expected = [record["id"] for record in records if _is_finite(record)]
        lost = [name for name in expected if name not in verdicts]
        if found or lost or not compared:
            tally.differ += 1
            differing.append(f"{found[0]['first'] if found else lost}: {row}")
            continue
        tally.raise_to({"advantages": array.advantage_error(row, records)})
        for record in compared:
            tally.raise_to(errors(record))
    return tallies, differing


def _is_finite(record: Record) -> bool:
    expected = record["expected"]
    return bool(np.isfinite(expected.get("loss", expected.get("policy_loss", np.nan))))


def verified(records: Sequence[Record], path: Path) -> dict[str, dict[str, Any]]:
    """``grpo verify``: record → its verdict; those that were not compared have none."""
    path.write_bytes(b"".join(map(line_of, records)))
    skip = ("--on-error", "skip", "--max-errors", 0, "--causes", 0)
    done = grpo("verify", path, "--rtol", RTOL, *skip, "--json")
    assert done.stdout, done.stderr
    return {str(row["id"]): row for row in json.loads(done.stdout)["records"]}


def errors(record: Record) -> dict[str, float]:
    """Relative errors: of the loss, of Σ|contribution|; of the others, of the largest number."""
    expected = record["expected"]
    chosen = choose(record["framework"])
    given = "advantages" in record
    plan = completed(chosen, advantages_given=given, stages={}, hyperparameters={})
    values: dict[str, Any] = dict(plan.flags)
    ours = evaluate(record, plan.variant, stages=dict(plan.swapped), **values)
    found: dict[str, float] = {}
    size = float(ours.breakdown.record_scale.sum()) or 1.0
    for key, loss in (("loss", ours.loss), ("policy_loss", -float(ours.total["policy"]))):
        if key in expected:
            found["loss"] = abs(loss - expected[key]) / size
    if "loss_gradient" in expected:
        cancels = float(ours.breakdown.kl_scale.max(initial=0.0))  # in k3's slope, 1 − eˣ
        theirs = counted(record, expected["loss_gradient"])
        found["gradient"] = relative_error(-ours.breakdown.gradient, theirs, cancels)
    if "advantages" in expected:
        theirs = counted(record, expected["advantages"])
        found["advantages"] = relative_error(ours.breakdown.advantage, theirs)
    return found


def counted(record: Record, rows: Sequence[Any]) -> Any:
    """The values of the tokens that the mask keeps, of all responses."""
    flat = np.concatenate([*map(np.asarray, rows), np.zeros(0)])
    return flat[np.concatenate(record["mask"]) == 1] if "mask" in record else flat


def relative_error(ours: Any, theirs: Any, least: float = 0.0) -> float:
    """The largest difference, relative to the largest number or ``least``."""
    most = max(float(np.abs(theirs).max(initial=0.0)), least) or 1.0
    return float(np.abs(ours - theirs).max(initial=0.0)) / most


def pairs(options: Mapping[str, Sequence[Any]], rows: Sequence[Configuration]) -> tuple[int, int]:
    """How many pairs of values occur, and of how many."""
    total = sum(len(options[a]) * len(options[b]) for a, b in combinations(options, 2))
    met = {
        (a, repr(row[a]), b, repr(row[b])) for row in rows for a, b in combinations(sorted(row), 2)
    }
    return len(met), total


def run(framework: str, arrays: Sequence[Array], **more: Any) -> None:
    """The command line: trains every configuration; ``--write`` keeps what the page shows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    name = framework.split()[0]
    found: dict[str, Any] = {}
    all_differing = []
    for array in arrays:
        rows = array.rows()
        with tempfile.TemporaryDirectory() as folder:
            tallies, differing = judged(array, rows, Path(folder))
        met, total = pairs(array.options, rows)
        losses = {loss: vars(tally) for loss, tally in sorted(tallies.items())}
        found[array.name] = {"pairs": met, "of": total, "losses": losses}
        all_differing += differing
    how = f"python -m parity.{name}_pairwise --write: every configuration was trained for two"
    how += f" steps, recorded by the hook and judged by grpo verify --rtol {RTOL}"
    document = {"framework": framework, "how": how, "arrays": found, **more}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    print(text, *all_differing, sep="\n")
    if given.write:
        (GOLDEN / f"{name}_pairs.json").write_text(text + "\n")
    raise SystemExit(bool(all_differing))


_TRIES = 40
"""Candidate rows that are drawn for each row that is kept."""


def covering_array(
    options: Mapping[str, Sequence[Any]],
    *,
    seed: int,
    allowed: Callable[[Configuration], bool] = lambda _: True,
) -> list[Configuration]:
    """Returns configurations that together hold every pair of values of every two options.

    Greedy: each row is the best of some that begin with an uncovered pair and fill in the other
    options, in random order, by the value that covers most (Cohen et al., AETG, 1997). Pairs that
    no allowed configuration was found for are left out.

    Args:
        options: option → its values; values differ by their place, not by equality.
        seed: of the draws; the same seed gives the same rows.
        allowed: whether a whole configuration may be run.
    """
    draw = random.Random(seed)
    names = sorted(options)
    open_pairs = {
        ((first, i), (second, j))
        for first, second in combinations(names, 2)
        for i in range(len(options[first]))
        for j in range(len(options[second]))
    }
    rows: list[Configuration] = []
    while open_pairs:
        target = draw.choice(sorted(open_pairs))
        candidates = [_row(options, target, open_pairs, draw) for _ in range(_TRIES)]
        fitting = [row for row in candidates if allowed(_values(options, row))]
        if not fitting:  # the values that cover most may be those that do not go together
            drawn = (_drawn(options, target, draw) for _ in range(10 * _TRIES))
            fitting = [row for row in drawn if allowed(_values(options, row))]
        if not fitting:
            open_pairs.discard(target)
            continue
        best = max(fitting, key=lambda row: len(_pairs(row) & open_pairs))
        open_pairs -= _pairs(best)
        rows.append(_values(options, best))
    return rows


def seeded_part(rows: Sequence[Configuration], *, seed: int, share: float) -> list[Configuration]:
    """Returns a share of the rows, at least one, in their order."""
    count = max(1, round(share * len(rows)))
    places = sorted(random.Random(seed).sample(range(len(rows)), count))
    return [rows[place] for place in places]


def _row(
    options: Mapping[str, Sequence[Any]],
    target: Pair,
    open_pairs: set[Pair],
    draw: random.Random,
) -> dict[str, int]:
    row = dict(target)
    others = [name for name in options if name not in row]
    draw.shuffle(others)
    for name in others:
        places = list(range(len(options[name])))
        draw.shuffle(places)
        row[name] = max(
            places,
            key=lambda place: sum(
                _pair((name, place), known) in open_pairs for known in row.items()
            ),
        )
    return row


def _drawn(
    options: Mapping[str, Sequence[Any]], target: Pair, draw: random.Random
) -> dict[str, int]:
    return {name: draw.randrange(len(options[name])) for name in options} | dict(target)


def _pair(first: tuple[str, int], second: tuple[str, int]) -> Pair:
    return (first, second) if first[0] < second[0] else (second, first)


def _pairs(row: Mapping[str, int]) -> set[Pair]:
    return set(combinations(sorted(row.items()), 2))


def _values(options: Mapping[str, Sequence[Any]], row: Mapping[str, int]) -> Configuration:
    return {name: options[name][row[name]] for name in sorted(row)}
