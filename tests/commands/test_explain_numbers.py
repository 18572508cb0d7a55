"""The numbers that explain works out, its pages of choices, and vectors as users run them."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import each
from planted import std, write

import grpo_cli
from grpo_cli import evaluate
from grpo_cli.vectors import cases
from grpo_cli.vectors.case import FILES, stored


def test_a_beta_of_0_that_a_flag_sets_is_not_the_trainers(tmp_path):
    """The records' own is named; without the flag nothing is said of a loss without a KL."""
    row = {"log_probs_new": [[-1.0], [-2.0]], "rewards": [1.0, 0.0]}
    row |= {"log_probs_ref": [[-1.1], [-1.9]]}
    for recorded in (0.01, 0.0):
        made = [row | {"hyperparameters": {"beta": recorded}}]
        path = write(tmp_path / f"{recorded}.jsonl", made)
        why = {one["code"]: one["text"] for one in answer("explain", path, "--beta", "0")["why"]}
        assert ("you set β = 0; the records say 0.01" in why["beta"]) is (recorded > 0)


# ---- every number of the document against arithmetic written down here ---------------------------


BETA, BONUS, CAP, LOW, HIGH = 0.3, 0.05, 1.1, 0.2, 0.28
WORDS = ("-v", "grpo", "--correction", "token-truncate", "-p", f"entropy_coef={BONUS}")
WORDS += ("-p", f"is_high={CAP}", "--beta", str(BETA), "--epsilon-low", str(LOW))
WORDS += ("--epsilon-high", str(HIGH))
SUMS = ("surrogate", "kl", "entropy", "contribution")
Record = dict[str, Any]


def record(name: str, widths: list[int], seed: int) -> Record:
    """Two groups; each response begins with a masked token, and ends with one."""
    draw = random.Random(seed)
    old = [[-0.5 - draw.expovariate(1.0) for _ in range(width)] for width in widths]
    moved = {
        f"log_probs_{name}": [[min(x + draw.gauss(0.0, spread), -1e-3) for x in row] for row in old]
        for name, spread in (("new", 0.3), ("ref", 0.4), ("rollout", 0.2))
    }
    return moved | {
        "id": name,
        "log_probs_old": old,
        "entropies": [[draw.random() for _ in row] for row in old],
        "tokens": [[f"t{at}" for at in range(len(row))] for row in old],
        "mask": [[0] + [1] * (width - 2) + [0] for width in widths],
        "rewards": [draw.random() for _ in widths],
        "group_ids": ["a", "b", "a", "b", "b", "a"][: len(widths)],
    }


def advantages(one: Record) -> list[float]:
    """(r − r̄) / (σ + 1e-8) in the group, ddof 1."""
    found = []
    for reward, group in zip(one["rewards"], one["group_ids"], strict=True):
        pairs = zip(one["rewards"], one["group_ids"], strict=True)
        values = [r for r, g in pairs if g == group]
        found.append((reward - math.fsum(values) / len(values)) / (std(values, 1) + 1e-8))
    return found


def token(one: Record, at: int, place: int, advantage: float, weight: float) -> Record:
    """A token's numbers, from its log-probs on."""
    new, old, ref, rollout = (
        one[f"log_probs_{name}"][at][place] for name in ("new", "old", "ref", "rollout")
    )
    ratio, d, entropy = math.exp(new - old), new - ref, one["entropies"][at][place]
    free, bounded = ratio * advantage, min(max(ratio, 1 - LOW), 1 + HIGH) * advantage
    correction, kl = min(math.exp(old - rollout), CAP), math.exp(-d) + d - 1.0
    surrogate = correction * min(free, bounded)
    slope = correction * free if free <= bounded else 0.0
    return {
        "position": place,
        "token": f"t{place}",
        "log_probs_new": new,
        "log_probs_old": old,
        "log_ratio": new - old,
        "ratio": ratio,
        "free": free,
        "bounded": bounded,
        "clip": 0.0 if free <= bounded else math.copysign(1.0, ratio - 1.0),
        "correction": correction,
        "surrogate": surrogate,
        "kl": kl,
        "entropy": entropy,
        "contribution": weight * (surrogate - BETA * kl + BONUS * entropy),
        "gradient": weight * (slope - BETA * (1.0 - math.exp(-d))),
    }


def worked(one: Record) -> list[Record]:
    """Each response with all of its tokens."""
    found = []
    widths = [len(row) for row in one["mask"]]
    for at, (advantage, width) in enumerate(zip(advantages(one), widths, strict=True)):
        weight = 1.0 / len(widths) / (width - 2)
        rows = [token(one, at, place, advantage, weight) for place in range(1, width - 1)]
        found.append({"index": at, "advantage": advantage, "weight": weight, "tokens": rows})
    return found


