"""Where the engine's log-probs differ from the trainer's: definitions, planted causes, floors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from files import each
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


def written(path: Path, one: Drawn, *keys: str) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records(one, keys=keys)))
    return path


# ---- definitions --------------------------------------------------------------------------------


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


def test_two_sides_are_compared_however_little_room_their_tokens_have():
    whole = Mismatch()
    whole.add(np.array([-0.1, -0.3]), np.array([-0.2, -0.2]), Segments(np.array([2])))
    (found,) = (cause for cause in whole.result().causes if cause.name == "support")
    assert sorted(kind.tokens for kind in found.kinds) == [1, 1]


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


def test_no_cut_and_no_order_changes_a_bit():
    one = moved(drawn(3), 1.0, 0.1)
    parts = [cut(one, slice(at, at + 37)) for at in range(0, one.rows.count, 37)]
    assert attributed(one) == attributed(*parts) == attributed(*reversed(parts))


def test_its_kl_is_never_negative():
    found = Mismatch()
    old = np.array([-1.0, -2.0])
    found.add(old, np.array([-1e30, -2.0]), Segments(np.array([2])))
    assert found.result().kl > 0.0


def test_equal_log_probs_have_no_mismatch():
    one = drawn(4)
    one = one._replace(old=one.rollout)
    empty = Mismatch()
    empty.add(one.old, one.rollout, one.rows)
    assert empty.result() is None
    assert check(records(one)).mismatch is None


# ---- planted causes -----------------------------------------------------------------------------


def test_the_share_of_outliers_is_what_goes_where_they_are_as_the_others():
    one = PLANTED["outliers"](drawn(5), 2.0)
    d = one.old - one.rollout
    k3, far = np.expm1(d) - d, np.abs(d) > 1.0
    first = attributed(one).first
    assert first.name == "outliers"
    wanted = 1.0 - k3[~far].mean() * len(d) / k3.sum()
    assert first.explains == pytest.approx(wanted, rel=0.02)
    assert wanted < 0.95


@each("cause", PLANTED)
def test_a_planted_cause_is_named(cause):
    clean = drawn(5)
    assert attributed(clean).first is None
    if cause == "position":  # turns are places too
        clean = clean._replace(turns=np.zeros_like(clean.turns))
    first = attributed(PLANTED[cause](clean, 8.0)).first
    assert first is not None
    assert first.name == cause


def test_a_hard_stretch_of_text_is_no_cause():
    one = drawn(6)
    late = one.rows.positions * 2 >= one.rows.spread(one.rows.lengths)
    rollout = np.where(late, 3.0 * one.rollout, 0.3 * one.rollout)
    noise = 0.02 * one.random.normal(size=one.rows.total) * -np.expm1(rollout)
    assert (
        attributed(one._replace(rollout=rollout, old=np.minimum(rollout + noise, 0.0))).first
        is None
    )


# ---- the command --------------------------------------------------------------------------------


def test_check_says_how_large_it_is_and_what_explains_it(tmp_path):
    path = written(tmp_path / "late.jsonl", PLANTED["position"](drawn(7), 8.0))
    found = answer("check", path)["mismatch"]
    assert found["named"] == "position"
    assert found == check(path).to_dict()["mismatch"]
    printed = " ".join(run("check", path).stdout.split())
    assert f"{found['rms']:.3g} nats RMS" in printed
    assert "% of the KL is at the 4th quarter of responses" in printed


@each("cause", ("turn", "version"))
def test_check_reads_turns_and_versions(tmp_path, cause):
    key = {"turn": "turn_ids", "version": "weight_versions"}[cause]
    one = PLANTED[cause](drawn(10), 8.0)
    path = written(tmp_path / "agents.jsonl", one, key)
    found = answer("check", path)["mismatch"]
    assert found["named"] == cause
    (explained,) = (row for row in found["causes"] if row["name"] == cause)
    (by_formula,) = (row for row in attributed(one).causes if row.name == cause)
    assert explained["explains"] == pytest.approx(by_formula.explains, rel=1e-9)


def test_a_turn_may_be_a_row(tmp_path):
    """The rows of a trajectory are its turns, in their order."""
    one = PLANTED["turn"](drawn(10), 8.0)
    whole = answer("check", written(tmp_path / "whole.jsonl", one, "turn_ids"))["mismatch"]
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


def test_endless_log_probs_have_a_size():
    old = np.array([-1.0, -1e300, -2.0, -1.0])
    found = Mismatch()
    found.add(old, np.array([-1.0, -1.0, -1e300, -1e200]), Segments(np.array([4])), None, None)
    made = found.result()
    assert np.isfinite([made.rms, made.mean_abs, made.kl, made.worst]).all()
    assert made.rms > 1e29


def test_masked_tokens_separate_turns(tmp_path):
    one = PLANTED["turn"](drawn(11), 8.0)
    rows = records(one, keys=("turn_ids",))
    for row in rows:
        turns = row.pop("turn_ids")
        row["mask"] = [[1] * len(numbers) for numbers in turns]
        for mask, numbers in zip(row["mask"], turns, strict=True):
            for at in (numbers.index(1), numbers.index(2)):
                mask[at] = 0
    assert check(rows).mismatch.named == "turn"


def test_check_says_that_noise_is_normal(tmp_path):
    path = written(tmp_path / "noise.jsonl", drawn(8, noise=0.03))
    found = answer("check", path)["mismatch"]
    assert (found["named"], found["normal"]) == (None, True)
    assert found["floor"].startswith("normal: at most the 0.0306 to 0.0408 nats")
    assert "normal for bf16" in run("check", path).stdout
    printed = " ".join(run("check", path, "--full").stdout.split())
    assert "not explained by which side is surer or the position:" in printed  # no version is there
    assert answer("check", path, "--jobs", 2)["mismatch"] == found


def test_a_mismatch_may_be_normal_apart_from_an_outlier(tmp_path):
    """One token of many is 4 nats off, which the mean hardly shows."""
    one = drawn(8, noise=0.001)
    rows = records(one)
    rows[0]["log_probs_rollout"][0][3] -= 4.0
    path = tmp_path / "one.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    printed = " ".join(run("check", path).stdout.split())
    assert "tokens differs far more than the rest, by 4 nats" in printed
    assert "normal except for the outliers found above: at most the" in printed
    assert "likely cause" not in printed


def test_check_says_that_no_setting_differs_as_much(tmp_path):
    path = written(tmp_path / "far.jsonl", drawn(9, noise=1.0))
    found = answer("check", path)["mismatch"]
    assert not found["normal"]
    assert found["floor"].startswith("too large: the largest reported without a fault is ")


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


def test_check_says_where_most_of_a_mismatch_is():
    """Old weights sampled the first quarter, or the engine has them from step 6 on; or neither."""
    one = drawn(3)
    place = np.arange(one.old.size) - one.rows.spread(one.rows.starts)
    early = 4 * place < one.rows.spread(one.rows.lengths)
    late = one.rows.index >= 48
    for among, kinds in (
        (early, ["1st quarter"]),
        (late, ["from step 6 on"]),
        (early & ~early, []),
    ):
        made = records(moved(one, among, 0.6))
        for at, row in enumerate(made):
            row["step"] = at
        found = [
            row
            for row in check(made).findings
            if row.code == "rollout-mismatch" and "mostly" in row.message
        ]
        assert len(found) == len(kinds)
        assert all(kind in row.message for kind, row in zip(kinds, found, strict=True))
        assert [row.record for row in found] == [6 if "step" in kind else 0 for kind in kinds]


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


@each(
    ("keys", "wanted"),
    [
        (["tokens"], "token '</s>'"),
        (["token_ids"], "token id 2"),
        (["tokens", "token_ids"], "token '</s>' (id 2)"),
    ],
)
def test_check_names_the_token_at_which_engine_and_trainer_differ(keys, wanted):
    rows = at_steps(range(12, 20))
    for row in rows:
        number = {"a": 5, "b": 7, "</s>": 2}
        row["token_ids"] = [[number[word] for word in one] for one in row["tokens"]]
        for name in {"tokens", "token_ids"}.difference(keys):
            del row[name]
    found = check(rows)
    assert (found.mismatch.named, found.mismatch.causes[0].name) == ("token", "token")
    word, others = found.mismatch.causes[0].kinds
    assert (word.name, word.tokens) == (wanted, 8 * 12)
    assert word.tokens + others.tokens == found.tokens
    assert word.share > 0.99
    (first, *_) = (one for one in found.findings if one.severity != "info")
    assert (first.code, first.step) == ("rollout-mismatch", 12)
    assert wanted in first.message
    assert f" {others.kl:.3g} at the other {others.tokens:,}" in first.message
    assert not {"temperature", "mean-weight"} & {*found.counts}


def test_a_token_with_any_marks_is_named_whole_by_trend(tmp_path):
    """A mark in its text ends no clause; the check below has what the cause does not say."""
    rows = at_steps(range(12, 20))
    for row in rows:
        row["token_ids"] = [[len(word) for word in one] for one in row["tokens"]]
        row["tokens"] = [[*one[:-1], " (x): 'y'; z"] for one in row["tokens"]]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    printed = " ".join(run("trend", str(path)).stdout.split())
    token = "engine and trainer differ mostly at token \" (x): 'y'; z\" (id 4)"
    assert f"likely cause: {token} fix: " in printed
    assert printed.count(token) == 1
    assert re.search(
        r"check of the step: rollout-mismatch: KL \S+ nats per token at these", printed
    )


def test_a_response_of_one_token_has_a_last_token():
    found = check(at_steps(range(12, 20))).mismatch
    (position,) = (one for one in found.causes if one.name == "position")
    assert (position.kinds[0].name, position.kinds[0].tokens) == ("last token", 20 * 12)
    assert position.kinds[0].share > 0.99


@each(
    ("changed", "name", "step"),
    [
        (range(6, 10), "in steps 6 to 9", 6),
        (range(12, 20), "from step 12 on", 12),
        (range(5), "before step 5", None),
    ],
)
def test_a_mismatch_that_ends_is_in_the_steps_that_have_it(changed, name, step):
    (cause,) = (one for one in check(at_steps(changed)).mismatch.causes if one.name == "step")
    assert (cause.kinds[0].name, cause.step) == (name, step)


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


def test_an_engine_whose_weights_grow_older_has_no_other_temperature():
    """The trainer becomes surer from step to step and the engine does not, or once for all."""
    stale = check(sharper_from(lambda step: 0.04 * max(step - 9, 0)))
    (found,) = (one for one in stale.findings if one.severity != "info")
    assert (found.code, found.severity, found.step) == ("rollout-mismatch", "warning", 10)
    assert "more and more from step 10 on" in found.message
    scaled = check(sharper_from(lambda step: 0.3 * (step > 9)))
    (first, *_) = (one for one in scaled.findings if one.severity != "info")
    assert (first.code, first.step) == ("temperature", 10)
    assert not any("more and more" in one.message for one in scaled.findings)
