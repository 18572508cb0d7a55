"""grpo check on the command line, its first record, and rules as such."""

from __future__ import annotations

import json
import math

import numpy as np
import orjson
from command import run
from files import each
from planted import DUMPS, write

from grpo_cli.commands.check.rule import FUNCTIONS, ORDER, sentences, table

# ---- the first record, and rules as such ---------------------------------------------------------


# ---- the check of the first record, which ``eval`` repeats in one line ---------------------------


def written(tmp_path, old, *, sane_before=0, more=0):
    draw = np.random.default_rng(2)
    new = [(-draw.exponential(1.0, 40)).tolist() for _ in range(4)]
    record = {"log_probs_new": new, "log_probs_old": old(new), "rewards": [1.0, 0.0, 1.0, 0.0]}
    sane = record | {"log_probs_old": near(new)}
    path = tmp_path / "some.jsonl"
    lines = [sane] * sane_before + [record] + [sane] * more
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    return str(path)


def near(new):
    return [[x - 0.01 for x in row] for row in new]


def zeros(new):
    return [[0.0] * len(row) for row in new]


def foreign(new):
    return [row[::-1] for row in new]


def far(new):
    return [[x - 25.0 * (x > -0.05) for x in row] for row in new]


def told(path, *flags):
    result = run("eval", path, "--beta", "0", "--level", "batch", *flags)
    assert result.exit_code == 0
    return [line for line in result.stderr.splitlines() if "grpo check" in line]


@each(
    ("old", "begins"),
    [
        (zeros, "grpo: note: log_probs_old is filled with 0.0"),
        (foreign, "grpo: note: log_probs_new and log_probs_old are unrelated"),
        (far, "grpo: note: |log_probs_new − log_probs_old| is above 20"),
    ],
)
def test_eval_repeats_what_check_would_call_an_error(tmp_path, old, begins):
    path = written(tmp_path, old)
    (line,) = told(path)
    assert line.startswith(begins)
    assert line.endswith("(run grpo check for all findings)")
    assert run("check", path).exit_code == 1
    assert told(path, "-q") == []


def test_the_first_record_alone_is_looked_at_whichever_process_reads_it(tmp_path):
    path = written(tmp_path, foreign, more=40)
    assert told(path, "--jobs", "1") == told(path, "--jobs", "2")
    assert told(written(tmp_path, foreign, sane_before=1)) == []


# ---- at the bounds -------------------------------------------------------------------------------


def told_of(tmp_path, new, old, **more):
    path = tmp_path / "bounds.jsonl"
    record = {"log_probs_new": [[*new]], "log_probs_old": [[*old]], "rewards": [1.0]} | more
    path.write_bytes(orjson.dumps(record))
    return bool(told(str(path)))


RAMP = np.linspace(-2.0, -0.5, 30).tolist()


def put(**values):
    """The ramp with other values at some places: ``at3=-22.5``."""
    return [values.get(f"at{place}", one) for place, one in enumerate(RAMP)]


LONG = [-1.0 - (at % 7) / 8 for at in range(16384)]
THREE = dict.fromkeys(("at3", "at4", "at5"), -0.6)


@each("exchanged", [True, False])
@each(
    ("one", "other", "found"),
    [
        (RAMP, RAMP, False),
        (RAMP, [x - 0.1 for x in RAMP], False),
        (put(at3=-22.5), put(at3=-1.0), True),
        (put(at3=-20.5), put(at3=-1.0), False),
        (put(at3=-51.0, at4=-51.0, at5=-51.0), put(at3=-45.0, at4=-45.0, at5=-45.0), False),
        (put(**dict.fromkeys(THREE, 0.0)), put(**THREE), True),
        (put(**dict.fromkeys(THREE, 0.0)), put(**THREE | {"at3": -0.29}), False),
        (RAMP, RAMP[::-1], True),
        *(([-1.0] * tokens, [-30.0] * tokens, tokens >= 24) for tokens in (23, 24)),
        # the first 16,384 tokens are looked at
        *(([*LONG[:n], *[-1.0] * 3], [*LONG[:n], *[0.0] * 3], n < 16384) for n in (16381, 16384)),
    ],
)
def test_what_is_repeated_at_the_bounds_of_its_rule(tmp_path, one, other, found, exchanged):
    assert told_of(tmp_path, *((other, one) if exchanged else (one, other))) == found