def added(rows: list[Record], name: str) -> float:
    return math.fsum(row[name] for row in rows)


@pytest.mark.parametrize(
    "widths",
    [
        *([6, 9, 4, 5], [22, 9, 14, 13, 7, 16]),
        *([14] * 4, [14, 14, 14, 15], [12, 30, 16, 9], [13, 30, 16, 9]),  # 48 and 49; 10 and 11
    ],
)
def test_a_record_worked_out(grpo: Any, tmp_path: Any, widths: list[int]) -> None:
    """In full where it has 48 tokens; else five tokens of the five responses that move most."""
    one = record("x", widths, 3)
    path = str(write(tmp_path / "a.jsonl", [one]))
    document = json.loads(grpo("explain", path, *WORDS, "--json").stdout)
    found, wanted = document["record"], worked(one)
    few = sum(widths) - 2 * len(widths) <= 48
    moved = [sum(abs(row["gradient"]) for row in two["tokens"]) for two in wanted]
    for row, two in zip(found["responses"], wanted, strict=True):
        tokens = two["tokens"]
        sums = {f"{name}_sum": added(tokens, name) for name in SUMS[:3]}
        sums |= {"contribution": added(tokens, "contribution"), "length": len(tokens)}
        sums["gradient_norm"] = math.sqrt(math.fsum(t["gradient"] ** 2 for t in tokens))
        sums |= {name: two[name] for name in ("index", "advantage", "weight")}
        assert {name: row[name] for name in sums} == pytest.approx(sums, rel=1e-12)
        place = sorted(range(len(moved)), key=lambda at: -moved[at]).index(two["index"])
        assert ("tokens" in row) == (few or place < 5)
        if "tokens" not in row:
            continue
        sizes = [abs(t["gradient"]) + abs(t["contribution"]) for t in tokens]
        order = sorted(range(len(tokens)), key=lambda at: -sizes[at])
        kept = sorted(order if few or len(tokens) <= 10 else order[:5])
        for shown, at in zip(row["tokens"], kept, strict=True):
            assert shown.keys() == tokens[at].keys()
            numbers = {name: value for name, value in shown.items() if name != "token"}
            assert numbers == pytest.approx(
                {name: tokens[at][name] for name in numbers}, rel=1e-12, abs=1e-15
            )
            assert shown["token"] == tokens[at]["token"]
        others = [tokens[at] for at in range(len(tokens)) if at not in kept]
        rest = {"count": len(others)} | {name: added(others, name) for name in SUMS}
        assert row["rest"] == (pytest.approx(rest, rel=1e-12, abs=1e-15) if others else None)
    for group in found["groups"]:
        members = [at for at, name in enumerate(one["group_ids"]) if name == group["group"]]
        rewards = [one["rewards"][at] for at in members]
        assert (group["responses"], group["rewards"]) == (members, rewards)
        assert group["mean"] == pytest.approx(math.fsum(rewards) / len(rewards), rel=1e-13)
        assert (group["std_ddof"], len(found["groups"])) == (1, 2)
        if len(members) > 1:
            assert group["std"] == pytest.approx(std(rewards, 1), rel=1e-13)
        assert group["advantages"] == pytest.approx([wanted[at]["advantage"] for at in members])
    every = [row for two in wanted for row in two["tokens"]]
    terms = {
        name: math.fsum(two["weight"] * added(two["tokens"], of) for two in wanted)
        for name, of in (("policy", "surrogate"), ("kl", "kl"), ("entropy", "entropy"))
    }
    terms |= {"objective": added(every, "contribution"), "loss": -added(every, "contribution")}
    terms |= {"beta": BETA, "entropy_coef": BONUS, "denominator": len(widths), "line": 1}
    assert {name: found[name] for name in terms} == pytest.approx(terms, rel=1e-11)
    assert document["total"]["objective"] == pytest.approx(terms["objective"], rel=1e-11)


