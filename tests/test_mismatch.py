"""Where the engine's log-probs differ from the trainer's: definitions, planted causes, floors."""

from __future__ import annotations

import json
import math  # noqa: F401 - in mismatches.txt
import re
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from files import each, expressions
from mismatch import PLANTED, Drawn, draw

from grpo_cli import check
from grpo_cli.batch import Segments
from grpo_cli.objective.mismatch import Attribution, Mismatch

FLOORS = Path(__file__).parent.parent / "grpo_cli" / "commands" / "check" / "floors.json"


def drawn(seed: int, responses: int = 96, noise: float = 0.02) -> Drawn:
    return draw(seed, responses, noise=noise)


def moved(one: Drawn, among: Any, size: float) -> Drawn:
    """More noise of the logits at some tokens."""
    room = -np.expm1(one.rollout) * one.random.normal(size=one.rows.total)
    return one._replace(old=np.minimum(one.old + size * room * among, 0.0))


def attributed(*pieces: Drawn) -> Attribution:
    whole = Mismatch()
    for one in pieces:
        piece = Mismatch()
        piece.add(one.old, one.rollout, one.rows, one.turns, one.versions)
        whole.merge(piece)
    found = whole.result()
    assert found is not None
    return found


def cut(one: Drawn, responses: slice) -> Drawn:
    kept = np.zeros(one.rows.count, dtype=np.bool_)
    kept[responses] = True
    among = np.repeat(kept, one.rows.lengths)
    columns = (column[among] for column in one[1:5])
    return Drawn(Segments(one.rows.lengths[kept]), *columns, one.random)


