"""Which records are compared together, which findings are kept and in which order they are told."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import orjson
from checked import checked, rows_of
from files import each

from grpo_cli.commands.check.findings import Findings
from grpo_cli.commands.check.read_views import views
from grpo_cli.commands.check.record_view import Place
from grpo_cli.commands.check.rule import Finding, Rule
from grpo_cli.commands.check.run import check
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError
from grpo_cli.records import Raw
from grpo_cli.records.record import DecodedChunk

Row = dict[str, Any]


def shifted(seed: int, widths: tuple[int, ...] = (4, 4), **more: Any) -> Row:
    """A record whose old log-probs are those of the next token."""
    draw = random.Random(seed)
    new = [[-draw.expovariate(0.5) - 0.01 for _ in range(width)] for width in widths]
    old = [[*row[1:], -1.0] for row in new]
    rewards = [float(at % 2) for at in range(len(widths))]
    return {"log_probs_new": new, "log_probs_old": old, "rewards": rewards, **more}


def told(pieces: list[tuple[int, list[Row]]], code: str = "shifted") -> list[tuple[Any, ...]]:
    """Source, record and how many records of what is found in pieces of files, in order."""
    made, at = [], {source: 0 for source, _ in pieces}
    for source, rows in pieces:
        made.append([
            Raw(row, f"file {source}", number + 1, "", 100)
            for number, row in enumerate(rows, at[source])
        ])  # fmt: skip
        at[source] += len(rows)
    answer = checked(made)
    return [
        (one["source"], one["record"], one["evidence"].get("records"))
        for one in rows_of(answer.findings)
        if one["code"] == code
    ]


def pieces(rows: list[Row], cuts: list[int]) -> list[tuple[int, list[Row]]]:
    """The records of one file, cut before these."""
    return [(0, rows[start:stop]) for start, stop in pairwise([0, *cuts, len(rows)])]


MANY = [shifted(seed) for seed in range(200)]


@each(
    "cuts",
    [[], [1], [50], [63], [64], [65], [128], [192], [50, 60], [64, 128], [10, 130, 195], [199]],
)
def test_small_records_of_64_lines_are_compared_together(cuts):
    """Which lines these are depends on their numbers, not on how the input is cut."""
    assert told(pieces(MANY, cuts)) == [
        ("file 0", start, count) for start, count in ((0, 64), (64, 64), (128, 64), (192, 8))
    ]


@each("cuts", [[], [5], [66], [70], [130]])
def test_records_of_another_layout_are_not_compared_together(cuts):
    """Nor with those of the same layout behind them, if others stand between."""
    other = [shifted(seed, entropies=[[0.5] * 4, [0.5] * 4]) for seed in range(30)]
    rows = [*MANY[:70], *other, *MANY[70:140]]
    wanted = [(0, 64), (64, 6), (70, 30), (100, 28), (128, 42)]
    assert told(pieces(rows, cuts)) == [("file 0", start, count) for start, count in wanted]


def test_records_that_were_put_together_stand_where_their_first_does():
    """Numbers may go back, and what stands between is of another sample."""
    numbers = [0, 1, 2, 70, 71, 3, 4, 5, 6]
    rows = [shifted(seed, (13, 13)) for seed in range(9)]
    made = [Raw(row, "dump", at + 1, "", 100) for row, at in zip(rows, numbers, strict=True)]
    for cut in (9, 2, 4, 6):
        answer = checked(filter(None, (made[:cut], made[cut:])))
        found = [one for one in rows_of(answer.findings) if one["code"] == "shifted"]
        said = [(one["record"], one["evidence"]["records"]) for one in found]
        assert said == [(0, 3), (3, 4), (70, 2)]


def test_records_of_two_files_are_not_compared_together():
    files = [(0, MANY[:20]), (1, MANY[20:50]), (1, MANY[50:60]), (2, MANY[60:90])]
    assert told(files) == [("file 0", 0, 20), ("file 1", 0, 40), ("file 2", 0, 30)]


@each("cuts", [[], [1], [20]])
@each(("tokens", "alone"), [(126, False), (128, True), (130, True)])
def test_records_of_128_tokens_are_compared_alone(cuts, tokens, alone):
    rows = [shifted(seed, (tokens // 2, tokens // 2)) for seed in range(30)]
    wanted = [(at, None) for at in range(30)] if alone else [(0, 30)]
    assert told(pieces(rows, cuts)) == [("file 0", *one) for one in wanted]


def test_a_small_record_that_stands_alone_is_one():
    """Of how many records a finding is stands in it where they are several."""
    assert told([(0, [shifted(1, (60,))])]) == [("file 0", 0, None)]
    assert told([(0, [shifted(1, (60,)), shifted(2, (60,))])]) == [("file 0", 0, 2)]


def test_large_records_among_small_ones_are_not_counted_with_them():
    rows = [*MANY[:20], shifted(7, (64, 64)), *MANY[20:40]]
    assert told([(0, rows)]) == [("file 0", 0, 40), ("file 0", 20, None)]


def test_records_without_tokens_that_count_are_not_among_those_compared():
    masks = [[[1] * 4] * 2, [[0] * 4] * 2]
    rows = [row | {"mask": masks[at % 4 == 1]} for at, row in enumerate(MANY[:40])]
    assert told([(0, rows)]) == [("file 0", 0, 30)]


@each("cuts", [[], [7], [20]])
def test_masked_tokens_of_small_records_are_not_compared(cuts):
    """They hold a filler in the one column, and the others agree."""
    rows = []
    for seed in range(40):
        row = shifted(seed, mask=[[1, 1, 1, 0]] * 2)
        row["log_probs_old"] = [
            [*(x - 0.01 for x in one[:3]), -100.0] for one in row["log_probs_new"]
        ]
        rows.append(row)
    assert told(pieces(rows, cuts), "filler") == []
    assert told(pieces(rows, cuts), "constant-log-ratio") == [("file 0", 0, 40)]
    bare = [(0, [{k: v for k, v in row.items() if k != "mask"} for row in rows])]
    assert told(bare, "filler") == [("file 0", 0, 40)]


def test_a_finding_in_the_midst_of_records_that_are_compared_together():
    rows = [row | {"log_probs_old": row["log_probs_new"]} for row in MANY[:100]]
    far = [[-30.0, *one[1:]] for one in rows[70]["log_probs_new"]]
    rows[70] = rows[70] | {"log_probs_old": far}
    assert told([(0, rows)], "extreme-ratio") == [("file 0", 70, 36)]


def test_masks_are_the_same_for_records_that_are_read_one_by_one():
    """Some have a mask of ones, which takes nothing."""
    rows = []
    for at, row in enumerate(MANY[:40]):
        mask = [[1, 1, 1, 1], [1, 1, 1, int(at % 3 == 0)]]
        old = [[x - 0.01 for x in one] for one in row["log_probs_new"]]
        old[1][3] = old[1][3] if mask[1][3] else -100.0
        rows.append(row | {"mask": mask, "log_probs_old": old})
    for more in ({}, {"note": None}):
        made = [(0, [row | more for row in rows])]
        assert told(made, "filler") == []
        assert told(made, "constant-log-ratio") == [("file 0", 0, 40)]


def test_about_a_mebibyte_of_text_is_looked_at_together():
    rows = [shifted(seed) for seed in range(7)]
    few = [
        DecodedChunk([Raw(row, "dump", at + 1, "", 1 << 19)], tuple(row))
        for at, row in enumerate(rows)
    ]
    made = [len(one.counts) for one in views(few) if not isinstance(one, InputError)]
    assert made == [2, 2, 2, 1]


@each("masked", [True, False])
@each("cut", [20, 100])
def test_masks_that_some_of_the_records_have(masked, cut):
    """A stretch of records without one, read one by one, is beside one with masks."""
    rows = [row | {"mask": [[1] * 4, [1, 1, 0, 0]] if masked else None} for row in MANY[:40]]
    assert told([(0, rows[:cut]), (0, rows[cut:])]) == [("file 0", 0, 40)]


# ---- what is kept, and in which order ------------------------------------------------------------


def added(limit: int, numbers: list[int]) -> Findings:
    kept = Findings(limit)
    rule = Rule("x", ("info",), "", 1, lambda view: ())
    for number in numbers:
        place = Place(f"record {number}", "dump", None, number)
        kept.add(rule, Finding("info", "", ""), place)
    return kept


@each("numbers", [[1, 2, 3, 4], [4, 3, 2, 1], [2, 1, 4, 3], [3, 4, 1, 2], [3, 2, 4, 1], [4, 1]])
@each("limit", [0, 1, 2, 3])
def test_the_first_findings_are_kept_in_whichever_order_they_come(numbers, limit):
    first = sorted(numbers)[: limit or None]
    kept = added(limit, numbers)
    assert [one["record"] for one in rows_of(kept)] == [f"record {at}" for at in first]
    assert [row.place.number for row in kept.kept["x"]][:1] == first[:1]
    assert kept.counts == {("x", "info"): len(numbers)}
    assert kept.more == ({"x": len(numbers) - limit} if limit and len(numbers) > limit else {})
    merged = Findings(limit)
    for part in (numbers[2:], numbers[:2]):
        merged.merge(added(limit, part), 0)
    assert [one["record"] for one in rows_of(merged)] == [f"record {at}" for at in first]


def test_findings_of_a_record_are_in_the_order_of_rules_then_of_responses():
    kept = Findings(0)
    place = Place(0, "dump", None, 0)
    for code, rank, scope, response in (
        ("d", 1, "pair", None),
        ("c", 9, "record", 1),
        ("c", 9, "record", 0),
        ("c", 9, "record", None),
        ("b", 8, "record", 5),
    ):
        rule = Rule(code, ("info",), "", rank, lambda view: (), scope=scope)
        kept.add(rule, Finding("info", "", "", response=response), place)
    said = [(one["code"], one["response"]) for one in rows_of(kept)]
    assert said == [("b", 5), ("c", None), ("c", 0), ("c", 1), ("d", None)]


def written(tmp_path, *files: list[Row]) -> list[str]:
    paths = []
    for number, rows in enumerate(files):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        paths.append(str(path))
    return paths


def single(at: int, **more: Any) -> Row:
    """A record of a response that teaches nothing."""
    new = [[-1.0 - at / 8, -2.0, -0.5]]
    return {"log_probs_new": new, "log_probs_old": [[-1.5, -1.0, -0.25]], "rewards": [1.0], **more}


def test_findings_are_in_the_order_of_files_and_records(tmp_path):
    """Those too that only the whole input shows, which stand where their record does."""
    bad = {"log_probs_new": [[0.5, -1.0, -1.0]]}
    first = [
        single(0) | bad,
        single(1, group_ids=["q"]),
        single(2, group_ids=["q"]),
        single(3) | bad,
    ]
    second = [single(4) | bad, single(5)]
    found = check(Reader(written(tmp_path, first, second)), limit=0)
    rows = [(row.source[-7], row.record, row.code) for row in found.findings]
    told = [row for row in rows if row[2] in ("probabilities", "torn-group")]
    assert told == [
        ("0", 0, "probabilities"),
        ("0", 2, "torn-group"),
        ("0", 3, "probabilities"),
        ("1", 0, "probabilities"),
    ]