@pytest.mark.parametrize("batch", ["input", "record"])
def test_what_j_is_made_of(grpo: Any, tmp_path: Any, batch: str) -> None:
    """Over records of 4, 6 and 5 responses: a mean over responses, or over the records' own."""
    records = [
        record("x", [6, 9, 4, 5], 3),
        record("y", [7] * 6, 5),
        record("z", [5, 6, 9, 8, 4], 4),
    ]
    path = str(write(tmp_path / "a.jsonl", records))
    found = json.loads(grpo("explain", path, *WORDS, "--batch", batch, "--json").stdout)
    responses = sum(len(one["rewards"]) for one in records)
    wanted = dict.fromkeys(("positive_advantages", "negative_advantages"), 0.0)
    wanted |= {"kl_penalty": 0.0, "entropy_bonus": 0.0}
    for one in records:
        share = len(one["rewards"]) / responses if batch == "input" else 1.0 / len(records)
        for two in worked(one):
            sign = "positive" if two["advantage"] > 0 else "negative"
            part, rows = two["weight"] * share, two["tokens"]
            if two["advantage"]:
                wanted[f"{sign}_advantages"] += part * added(rows, "surrogate")
            wanted["kl_penalty"] -= BETA * part * added(rows, "kl")
            wanted["entropy_bonus"] += BONUS * part * added(rows, "entropy")
    assert found["parts"] == pytest.approx(wanted, rel=1e-11)
    assert math.fsum(wanted.values()) == pytest.approx(found["total"]["objective"], rel=1e-11)


@pytest.mark.parametrize("batch", ["input", "record"])
def test_what_j_is_made_of_where_settings_differ(grpo: Any, tmp_path: Any, batch: str) -> None:
    records = [record(f"r{at}", [3, 5, 2, 4], at) for at in range(12)]
    for at, one in enumerate(records):
        one["hyperparameters"] = {"beta": 0.1 if at % 3 else 0.04}
    flags = ("-v", "grpo", "-p", "entropy_coef=0.01", "--batch", batch)
    found = document(grpo, tmp_path / "a.jsonl", *records, flags=flags)
    parts = found["parts"]
    assert math.fsum(parts.values()) == pytest.approx(found["total"]["objective"], rel=1e-14)
    assert list(parts) == [
        "positive_advantages", "negative_advantages", "kl_penalty", "entropy_bonus"
    ]  # fmt: skip


def document(grpo: Any, path: Any, *records: Record, flags: tuple[str, ...] = ()) -> Any:
    return json.loads(grpo("explain", str(write(path, [*records])), "--json", *flags).stdout)


def test_the_rewards_that_groups_are_made_of(grpo: Any, tmp_path: Any) -> None:
    plain = {"log_probs_new": [[-1.0], [-2.0], [-1.5]]}
    several = plain | {"rewards": [[1.0, 0.0], [0.0, 2.0], [1.0, 4.0]]}
    flags = ("-v", "grpo", "--beta", "0", "-p", "reward_weights=1,0.5")
    (group,) = document(grpo, tmp_path / "a", several, flags=flags)["record"]["groups"]
    assert (group["group"], group["rewards"], group["mean"]) == (0, [1.0, 1.0, 3.0], 5 / 3)
    (group,) = document(grpo, tmp_path / "a", several, flags=flags[:4])["record"]["groups"]
    assert group["rewards"] == [1.0, 2.0, 5.0]
    alone = plain | {"rewards": [1.0, 0.0, 2.0], "group_ids": ["x", "y", "y"]}
    first, second = document(grpo, tmp_path / "a", alone, flags=flags[:4])["record"]["groups"]
    assert (first["group"], first["std"], first["std_ddof"]) == ("x", None, 1)
    assert (second["group"], second["std"]) == ("y", math.sqrt(2.0))
    assert document(grpo, tmp_path / "a", alone, flags=("-v", "dr"))["record"]["groups"][1] == {
        "group": "y",
        "responses": [1, 2],
        "rewards": [0.0, 2.0],
        "mean": 1.0,
        "std": None,
        "std_ddof": None,
        "advantages": [-1.0, 1.0],
    }
    given = alone | {"advantages": [1.0, -1.0, 0.0]}
    assert document(grpo, tmp_path / "a", given, flags=("-v", "dr"))["record"]["groups"] == []


def test_zeros_have_no_sign_and_bounds_may_be_none(grpo: Any, tmp_path: Any) -> None:
    dead = {
        "log_probs_new": [[-1.0, -0.5]] * 2,
        "rewards": [1.0, 1.0],
        "log_probs_old": [[-0.9] * 2] * 2,
    }
    text = grpo("explain", str(write(tmp_path / "a", [dead])), "-v", "dr", "--json").stdout
    assert not re.search(r"-0\.0\b", text)
    moved = dead | {"rewards": [1.0, 0.0]}
    flags = ("-v", "dr", "--epsilon-low", "0", "--epsilon-high", "0")
    for response in document(grpo, tmp_path / "a", moved, flags=flags)["record"]["responses"]:
        bounded = [token["bounded"] for token in response["tokens"]]
        assert bounded == [response["advantage"]] * 2


def test_an_advantage_that_rounding_leaves_of_0_is_marked(grpo: Any, tmp_path: Any) -> None:
    made = {"log_probs_new": [[-1.0, -2.0]] * 3, "rewards": [0.1, 0.2, 0.3]}
    printed = grpo("explain", write(tmp_path / "a", [made]), "-v", "dr").stdout
    assert "A0 = -0.1, A1 ≈ 0, A2 = 0.1" in printed