def records(one: Drawn, group: int = 8, keys: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The responses as records, of turns and versions those that are asked for."""
    cuts = np.cumsum(one.rows.lengths)[:-1]
    old, rollout, turns, versions = (
        [part.tolist() for part in np.split(column, cuts)] for column in one[1:5]
    )
    more = {"turn_ids": turns, "weight_versions": versions}
    return [
        {
            "log_probs_new": old[at : at + group],
            "log_probs_old": old[at : at + group],
            "log_probs_rollout": rollout[at : at + group],
            **{key: more[key][at : at + group] for key in keys},
            "rewards": [float(number % 2) for number in range(len(old[at : at + group]))],
        }
        for at in range(0, len(old), group)
    ]


def file(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_its_size_is_that_of_the_definitions():
    one = drawn(1, noise=0.3)
    found, d = attributed(one), one.old - one.rollout
    k3 = np.exp(d) - 1.0 - d
    assert found.tokens == len(d)
    assert found.rms == pytest.approx(np.sqrt(np.mean(d**2)), rel=1e-12)
    assert found.mean_abs == pytest.approx(np.mean(np.abs(d)), rel=1e-12)
    assert found.kl == pytest.approx(np.mean(k3), rel=1e-9)
    worst = np.sort(k3)[::-1][: len(d) // 1000].sum() / k3.sum()
    assert found.worst == pytest.approx(worst, rel=0.15)


def by_version(one):
    """The cause "version", of which version 6 is spared, and k3 of each token."""
    d = one.old - one.rollout
    k3, p = np.exp(d) - 1.0 - d, np.exp(np.minimum(one.old, one.rollout))
    room, spared = (1.0 - p) ** 2, one.versions == 6
    without = k3[spared].sum() / room[spared].sum() * room.sum()
    (version,) = (cause for cause in attributed(one).causes if cause.name == "version")
    assert version.explains == pytest.approx(1.0 - without / k3.sum(), rel=1e-9)
    return version, k3


def test_what_a_cause_explains_is_the_kl_that_goes_when_tokens_differ_as_the_spared_do():
    one = drawn(2)
    one = moved(one, one.versions == 3, 0.1)
    version, k3 = by_version(one)
    shares = {kind.name: kind.share for kind in version.kinds}
    assert shares["version 3"] == pytest.approx(k3[one.versions == 3].sum() / k3.sum(), rel=1e-9)
    assert version.kinds[0].name == "version 3"
    for kind in version.kinds:
        among = one.versions == int(kind.name.removeprefix("version "))
        assert kind.tokens == among.sum()
        assert kind.kl == pytest.approx(k3[among].mean(), rel=1e-9)


def test_its_standard_errors_are_of_how_the_stretches_of_a_kind_vary():
    one = drawn(4, responses=40, noise=0.002)
    version = np.arange(one.rows.count) % 2
    one = one._replace(versions=np.repeat(version, one.rows.lengths))
    p = np.exp(np.minimum(one.old, one.rollout))
    size = one.rows.sum(np.minimum(np.abs(one.old - one.rollout), 1.0))
    room = one.rows.sum(1.0 - p)
    levels, errors = [], []
    for kind in (0, 1):
        among, runs = version == kind, 20
        level = size[among].sum() / room[among].sum()
        residual = np.square(size - level * room)[among].sum() * runs / (runs - 1)
        levels.append(level)
        errors.append(np.sqrt(residual) / room[among].sum())
    (found,) = (cause for cause in attributed(one).causes if cause.name == "version")
    assert found.sigmas == pytest.approx((levels[0] - levels[1]) / np.hypot(*errors), rel=1e-9)


@each(("name", "bits", "first"), [("bf16", 7, -1.25), ("fp16", 10, -1.0 - 2.0**-10)])
def test_a_rounded_column_adds_a_24th_of_its_squared_steps(name: str, bits: int, first: float):
    rollout, whole = np.array([first, -0.5, -3.0, -0.75]), Mismatch()
    whole.add(np.array([-1.3, -0.51, -2.9, -0.8]), rollout, Segments(np.array([4])))
    (cause,) = (one for one in whole.result().causes if one.name == "precision")
    (kind,) = (one for one in cause.kinds if one.name == f"rollout in {name}")
    steps = 2.0 ** (np.floor(np.log2(-rollout)) - bits)
    assert kind.kl == pytest.approx(np.mean(steps**2) / 24, rel=1e-12)


def test_a_version_of_few_tokens_is_not_spared():
    """However many stretches they are: it is the newest of those with a twentieth of the tokens."""
    one = drawn(2)
    one = moved(one, one.versions == 3, 0.1)
    one.versions[one.rows.starts[:40]] = 9
    assert 0.05 * one.rows.total > 40
    by_version(one)


def test_the_share_of_outliers_is_what_goes_where_they_are_as_the_others():
    one = PLANTED["outliers"](drawn(5), 2.0)
    d = one.old - one.rollout
    k3, far = np.expm1(d) - d, np.abs(d) > 1.0
    first = attributed(one).first
    assert first.name == "outliers"
    wanted = 1.0 - k3[~far].mean() * len(d) / k3.sum()
    assert first.explains == pytest.approx(wanted, rel=0.02)
    assert wanted < 0.95


def test_a_turn_may_be_a_row(tmp_path):
    """The rows of a trajectory are its turns, in their order."""
    one = PLANTED["turn"](drawn(10), 8.0)
    whole = answer("check", file(tmp_path / "whole.jsonl", records(one, keys=("turn_ids",))))[
        "mismatch"
    ]
    made = []
    for record in records(one, keys=("turn_ids",)):
        parts = [np.flatnonzero(np.diff(row, prepend=-1)) for row in record.pop("turn_ids")]
        columns = {
            key: [
                part.tolist()
                for row, at in zip(record[key], parts, strict=True)
                for part in np.split(row, at[1:])
            ]
            for key in record
            if key.startswith("log_probs")
        }
        names = [f"t{number}" for number, at in enumerate(parts) for _ in at]
        rewards = [record["rewards"][int(name[1:])] for name in names]
        made.append(columns | {"trajectory_ids": names, "rewards": rewards})
    found = check(made).to_dict()["mismatch"]
    (turn,) = (row for row in found["causes"] if row["name"] == "turn")
    (expected,) = (row for row in whole["causes"] if row["name"] == "turn")
    assert turn["explains"] == pytest.approx(expected["explains"], rel=1e-9)
    assert [kind["tokens"] for kind in turn["kinds"]] == [k["tokens"] for k in expected["kinds"]]


def test_the_floors_are_ranges_with_sources():
    rows = json.loads(FLOORS.read_text())
    page = run("help", "runs").stdout.splitlines()
    assert rows
    for row in rows:
        assert 0.0 <= row["low"] <= row["high"]
        milder = [
            one["high"] for one in rows[: rows.index(row)] if one["measure"] == row["measure"]
        ]
        assert row["high"] > max(milder, default=0.0)  # else it is never named
        assert row["measure"] in ("rms", "mean_abs", "kl")
        assert row["source"].startswith(("https://", "tests/benchmarks/floors.py of commit "))
        line = f"| {row['setting']} | {row['low']:.3g}"
        assert any(line in one and row["models"] in one for one in page)


def at_steps(changed: range, tokens: int = 8) -> list[dict[str, Any]]:
    """20 steps of 12 responses; at some steps the engine finds the ends of text less likely."""
    random, made = np.random.default_rng(6), []
    for step in range(20):
        rows = [tokens] * 10 + [1] * 2
        old = [np.log(random.uniform(0.1, 0.6, length)) for length in rows]
        engine = [one + random.normal(0.0, 0.003, len(one)) for one in old]
        for one in engine if step in changed else []:
            one[-1] -= 0.9
        lists = {
            "log_probs_old": [one.tolist() for one in old],
            "log_probs_rollout": [np.minimum(one, 0.0).tolist() for one in engine],
            "tokens": [[*random.choice(["a", "b"], length - 1), "</s>"] for length in rows],
        }
        made.append({"step": step, "rewards": [0.0, 1.0] * 6} | lists)
        made[-1]["log_probs_new"] = made[-1]["log_probs_old"]
    return made


def sharper_from(growth: Any) -> list[dict[str, Any]]:
    """A record a step of 8 responses of 25 tokens, whose trainer scales its logits by step."""
    random = np.random.default_rng(5)
    made = []
    for step in range(24):
        logits = random.normal(size=(200, 40)) * random.choice([1.0, 4.0], (200, 1))
        engine, trainer = (
            each - np.log(np.exp(each).sum(axis=1, keepdims=True))
            for each in (logits, logits * (1.0 + growth(step)))
        )
        token = np.argmax(engine + random.gumbel(size=engine.shape), axis=1)
        taken = (each[np.arange(200), token] for each in (trainer, engine))
        old, rollout = (each.reshape(8, 25).tolist() for each in taken)
        made.append(
            {"step": step, "log_probs_new": old, "log_probs_old": old, "rewards": [0.0, 1.0] * 4}
            | {"log_probs_rollout": rollout}
        )
    return made


def result(old: Any, rollout: Any, rows: Segments | None = None) -> Attribution | None:
    """The mismatch of a response of these log-probs, or of several."""
    found = Mismatch()
    found.add(np.array(old), np.array(rollout), rows or Segments(np.array([len(old)])))
    return found.result()


def cause(found: Any, name: str) -> Any:
    return next(one for one in found.causes if one.name == name)


def clause(text: str, words: str) -> str:
    """What is between two marks, where the words are."""
    return next(one.strip() for one in re.split("[;:,] ", text) if words in one)


def printed(*words: object) -> str:
    return " ".join(run(*words).stdout.split())


def steps_of(rows: list[dict[str, Any]]) -> Any:
    """What check finds where each record is a step."""
    return check([row | {"step": at} for at, row in enumerate(rows)]).findings


def test_causes_and_what_is_printed(tmp_path: Path) -> None:
    numbers = count()

    def kept(rows: list[dict[str, Any]]) -> Path:
        return file(tmp_path / f"{next(numbers)}.jsonl", rows)

    def written(one: Drawn, *keys: str) -> Path:
        return kept(records(one, keys=keys))

    names = globals() | {"file": kept, "written": written}
    expressions(Path(__file__).parent / "data" / "mismatches.txt", names)
