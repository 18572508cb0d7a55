"""What ``grpo check`` finds in small records: the files of ``cases/check``, one for each code.

A case is a comment, records as JSON lines, and the findings of that code that they give, a line
each; none where the records are just below a threshold. ``several.txt`` has all findings of its
records. ``GRPO_WRITE_CASES=1`` writes what is found now into the files, to be read as a diff.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import each, expressions
from planted import record
from test_check_turns import drawn
from trials.strangers3.exam import FAULTS

from grpo_cli import check
from grpo_cli.errors import InputError

CASES = sorted((Path(__file__).parent / "cases" / "check").glob("*.txt"))


def cut(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields the title, the records and the findings of each case."""
    for case in text.split("\n\n"):
        title, *lines = case.splitlines()
        records = [line for line in lines if line.startswith("{")]
        yield title, records, [line for line in lines if not line.startswith("{")]


def shortened(value: Any) -> Any:
    """Rounds numbers to nine digits, which do not depend on the processor."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [*map(shortened, value)]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def line_of(finding: Any) -> str:
    places = (("record", finding.record), ("response", finding.response), ("token", finding.token))
    place = ", ".join(f"{name} {at}" for name, at in places if at is not None)
    evidence = json.dumps(shortened(dict(finding.evidence)), ensure_ascii=False)
    return f"{finding.severity} {place}: {finding.message} {evidence}"


def findings(records: list[str], code: str) -> list[str]:
    found = check([json.loads(one) for one in records], limit=0).findings
    if code == "several":
        return [f"{one.code} {line_of(one)}" for one in found]
    return [line_of(one) for one in found if one.code == code]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_is_found(path: Path) -> None:
    cases = [*cut(path.read_text(encoding="utf-8"))]
    found = [findings(records, path.stem) for _, records, _ in cases]
    if "GRPO_WRITE_CASES" in os.environ:
        blocks = zip(cases, found, strict=True)
        text = "\n\n".join("\n".join([title, *rows, *now]) for (title, rows, _), now in blocks)
        path.write_text(f"{text}\n", encoding="utf-8")
    assert any(found)
    assert not all(found) or path.stem == "several", "no case is just below a threshold"
    for (title, _, wanted), now in zip(cases, found, strict=True):
        assert now == wanted, title


# ---- what several records show, and files ------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "name"),
    [
        (lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-4), "(r − mean) / std with ddof 1"),
        (lambda r: (r - r.mean()) / r.std(), "(r − mean) / std with ddof 0"),
        (lambda r: r - r.mean(), "r − mean"),
        (lambda r: 3 * (r - r.mean()), "r − mean, times another factor"),
        (lambda r: (r - 0.4) / 0.5, "a baseline that is not the group's mean"),
        (lambda r: (r - r.mean()) ** 3, "another function of the rewards"),
    ],
)
def test_the_formula_of_the_advantages_is_named(formula, name, grpo, tmp_path):
    draw, made = np.random.default_rng(4), []
    for group in range(6):
        rewards = np.round(draw.normal(size=8), 3) if group else np.ones(8)
        values = {"rewards": rewards.tolist(), "advantages": (rewards - rewards.mean()).tolist()}
        if group:
            values["advantages"] = formula(rewards).tolist()
        made.append(values | {"log_probs_new": draw.normal(-3, 0.5, (8, 6)).tolist()})
    told = check(made)
    assert told.advantages == {"rewards all equal": 1, name: 5}
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in made), encoding="utf-8")
    shown = "no formula that grpo knows" if name == "another function of the rewards" else name
    line = f"advantages: rewards all equal in 1 group; {shown} in 5 groups"
    assert line in grpo("check", str(path)).stdout.replace("\n  ", " ")


def test_a_constant_is_found_over_a_std_that_is_hardly_larger_than_its_eps() -> None:
    rewards = np.array([0.0, 0.01, 0.02, 0.015, 0.005, 0.03, 0.012, 0.018])
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4) + 0.5
    scores = {"rewards": rewards.tolist(), "advantages": advantages.tolist()}
    found = check([scores | {"log_probs_new": [[-1.0 - at / 10] for at in range(8)]}]).findings
    assert [one.evidence for one in found if one.code == "advantages"] == [
        {"mean": pytest.approx(0.5)}
    ]


def test_infos_hide_no_warning_of_their_code() -> None:
    cases = [*cut((CASES[0].parent / "ratio-noise.txt").read_text(encoding="utf-8"))]
    (warned,), (noted,) = (records for _, records, _ in cases[:2])
    other = {"log_probs_new": [[-1.0]]}  # small records that follow each other are one sample
    records = [json.loads(one) for one in [*[noted] * 4, warned]]
    found = check([one for record in records for one in (record, *[other] * 63)], limit=2)
    of_code = [one for one in found.findings if one.code == "ratio-noise"]
    assert [(one.severity, one.record) for one in of_code] == [
        ("info", 0), ("info", 64), ("warning", 256),
    ]  # fmt: skip
    assert found.more["ratio-noise"] == 2
    assert found.more_by_severity["ratio-noise"] == {"info": 2}
    rows = [one["severity"] for one in found.table() if one["code"] == "ratio-noise"]
    assert rows[:1] == ["warning"]


def departing(changed: range) -> list[dict]:
    """48 records of a group, in some of which a reward was changed after its advantage."""
    draw, made = np.random.default_rng(5), []
    for number in range(48):
        rewards = np.round(draw.normal(size=8), 3)
        advantages = rewards - rewards.mean()
        rewards[0] -= 0.01 * (number in changed)
        log_probs = draw.normal(-3, 0.5, (8, 6)).tolist()
        scores = {"rewards": rewards.tolist(), "advantages": advantages.tolist()}
        made.append(scores | {"id": number, "log_probs_new": log_probs})
    return made


@pytest.mark.more
@pytest.mark.parametrize(
    ("changed", "at"), [(range(12, 48), [12]), (range(4, 48), []), (range(12, 48, 2), []), ((), [])]
)
@pytest.mark.parametrize("size", [1, 5, 48])
def test_advantages_that_cease_to_follow_the_rewards_are_a_warning(changed, at, size, tmp_path):
    made = departing(changed)
    for first in range(0, len(made), size):  # a file is a piece, whose facts merge
        lines = [json.dumps(one) + "\n" for one in made[first : first + size]]
        (tmp_path / f"{first:02}.jsonl").write_text("".join(lines), encoding="utf-8")
    found = [one for one in check(sorted(tmp_path.iterdir())).findings if one.code == "advantages"]
    assert [(one.record, one.severity) for one in found] == [(one, "warning") for one in at]


@each(
    ("ddofs", "wanted"),
    [
        ([1] * 12 + [0] * 10, [(12, "with ddof 0 in 10 of 10 groups")]),
        ([0] * 12 + [1] * 36, [(12, "with ddof 1 in 35 of 35 groups")]),
        ([1] * 12 + [0] * 9, []),  # too few
        ([1] * 12 + [0, 1] * 12, []),  # both go on
    ],
)
def test_another_formula_of_advantages_from_a_record_on_is_a_warning(ddofs, wanted):
    draw, made = np.random.default_rng(6), []
    for number, ddof in enumerate(ddofs):
        rewards = draw.integers(0, 2, 8).astype(float)
        std = rewards.std(ddof=ddof)
        advantages = (rewards - rewards.mean()) / (std + 1e-4)
        column = draw.normal(-3, 0.5, (8, 3)).tolist()
        scores = {"rewards": rewards.tolist(), "advantages": advantages.tolist()}
        made.append(scores | {"id": number, "log_probs_new": column})
    found = [one for one in check(made).findings if one.code == "advantages"]
    assert [one.record for one in found] == [record for record, _ in wanted]
    assert all(words in one.message for one, (_, words) in zip(found, wanted, strict=True))


@each(
    ("column", "advice"),
    [("log_probs_rollout", "the engine returned"), ("log_probs_new", "the trainer computed")],
)
def test_what_is_no_number_is_the_fault_of_the_program_of_its_column(column, advice):
    made = record(1, [3, 4], [1.0, 0.0])
    made[column][1][2] = math.nan
    (found,) = (one for one in check([made]).findings if one.code == "not-finite")
    assert advice in found.advice


def test_the_foot_says_why_records_were_not_compared(grpo, dump):
    """A warning may explain log-probs as well as an error."""
    draw = random.Random(3)
    column = [[-draw.expovariate(1.0) for _ in range(9)] for _ in range(3)]
    made = {"log_probs_new": column, "log_probs_old": column, "rewards": [1.0, 0.0, 1.0]}
    made["token_ids"] = [[5, 151_645, *range(10 + row, 16 + row), 151_645] for row in range(3)]
    lines = grpo("check", str(dump(json.dumps(made) + "\n"))).stdout
    assert "error" not in lines
    assert (
        "log-probs of different columns were not compared in any record: "
        "fix the padding-id findings there first" in " ".join(lines.split())
    )


@each(
    ("change", "kinds"),
    [
        (lambda given: np.roll(given, 1), {"in different orders"}),
        (lambda given: -given, {"the opposite sign"}),
        (lambda given: given**3, set()),
    ],
)
def test_rewards_in_another_order_than_the_advantages_are_one_error(change, kinds):
    """In groups of four, whose rewards are 0 and 1, a roll may reverse all pairs."""
    draw, made = np.random.default_rng(8), []
    for number in range(24):
        rewards = draw.permutation([0.0, 1.0, float(number % 3 == 0), 0.0])
        given = change((rewards - rewards.mean()) / rewards.std())
        scores = {"rewards": rewards.tolist(), "advantages": given.tolist()}
        made.append(scores | {"log_probs_new": draw.normal(-3, 0.5, (4, 6)).tolist()})
    found = [one.message for one in check(made).findings if one.severity == "error"]
    assert len({one.partition(":")[0] for one in found}) == len(kinds)
    assert all(any(kind in one for kind in kinds) for one in found)
    assert len(found) == 1 or kinds != {"in different orders"}


# ---- all findings of faults of whole dumps -------------------------------------------------------


def found_in(records: list[Any]) -> Iterator[str]:
    """The findings of records, or the error that they are."""
    try:
        yield from (f"{one.code} {line_of(one)}" for one in check(records, limit=0).findings)
    except InputError as error:
        yield f"refused: {error}"


def of_dumps(seed: int) -> Iterator[str]:
    for name, fault in FAULTS.items():
        for strength in fault.strengths:
            yield f"{name}, {strength}"
            records = fault.records(np.random.default_rng([seed, len(name)]), strength)
            yield from (f"  {line}" for line in found_in(records))


def of_turns() -> Iterator[str]:
    for fault, line in drawn("faults"):
        yield fault["name"]
        yield from (f"  {line}" for line in found_in([json.loads(line)]))


def test_all_findings_of_faults() -> None:
    names = {"dumps": lambda seed: [*of_dumps(seed)], "turns": lambda: [*of_turns()]}
    expressions(Path(__file__).parent / "cases" / "faults.txt", names)
