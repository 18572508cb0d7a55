"""``grpo show`` of a whole batch: the tokens that stand out, and what token strings add up to."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import each, in_blocks
from planted import write
from test_having import RECORDS, record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "a.jsonl", RECORDS)


def tokens(path: Path, *words: str) -> list[dict[str, Any]]:
    """All tokens in their order, as ``eval`` has them."""
    names = "id,response,position,token,log_ratio,ratio,clip,advantage,contribution,gradient"
    names += ",share,contribution_share,mismatch"
    flags = ("--level", "token", "-f", "jsonl", "--fields", names)
    return [json.loads(line) for line in run("eval", path, *flags, *words).stdout.splitlines()]


@each(
    ("by", "column"),
    [
        *(("contribution", "contribution"), ("gradient", "gradient"), ("share", "share")),
        *(("ratio", "log_ratio"), ("mismatch", "mismatch"), ("advantage", "advantage")),
    ],
)
@each("batch", ["input", "record", "step"])
def test_the_tokens_of_all_records_are_ranked(path: Path, by: str, column: str, batch: str) -> None:
    flags = ("-v", "dr", "--batch", batch)
    expected = sorted(tokens(path, *flags), key=lambda row: -abs(row[column]))[:12]
    found = answer("show", path, *flags, "--by", by, "--top", "12")
    places = [(row["id"], row["response"], row["position"]) for row in found["rows"]]
    assert places == [(row["id"], row["response"], row["position"]) for row in expected]
    for row, other in zip(found["rows"], expected, strict=True):
        for name, value in other.items():
            number = isinstance(value, float)
            assert row[name] == (pytest.approx(value, rel=1e-12) if number else value), name
    assert (found["by"], found["count"], found["of"]) == (by, 75, "token")
    share = "contribution_share" if by == "contribution" else "share"
    carried = sum(row[share] for row in expected) if batch == "input" else None
    assert found["carried"] == (None if carried is None else pytest.approx(carried))


def test_one_record_is_a_heat_map_and_many_are_rows(path: Path, tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", RECORDS[:1])
    assert run("show", one, "-v", "dr").stdout.startswith("record r0 of step 0, dr, ")
    assert run("show", path, "-v", "dr", "--record", "r2").stdout.startswith("record r2 of")
    assert "dr on 5 records, 75 tokens:" in run("show", path, "-v", "dr").stdout
    assert answer("show", one, "-v", "dr")["total"]["records"] == 1
    assert len(answer("show", path, "-v", "dr", "--record", "r2")["rows"]) == 15


def test_having_and_the_count_of_what_fits(path: Path) -> None:
    test = "advantage>0 && share>0.001"
    fits = [row for row in tokens(path, "-v", "dr") if row["advantage"] > 0]
    fits = [row for row in fits if row["share"] > 0.001]
    found = answer("show", path, "-v", "dr", "--having", test, "--top", "3")
    assert (found["count"], len(found["rows"])) == (len(fits), 3)
    assert found["having"] == [test]
    heading = f"3 of {len(fits)} tokens where {test}, largest |gradient"
    printed = run("show", path, "-v", "dr", "--having", test, "--top", "3").stdout
    assert heading in " ".join(printed.split())


@pytest.mark.more
def test_equal_tokens_come_in_the_order_of_the_file_whatever_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = write(tmp_path / "a.jsonl", [record(1, id=at) for at in range(40)])
    words = ("show", dump, "-v", "dr", "--top", "60", "-f", "csv")
    alone = run(*words, "--jobs", "1").stdout
    assert [line.split(",")[0] for line in alone.splitlines()[1:41]] == [*map(str, range(40))]
    in_blocks(monkeypatch, 3_000)
    assert run(*words, "--jobs", "2").stdout == alone
    strings = ("show", dump, "-v", "dr", "--strings", "--json")
    assert run(*strings, "--jobs", "2").stdout == run(*strings, "--jobs", "1").stdout


@each("by", ["contribution", "gradient", "share", "ratio", "advantage", "mismatch"])
def test_token_strings_add_up(path: Path, by: str) -> None:
    sums: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in tokens(path, "-v", "dr"):
        sums[row["token"]].append(row)
    found = answer("show", path, "-v", "dr", "--strings", "--by", by)["rows"]
    assert {row["token"] for row in found} == {*sums}
    for row in found:
        of = sums[row["token"]]
        assert row["tokens"] == len(of)
        assert row["contribution"] == math.fsum(one["contribution"] for one in of)
        assert row["gradient"] == math.fsum(one["gradient"] for one in of)
        assert row["ratio_mean"] == math.fsum(one["ratio"] for one in of) / len(of)
        assert row["mismatch_mean"] == math.fsum(one["mismatch"] for one in of) / len(of)
        assert row["share"] == pytest.approx(sum(one["share"] for one in of))
        clipped = [one for one in of if one["clip"] == "high"]
        assert row["clip_fraction_high"] == len(clipped) / len(of)
    name = {"ratio": "log_ratio_mean", "mismatch": "mismatch_mean", "advantage": "advantage_mean"}
    ranks = [abs(row[name.get(by, by)]) for row in found]
    assert ranks == sorted(ranks, reverse=True)
    some = answer("show", path, "-v", "dr", "--strings", "--having", "tokens>20")["rows"]
    assert {row["token"] for row in some} == {one for one, of in sums.items() if len(of) > 20}


def test_token_strings_of_many_pieces_add_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write(
        path.with_name("b.jsonl"), [one | {"step": at} for at in range(8) for one in RECORDS]
    )
    words = ("show", whole, "-v", "dr", "--strings", "--json", "--jobs", "1")
    together = run(*words).stdout
    in_blocks(monkeypatch, 500)
    assert run(*words).stdout == together


def test_bad_records_are_skipped_or_end_it(path: Path) -> None:
    path.write_text(path.read_text() + "broken\n")
    stopped = run("show", path, "-v", "dr")
    assert stopped.exit_code == 3
    assert not stopped.stdout
    skipped = run("show", path, "-v", "dr", "--on-error", "skip")
    assert skipped.exit_code == 3
    assert "dr on 5 records" in skipped.stdout


def test_standard_input_and_a_quantity_that_is_0_everywhere(path: Path) -> None:
    found = run("show", "-v", "dr", "--top", "4", "--json", stdin=path.read_text())
    places = [[row["id"], row["position"]] for row in json.loads(found.stdout)["rows"]]
    rows = answer("show", path, "-v", "dr", "--top", "4")["rows"]
    assert places == [[row["id"], row["position"]] for row in rows]
    assert "each with kl 0" in run("show", path, "-v", "dr", "--by", "kl").stdout


@each(
    ("by", "legend"),
    [("kl", ":  0  "), ("log_prob", "  0   ▾"), ("ratio", "log scale), 0.")],
)
def test_colours_of_what_has_one_sign_start_at_0(tmp_path: Path, by: str, legend: str) -> None:
    one = RECORDS[0] | {"log_probs_ref": RECORDS[0]["log_probs_old"]}
    path = write(tmp_path / "a.jsonl", [one])
    drawn = run("show", path, "--by", by, "--color", "always", COLUMNS="120").stdout
    assert legend in re.sub(r"\x1b\[[\d;]*m", "", drawn)


def test_signs_stand_for_colours_and_have_their_bounds(tmp_path: Path) -> None:
    old, ratios = -2.0, [0.5, 0.7, 0.99, 1.01, 1.4, 2.0]
    new = [[old + math.log(one) for one in ratios]]
    record = {"log_probs_new": new, "log_probs_old": [[old] * 6], "rewards": [1.0]}
    record["tokens"] = [[*"abcdef"]]
    drawn = run("show", write(tmp_path / "a.jsonl", [record])).stdout
    assert "a⁻⁻b⁻cde⁺f⁺⁺" in drawn
    bounds = dict(re.findall(r"([⁺⁻]+) [≤≥](\S+)", drawn))
    assert [float(bounds[mark]) for mark in ("⁻⁻", "⁻", "⁺", "⁺⁺")] == pytest.approx(
        [2.0**-(0.7), 2.0**-(0.3), 2.0**0.3, 2.0**0.7], rel=1e-3
    )


def test_0_rows_are_all_rows(path: Path) -> None:
    everything = answer("show", path, "-v", "dr", "--limit", "0")["rows"]
    assert len(everything) == len(answer("show", path, "-v", "dr", "-n", "1000")["rows"]) == 75


def test_rows_that_a_machine_format_leaves_out_are_said(path: Path) -> None:
    every = ("show", path, "-v", "dr", "-f")
    for kind in ("csv", "jsonl"):
        assert "20 of 75 rows (--top 0 writes all)" in run(*every, kind).stderr
        for flags in (("--top", "20"), ("--top", "0"), ("-q",)):
            assert "--top 0" not in run(*every, kind, *flags).stderr


def test_shares_that_are_all_printed_as_0_have_no_column(tmp_path: Path) -> None:
    def shown(length: int) -> str:
        rows = [[-0.5] * length] * 2
        one = {"id": "a", "log_probs_new": rows, "log_probs_old": rows, "rewards": [0, 1]}
        path = write(tmp_path / f"{length}.jsonl", [one, one | {"id": "b"}])
        return run("show", path, "-v", "dr", "--top", "2", COLUMNS="200").stdout

    assert "share" in shown(10)
    assert "share" not in shown(9000)


def test_fields_choose_the_columns_of_every_format(path: Path) -> None:
    asked = ("show", path, "--fields", "position,ratio", "--top", "2")
    rows = answer(*asked)["rows"]
    assert [list(row) for row in rows] == [["position", "ratio"]] * 2
    lines = run(*asked, "-f", "csv").stdout.splitlines()
    assert lines[0] == "position,ratio"
    assert lines[1:] == [f"{row['position']},{row['ratio']!r}" for row in rows]
    assert "position" in run(*asked).stdout
    assert "did you mean ratio?" in run("show", path, "--fields", "rato").stderr


def test_rows_of_several_steps_say_theirs(tmp_path: Path) -> None:
    """They come first, as the fields of --batch do; rows of one step have no such column."""
    path = write(tmp_path / "a.jsonl", [record(0), record(1)])
    for words, firsts in (
        ((), "step"),
        (("--where", "step==1"), "id"),
        (("--batch", "step"), "step"),
    ):
        rows = json.loads(run("show", path, "--json", "--top", "0", *words).stdout)["rows"]
        assert {next(iter(row)) for row in rows} == {firsts}
        assert firsts == "id" or {row["step"] for row in rows} == {0, 1}


@pytest.mark.parametrize("width", [80, 120])
def test_a_long_token_makes_no_table_wider_than_the_screen(tmp_path: Path, width: int) -> None:
    tokens = [["-" * 60, "a"], ["b", "https://example.org/" + "x" * 60]]
    logps = {"log_probs": [[-0.5, -0.3], [-0.2, -0.4]], "rewards": [1.0, 0.0]}
    path = write(tmp_path / "a.jsonl", [logps | {"tokens": tokens}])
    for words in ("show", "show --strings", "eval --level token"):
        command, *flags = words.split()
        lines = run(command, path, *flags, COLUMNS=str(width)).stdout.splitlines()
        rule = next(at for at, line in enumerate(lines) if line.startswith("───"))
        rows = lines[rule - 1 : rule + 3]
        assert max(map(len, rows)) <= width, rows
        if words != "show --strings":
            assert "contribution" in lines[rule - 1]
