"""Rows of ``eval``: what each number is, where it is null, and that every format has the same."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, names_at, run
from files import each, some
from planted import write

from grpo_cli import evaluate
from grpo_cli.terminal.progress import Bar

WORDS = ['a,"b"', "%s", "100%", "{}", "\n", "é", ""]


class Raw(str):
    """A number as it is written."""


def record(lengths: list[int], seed: int, **more: object) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    new, old = ([(-draw.exponential(0.5, n)).tolist() for n in lengths] for _ in range(2))
    rewards = draw.integers(0, 2, len(lengths)).astype(float).tolist()
    return {"log_probs_new": new, "log_probs_old": old, "rewards": rewards} | more


RECORDS = {
    "plain": [record([3, 1, 0, 5], 1), record([2, 2], 2)],
    "words": [
        record([7, 7], 3, id='%s,"x"', tokens=[WORDS, WORDS[::-1]], group_ids=["%d", "a,b"]),
        record([2], 4, tokens=[["a", "a"]], token_ids=[[7, 7]]),
    ],
    "on policy": [record([4, 4], 5) | {"log_probs_old": record([4, 4], 5)["log_probs_new"]}],
    "masked": [record([5, 4], 6, mask=[[1, 0, 1, 0, 1], [0, 0, 0, 0]])],
    "long, short and none": [
        record([*[3] * 300, 70, 2, 150], 9),
        record([0, 0], 10),
        record([0, 64, 63, *[1] * 2_500, 0], 11),  # more tokens than are made at once
    ],
    "ends alike": [
        record([3], 8, log_probs_new=[[-1.0, -0.5, -1.0]], log_probs_old=[[-1.2, -0.6, -1.2]])
    ],
    "no tokens": [record([0, 0], 12)],
}


def rows_of(document: list[dict[str, Any]], level: str, names: list[str]) -> list[list[Any]]:
    """The rows that nested records hold."""
    found = []
    for one in document:
        for response in one["responses"]:
            tokens = response.get("tokens", {})
            count = len(tokens["position"]) if level == "token" else 1
            common = one | response if level == "response" else one
            of_response = {name: response[name] for name in ("response", "group", "reward")}
            shared = {**common, **of_response}
            for at in range(count):
                own = {name: values and values[at] for name, values in tokens.items()}
                lacking = dict.fromkeys(("token", "token_id", "correction"))
                row = {**shared, **lacking, **own} if level == "token" else shared
                found.append([row[name] for name in names])
    return found


@each("case", some([*RECORDS], 3))
@each("level", ["response", "token"])
def test_every_format_has_the_rows_of_the_document(tmp_path: Path, case: str, level: str) -> None:
    path = write(tmp_path / "a.jsonl", RECORDS[case])
    flags = ("eval", path, "-v", "dr", "--level", level, "-q")
    every = names_at(path, level)
    printed = run(*flags, "--json", "--fields", ",".join(every)).stdout
    document = json.loads(printed, parse_float=Raw, parse_int=Raw)
    for names in (every, ["clip_fraction", "id"] if level == "response" else ["clip", "kl"]):
        expected = rows_of(document["records"], level, names)
        fields = ("--fields", ",".join(names))
        lines = run(*flags, *fields, "-f", "jsonl").stdout.split("\n")[:-1]
        decoded = [json.loads(line, parse_float=Raw, parse_int=Raw) for line in lines]
        assert [[*line] for line in decoded] == [names] * len(expected)
        assert [[*line.values()] for line in decoded] == expected
        text = run(*flags, *fields, "-f", "csv").stdout
        bare = [["" if cell is None else cell for cell in row] for row in expected]
        assert [*csv.reader(io.StringIO(text, newline=""))] == [names, *bare]
        if case != "words":
            only = run(*flags, "--only", ",".join(names)).stdout.split("\n")[:-1]
            assert only == ["\t".join(row) for row in bare]


@pytest.mark.parametrize("level", ["record", "response", "token"])
def test_no_bit_of_a_row_depends_on_the_records_around_it(level: Any) -> None:
    draw = np.random.default_rng(0)
    records = [record(draw.integers(0, 9, 4).tolist(), at, id=at) for at in range(7)]
    together = evaluate(records, "dr", batch="record").columns(level)
    alone = [evaluate(one, "dr", batch="record").columns(level) for one in records]
    for name, values in together.items():
        if name != "line":
            joined = [value for one in alone for value in one[name].tolist()]
            assert repr(values.tolist()) == repr(joined), name


ONE = {
    "log_probs_new": [[-0.9, -0.2], [-1.1], []],
    "log_probs_old": [[-1.0, -0.6], [-1.0], []],
    "rewards": [1.0, 0.0, 1.0],
}
TWO = {
    "id": "two",
    "log_probs_new": [[-0.5], [-0.5]],
    "log_probs_old": [[-0.5], [-0.5]],
    "rewards": [2.0, 2.0],
    "group_ids": ["a", "b"],
}


def rows(tmp_path: Path, *records: dict[str, Any], level: str = "token", **flags: object) -> Any:
    """The records of the document."""
    path = write(tmp_path / "rows.jsonl", [*records])
    words = [word for name, value in flags.items() for word in ("-p", f"{name}={value}")]
    words = ["-v", "dr", *words] if "variant" not in flags else ["-v", "grpo", "--beta", "0"]
    return answer("eval", path, "--level", level, "--batch", "record", "-q", *words)["records"]


def test_rows_of_records_and_responses(tmp_path: Path) -> None:
    first, second = rows(tmp_path, ONE, TWO, level="response")
    assert [first["id"], second["id"]] == [0, "two"]
    assert (first["groups"], first["response_count"], first["tokens"]) == (1, 3, 3)
    assert (first["denominator"], first["denominator_of"]) == (3, "responses")
    # by hand: r̄ = 2/3; ρ = e^0.1, e^0.4 (clipped at 1.2), e^-0.1; ÷ 3 responses
    objective = ((math.exp(0.1) + 1.2) / 3 - math.exp(-0.1) * 2 / 3) / 3
    assert first["objective"] == pytest.approx(objective, rel=1e-14)
    assert first["loss"] == -first["objective"]
    assert first["clip_fraction"] == first["clip_fraction_high"] == 1 / 3
    assert first["clip_fraction_low"] == 0.0
    assert first["ratio_min"] == pytest.approx(math.exp(-0.1), rel=1e-14)
    assert first["ratio_max"] == pytest.approx(math.exp(0.4), rel=1e-14)
    norm = math.hypot(math.exp(0.1) / 9, math.exp(-0.1) * 2 / 9)
    assert first["gradient_norm"] == pytest.approx(norm, rel=1e-14)
    assert (first["dead_groups"], second["dead_groups"], second["groups"]) == (0, 2, 2)
    assert [row["length"] for row in first["responses"]] == [2, 1, 0]
    assert [row["group"] for row in first["responses"]] == [0, 0, 0]
    assert [row["group"] for row in second["responses"]] == ["a", "b"]
    empty = first["responses"][2]
    assert empty["clip_fraction"] is empty["ratio_mean"] is empty["ratio_max"] is None
    assert empty["contribution"] == 0.0
    assert sum(r["contribution"] for r in first["responses"]) == pytest.approx(first["objective"])


def test_entropy_is_what_the_bonus_is_of_and_null_without_one(tmp_path: Path) -> None:
    entropies = {**ONE, "entropy": [[0.5, 1.5], [1.75], []]}
    (row,) = rows(tmp_path, entropies, entropy_coef=0.1)
    assert row["entropy"] == pytest.approx((0.5 + 1.5 + 1.75) / 3, rel=1e-15)
    assert row["objective"] == pytest.approx(row["policy"] + 0.1 * row["entropy"], rel=1e-15)
    assert rows(tmp_path, entropies)[0]["entropy"] is None


STILL = {"log_probs_new": [[-1.0, -0.5], [-0.8]], "log_probs_old": [[-1.0, -0.5], [-0.8]]}


@each("variant", ["dr", "grpo-k1", "reinforce++", "gspo"])
def test_no_zero_has_a_sign(tmp_path: Path, variant: str) -> None:
    """On-policy, with dead groups and the policy as its own reference: most numbers are zero."""
    zeros = {**STILL, "log_probs_ref": STILL["log_probs_old"], "rewards": [1.0, 1.0]}
    path = write(tmp_path / "a.jsonl", [zeros, {**zeros, "rewards": [1.0, 0.0]}])
    for level in ("batch", "record", "response", "token"):
        text = run("eval", path, "-v", variant, "--level", level, "-f", "csv").stdout
        assert "0.0" in text
        assert not re.search(r"(^|,)-0\.0(,|$)", text, re.MULTILINE)


# ---- tables ------------------------------------------------------------------------------------

SHOWN = {
    "log_probs_new": [[-0.9, -0.2, -0.4], [-1.1]],
    "log_probs_old": [[-1.0, -0.6, -0.4], [-0.7]],
    "log_probs_ref": [[-1.0, -0.6, -0.4], [-0.7]],
    "rewards": [1.0, 0.0],
    "tokens": [["[red]", "\n", " a"], ["[/oops]"]],
}
FIRST_TO_GO = {
    "record": "line denominator clip_fraction_low clip_fraction_high ratio_min groups policy "
    "ratio_mean response_count source objective kl dead_groups ratio_max tokens clip_fraction",
    "response": "clip_fraction_low clip_fraction_high ratio_min weight policy ratio_mean group kl "
    "ratio_max clip_fraction length",
    "token": "token_id weight advantage surrogate correction kl log_ratio",
}


@each("level", FIRST_TO_GO)
def test_a_narrow_table_has_whole_numbers_and_goes_without_columns(
    tmp_path: Path, level: str
) -> None:
    """The first to go first; never who it is, the loss and what the level is looked at for."""
    several = [SHOWN, ONE | {"log_probs_ref": ONE["log_probs_old"]}]
    alone = {name: values[:1] for name, values in SHOWN.items()} | {"advantages": [1.0]}
    path = write(tmp_path / "a.jsonl", [alone] if level == "token" else several)
    lists = []
    for width in (40, 50, 60, 80, 100, 120, 140, 400):
        text = run("eval", path, "--level", level, "--full", COLUMNS=str(width)).stdout
        assert "…" not in text
        table, _, after = text.partition("hidden: ")
        lists.append(re.findall(r"\w+", after.partition("(--fields")[0]))
        if width >= 80:
            _, _, table = table.partition("v:")  # the end of the signature, which is never cut
            assert max(map(len, table.splitlines()[1:])) <= width
    narrowest, *wider = lists
    order = iter(FIRST_TO_GO[level].split())
    assert len(narrowest) > 3
    assert all(name in order for name in narrowest)  # in this order
    assert all(one == narrowest[: len(one)] for one in wider)
    assert wider[-1] == []


def test_rows_of_records_in_a_table_add_up_to_the_objective(tmp_path: Path) -> None:
    """They have the contributions that --fields names, which take a pass more."""
    rows = [one | {"step": at} for at, one in enumerate(RECORDS["plain"])]
    path = str(write(tmp_path / "two.jsonl", rows))
    flags = ("-v", "grpo", "--aggregate", "token-mean", "--kl-aggregate", "response-mean")
    for more in ((), flags, ("--batch", "step")):
        parts = answer("eval", path, *more, "--fields", "id,contribution")["records"]
        total = answer("eval", path, *more)["total"]["objective"]
        shares = len(parts) if "--batch" in more else 1
        added = sum(one["contribution"] for one in parts) / shares
        assert added == pytest.approx(total, rel=1e-12)
        table = run("eval", path, *more).stdout.split("contribution", 1)[1]
        assert all(f" {one['contribution']:.6g} " in table for one in parts), table
    for more in (["--batch", "record"], ["--fields", "id,loss"], ["--record", "0"]):
        assert "contribution" not in run("eval", path, *more).stdout


def test_a_table_of_records_names_the_group_of_each(tmp_path: Path) -> None:
    """Where a record is one; ``--fields`` has it in every format."""
    rows = [record([2, 2], at, group_ids=[f"p{at}"] * 2) for at in (1, 2)]
    path = str(write(tmp_path / "named.jsonl", rows))
    lines = run("eval", path, "-v", "dr").stdout.splitlines()
    assert [line.split()[:2] for line in lines if re.match(r" *\d ", line)] == [
        ["0", "p1"],
        ["1", "p2"],
    ]
    found = answer("eval", path, "-v", "dr", "--fields", "id,group")["records"]
    assert found == [{"id": 0, "group": "p1"}, {"id": 1, "group": "p2"}]
    several = str(write(tmp_path / "several.jsonl", [record([2, 2], 1, group_ids=["a", "b"])]))
    assert re.search(
        r"\n *id  contribution|\nid +objective", run("eval", several, "-v", "dr").stdout
    )


def test_the_progress_bar_is_gone_before_the_result(tmp_path: Path, monkeypatch) -> None:
    path = write(tmp_path / "a.jsonl", RECORDS["plain"])
    monkeypatch.setattr(Bar, "__exit__", lambda *_: print("no bar", flush=True))
    assert run("eval", path).stdout.startswith("no bar\nobjective ")


def test_a_table_shows_strings_marks_and_shares(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [SHOWN])
    plain = run("eval", path, "--level", "token", COLUMNS="200").stdout
    assert all(text in plain for text in ("[red]", "[/oops]", "\\n", "␣a"))
    assert "\x1b" not in plain
    shares = [float(line.split()[-1][:-1]) for line in plain.splitlines() if line.endswith("%")]
    assert len(shares) == 4
    assert sum(shares) == pytest.approx(100.0, abs=0.03)
    colored = run("eval", path, "--level", "token", "--color", "always", COLUMNS="200").stdout
    assert "\x1b[1;35mhigh" in colored
    assert "\x1b[1;36mlow" in colored


def test_chosen_fields_are_never_hidden(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [SHOWN])
    shown = run("eval", path, "--fields", "signature,objective,id", COLUMNS="40").stdout
    table = shown.partition("evaluated")[2]
    assert "adv:group-std" in table
    assert "hidden" not in table
    assert "signature" in table