# ---- the table of rules --------------------------------------------------------------------------


def test_every_relation_is_whole_and_has_a_function():
    """A row without a function is an error where the table is read; here is the other side."""
    assert len(table()) == len(FUNCTIONS) == len({(rule.code, rule.scope) for rule in table()})
    meanings: dict[str, str] = {}
    for rule in table():
        assert rule.columns, rule.code
        assert rule.breaks.endswith("."), rule.code
        assert {*rule.severities} <= {*ORDER}, rule.code
        mine = [one for name, one in sentences().items() if name.partition(".")[0] == rule.code]
        assert {one.severity for one in mine} <= {*ORDER, None}, rule.code
        assert meanings.setdefault(rule.code, rule.breaks) == rule.breaks, rule.code
    assert {*meanings} == {name.partition(".")[0] for name in sentences()}
    scopes = [rule.scope for rule in table()]
    assert scopes == sorted(scopes, key=["record", "input", "pair"].index)


def test_every_topic_names_what_it_needs():
    for topic in {rule.topic for rule in table() if rule.topic.topic}:
        assert topic.needs or topic.full_coverage_needs, topic
        assert bool(topic.full_coverage_needs) == bool(topic.fallback), topic


# ---- ``grpo check`` as users run it: what is printed, and the exit codes -------------------------


DAPO = DUMPS / "trl-1.16.0-dapo.jsonl"
ROWS = [json.loads(line) for line in DAPO.read_text().splitlines()]


def probabilities(tmp_path):
    key = "old_per_token_logps"
    one = ROWS[1] | {key: [[math.exp(x) for x in values] for values in ROWS[1][key]]}
    return str(write(tmp_path / "dump.jsonl", [ROWS[0], one, *ROWS[2:]]))


def test_an_error_is_1_though_eval_could_not_read_it(grpo, tmp_path):
    path = probabilities(tmp_path)
    assert grpo("eval", path, "--beta", "0").exit_code == 3
    result = grpo("check", path)
    assert result.exit_code == 1
    assert "\n\nerror probabilities\n" in result.stdout
    assert "dump.jsonl:2), response 0" in " ".join(result.stdout.split())
    assert "→ take the natural logarithm" in result.stdout


def test_json_has_the_shape_that_is_promised(grpo, tmp_path):
    result = grpo("check", probabilities(tmp_path), "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    (error,) = [row for row in document["findings"] if row["severity"] == "error"]
    assert error["code"] == "probabilities"
    assert (error["record"], error["response"], error["token"]) == ("dapo/1", 0, 0)
    assert error["evidence"]["column"] == "log_probs_old"
    assert error["advice"]
    assert {row["severity"] for row in document["findings"]} <= {"error", "warning", "info"}
    assert document["ok"] is False
    assert json.loads(grpo("check", str(DAPO), "--json").stdout)["ok"] is True
    assert document["more"] == {"length-cap": 5}
    assert document["counts"]["length-cap"] == 8


def test_which_records_and_how_many_findings(grpo, tmp_path):
    every = json.loads(grpo("check", str(DAPO), "--json", "--limit", "0").stdout)
    assert (len(every["findings"]), every["more"]) == (sum(every["counts"].values()), {})
    chosen = json.loads(grpo("check", str(DAPO), "--json", "--record", "dapo/1").stdout)
    assert chosen["records"] == 1
    assert grpo("check", str(DAPO), "--record", "dapo/99").exit_code not in (0, 1)
    one, two = str(write(tmp_path / "one.jsonl", ROWS[:1])), str(DAPO)
    assert json.loads(grpo("check", one, two, "--json").stdout)["records"] == 9
    result = grpo("check", "--json", stdin=json.dumps(ROWS[0]))
    assert json.loads(result.stdout)["findings"][0]["source"] == "<stdin>"