@each(
    ("name", "value"),
    [("k1", math.log(2.0)), ("k2", math.log(2.0) ** 2 / 2), ("k3", 0.5 + math.log(2.0) - 1.0)],
)
def test_d_is_the_policy_less_the_reference(name, value):
    """At π_θ = 2·π_ref: d = log 2; the values from Schulman's definitions, r = π_ref/π_θ = ½."""
    shown = run("explain", name).stdout
    assert "d = log π_θ − log π_ref" in re.search(r"(?<![\w(])d\b.*", shown).group(0)
    one = {"log_probs_new": [[math.log(0.5)]], "log_probs_ref": [[math.log(0.25)]]}
    found = evaluate(one | {"advantages": [0.0]}, "dr", stages={"kl": name}, beta=1.0)
    assert found.total["kl"] == pytest.approx(value, rel=1e-15)


# ---- grpo vectors and grpo explain CASE ----------------------------------------------------------


CASE = "clip/dual-positive"


@pytest.fixture(scope="module")
def threads():
    """Flag → its thread: the mistakes of the catalogue that cases may be flagged with."""
    rows = json.loads((Path(grpo_cli.__file__).parent / "mistakes.json").read_text("utf-8"))
    return {
        name: row["thread"]
        for name, row in rows.items()
        if not any("vector" in key.split() for key in row)
    }


def test_every_case_is_listed_with_what_it_shows(grpo):
    rows = json.loads(grpo("vectors", "--json").stdout)["vectors"]
    assert [row["id"] for row in rows] == [case.id for case in cases()]
    text = grpo("vectors").stdout
    assert all(case.id in text for case in cases())
    assert f"{len(cases())} cases" in text


def test_cases_are_chosen_by_name_flag_and_result(grpo):
    found = grpo("vectors", "clip/*", "--flag", "dual-clip-dropped", "--result", "required")
    wanted = [
        case.id for case in cases() if case.file == "clip" and "dual-clip-dropped" in case.flags
    ]
    assert [line.split()[0] for line in found.stdout.splitlines() if line[:5] == "clip/"] == wanted
    assert len(wanted) > 1


def test_the_bugs_are_listed_with_their_threads(grpo, threads):
    rows = json.loads(grpo("vectors", "--flags", "--json").stdout)["flags"]
    used = {flag for case in cases() for flag in case.flags}
    assert [row["flag"] for row in rows] == [name for name in threads if name in used]
    text = grpo("vectors", "--flags").stdout
    for name in used:
        repository, _, number = threads[name].split("/")[-3:]
        assert repository in text
        assert number in text


def test_the_files_are_exported_as_they_are(grpo, threads, tmp_path):
    result = grpo("vectors", "--export", str(tmp_path / "new"))
    assert result.exit_code == 0
    for name in (*FILES, "schema", "flags"):
        place = tmp_path / "new" / "v1" / f"{name}.json"
        assert str(place) in result.stdout.splitlines()
        if name != "flags":
            assert place.read_text(encoding="utf-8") == stored(f"{name}.json")
    table = json.loads(place.read_text(encoding="utf-8"))["flags"]
    assert {name: row["thread"] for name, row in table.items()} == threads


def test_a_case_is_explained(grpo, threads):
    text = grpo("explain", CASE).stdout
    assert text.startswith(f"{CASE}  required\n")
    assert threads["dual-clip-positive"] in text
    assert "dual_clip     3.0" in text
    (case,) = [case for case in cases() if case.id == "clip/masked-nan-reinforce"]
    shown = json.loads(grpo("explain", case.id, "--json").stdout)
    assert "nan" in json.dumps(shown["input"])  # what is not finite stays a word
    assert "null" not in json.dumps(shown["input"])
    assert shown["expected"] == case.expected


def test_every_case_can_be_shown(grpo):
    every = [*cases()]
    chosen = {case.id: case for case in every[::12]}  # and one of each file and topic
    chosen |= {(case.file, case.topic): case for case in every}
    for case in chosen.values():
        text = grpo("explain", case.id, COLUMNS="200").stdout
        assert case.comment.split(";")[0][:40] in text
        assert all(name in text for name in (*case.input, *case.conventions, case.topic))


def test_a_file_of_that_name_is_read(grpo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clip").mkdir()
    record = {"log_probs_new": [[-1.0], [-1.0]], "rewards": [1.0, 0.0]}
    Path("clip/dual-positive").write_text(json.dumps(record), encoding="utf-8")
    assert grpo("explain", CASE, "-v", "dr").stdout.startswith("dr: loss 0")
