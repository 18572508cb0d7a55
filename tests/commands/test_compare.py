"""Several variants on one batch: every number against the definition, computed apart."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from command import answer, run
from planted import record, telling, write

from grpo_cli import VARIANTS, compare, evaluate


def compared(path, *names, **options):
    """The document of the answer."""
    return compare(str(path), names, **options).to_dict()


def test_a_variant_that_lacks_data_is_listed_with_the_reason(tmp_path):
    whole, bare = telling()
    del bare["log_probs_ref"]
    path = write(tmp_path / "a", [whole, bare])
    found = compared(path, "grpo", "dr", "dapo")
    assert [row["variant"] for row in found["variants"]] == ["dr", "dapo"]
    assert found["variants"][0]["cosine"] == pytest.approx(1.0)
    (skipped,) = found["skipped"]
    assert skipped["variant"] == "grpo"
    assert "a:2: log_probs_ref" in skipped["reason"]


def made(number: int) -> dict:
    """A record of a few responses; every seventh lacks the reference's log-probs."""
    one = record(number, [1 + number % 9, 4, 2 + number % 5], [1.0, 0.0, 0.2 * number])
    if number % 7 == 6:
        del one["log_probs_ref"]
    return one


@pytest.mark.more
def test_what_is_not_served_is_told_once_for_each_thing_that_is_missing(grpo):
    short = " ".join(grpo("compare", "samples/arithmetic.jsonl", "-v", "all").stdout.split())
    assert short.endswith("1 needs reward_baselines (--full lists them)")
    assert "skipped 62 variants: 55 need log_probs_rollout, 3 need state_ids, 1 needs" in short
    shown = grpo("compare", "samples/arithmetic.jsonl", "-v", "all", "--full").stdout
    served, _, rest = shown.partition(
        "\nvariants skipped because an input is missing (samples/arithmetic.jsonl:1)\n"
    )
    reasons = [line for line in rest.splitlines() if not line.startswith(" ")]
    assert reasons == [
        "clip_cov_seed is missing: give -p clip_cov_seed=VALUE, or put it in the record's",
        "log_probs_rollout is missing: log-probs from the inference engine",
        "turn_rewards is missing: one reward per turn",
        "state_ids is missing: the id of the state in which each turn began",
        "rejection_threshold is missing: give -p rejection_threshold=VALUE, or put it in",
        "reward_baselines is missing: the reward of a greedy response to the prompt, per",
    ]
    named = " ".join(rest.split())
    assert "55 variants: minirl, scale-rl, tis," in named
    for name in VARIANTS:  # each in one place
        assert (f"\n{name} " in served) != bool(re.search(rf"[ ]{re.escape(name)}(,|$| )", named))


def test_rows_that_different_records_do_not_serve_keep_their_places(tmp_path):
    """Of an array they are called as in lines."""
    path = write(tmp_path / "a", [made(6), made(0), made(6)])
    array = tmp_path / "a.json"
    array.write_text(json.dumps([made(6), made(0)]), encoding="utf-8")
    for file, place in ((path, f"{path}:1"), (array, f"{array}: [0]")):
        (one,) = compared(file, "grpo", "dr")["skipped"]
        assert (one["missing"], one["place"], one["advice"]) == (
            "log_probs_ref",
            place,
            "log-probs under the reference (other records have it); --beta 0 works without it",
        )


def test_a_term_without_a_coefficient_tells_no_rows_apart(tmp_path):
    """gspo has no KL, slime/gspo one with beta 0: with a beta it is another choice."""
    path = write(tmp_path / "a", [record(7, [3, 8], [1.0, 0.0])])
    (told,) = compared(path, "gspo", "slime/gspo", beta=0.1)["differences"]
    assert told["stages"] == ["kl"]
    (told,) = compared(path, "gspo", "slime/gspo")["differences"]
    assert told["stages"] == []
    assert told["hyperparameters"]["std_eps"] == [1e-8, 1e-6]


def grouped(lengths: list[int], rewards: list[float]) -> list[dict]:
    """Three groups as a record each; in the first all rewards are the same."""
    sizes, found = (3, 4, 5), []
    for at, size in enumerate(sizes):
        start = sum(sizes[:at])
        found.append(record(at, lengths[start : start + size], rewards[start : start + size]))
    return found


def joined(records: list[dict]) -> dict:
    """The same as one record, whose own gradient is the batch's."""
    columns = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout", "rewards")
    one = {name: [row for part in records for row in part[name]] for name in columns}
    return one | {"group_ids": [at for at, part in enumerate(records) for _ in part["rewards"]]}


LENGTHS = [5, 9, 2, 7, 9, 3, 9, 1, 9, 4, 9, 6]
REWARDS = [0.5] * 3 + [1.0, 0.0, 0.5, 0.2] + [0.3, 0.9, 0.1, 0.6, 0.0]
COMPARED = {  # the rows, and the coefficient of the KL
    "dr": 0.0,
    "grpo": 0.3,
    "skyrl/regular": 0.3,  # whose KL has a denominator of its own
    "gspo": 0.0,
    "cispo": 0.0,
    "bnpo": 0.3,
}


def test_every_number_of_a_row(tmp_path):
    """The quarter of the longest, 3 of 12 responses, takes 3/5 of each of those of 9 tokens."""
    records = grouped(LENGTHS, REWARDS)
    one = joined(records)
    path = write(tmp_path / "a", records)
    document = compared(path, *COMPARED, beta=0.3)
    sizes = {"records": 3, "groups": 3, "responses": 12, "tokens": sum(LENGTHS)}
    assert {name: document[name] for name in sizes} == sizes
    first = np.concatenate(evaluate(one, "dr").gradient)
    for row, (name, beta) in zip(document["variants"], COMPARED.items(), strict=True):
        alone = evaluate(one, name, **({"beta": beta} if beta else {}))
        total = {key: one for key, one in alone.total.items() if key in row and key[-3:] != "_of"}
        assert (row["signature"], row["denominator"]) == (
            alone.signature,
            alone.total["denominator"],
        )
        assert {key: row[key] for key in total} == pytest.approx(total, rel=1e-11), name
        whole = np.concatenate(alone.gradient)
        parts = [whole]
        if name == "skyrl/regular":
            policy = np.concatenate(evaluate(one, name, beta=0.0).gradient)
            parts = [policy, whole - policy]
        cosine = first @ whole / math.sqrt(first @ first) / math.sqrt(whole @ whole)
        size = sum(np.abs(part) for part in parts)
        sums = [part.sum().item() for part in np.split(size, np.cumsum(LENGTHS)[:-1])]
        signs = [np.sign(values[0]) for values in alone.advantages]
        longest = 0.6 * sum(s for s, length in zip(sums, LENGTHS, strict=True) if length == 9)
        wanted = {
            "cosine": cosine,
            "longest_quarter": longest / sum(sums),
            "longest_quarter_tokens": 3 * 9 / sum(LENGTHS),
            "positive_advantage": sum(np.extract(np.equal(signs, 1), sums)) / sum(sums),
            "negative_advantage": sum(np.extract(np.equal(signs, -1), sums)) / sum(sums),
        }
        assert {key: row[key] for key in wanted} == pytest.approx(wanted, rel=1e-9), name
        assert row["positive_advantage"] + row["negative_advantage"] < 1.0 or not beta


def test_each_batch_is_compared_as_if_it_were_alone(tmp_path):
    records = grouped(LENGTHS, REWARDS) + grouped(LENGTHS[::-1], [*REWARDS[1:], 0.4])
    steps = [one | {"step": at % 4 // 2} for at, one in enumerate(records)]
    path = write(tmp_path / "a", steps)
    words = ("compare", "-v", ",".join(COMPARED), "--beta", "0.3")
    rows = answer(*words, path, "--batch", "step")["variants"]
    for step in (0, 1):
        alone = answer(*words, path, "--where", f"step=={step}")["variants"]
        own = [row for row in rows if row["step"] == step]
        for row, other in zip(own, alone, strict=True):
            kept = other.keys() - {"signature"}
            assert {name: row[name] for name in kept} == {name: other[name] for name in kept}


def test_a_gradient_of_0_has_no_direction(tmp_path):
    dead = record(7, [3, 8], [1.0, 1.0])
    first, second = compared(write(tmp_path / "a", [dead]), "grpo", "dr")["variants"]
    assert first["cosine"] == pytest.approx(1.0)  # its KL moves the policy
    assert second["cosine"] is None
    shares = ("longest_quarter", "positive_advantage", "negative_advantage")
    assert [second[name] for name in shares] == [None] * 3
    assert [first[name] for name in shares[1:]] == [0.0, 0.0]
    assert compared(tmp_path / "a", "dr", "grpo")["variants"][1]["cosine"] is None


@pytest.mark.parametrize(
    "words",
    [  # these read the input twice: for a mean over all of it, and where the first row goes without
        ("compare", "-v", "lite-ppo,dr"),
        ("compare", "-v", "dr,grpo"),
        ("compare", "-v", "grpo,dr"),
    ],
)
def test_standard_input_is_read_as_often_as_a_file(grpo, tmp_path, words):
    records = [made(number) for number in range(5)]
    del records[0]["log_probs_ref"], records[1]["log_probs_ref"]
    path = write(tmp_path / "a", records if words[0] == "compare" else records[2:])
    name, *flags = words
    wanted = grpo(name, str(path), *flags, "--json", "--jobs", "1")
    found = grpo(name, *flags, "--json", "--jobs", "1", stdin=path.read_text())
    assert (found.exit_code, wanted.exit_code) == (0, 0)
    assert found.stdout == wanted.stdout.replace(str(path), "<stdin>")


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        ("trl/dapo,unsloth/dapo", "both variants agree: loss "),
        ("grpo,dr", "grpo and dr differ: losses "),
        ("trl/dapo,unsloth/dapo,dr", "trl/dapo and unsloth/dapo agree; losses from "),
        ("grpo,dr,gspo", "3 variants give 3 different results; losses from "),
    ],
)
def test_the_first_sentence_says_which_variants_agree(variants, words, tmp_path):
    asked = ("compare", write(tmp_path / "a", telling()), "-v", variants)
    assert run(*asked).stdout.startswith(words)
    losses = {one["variant"]: one["loss"] for one in answer(*asked)["variants"]}
    if words.startswith("grpo and dr"):
        one, other = losses["grpo"], losses["dr"]
        gap = 100 * abs(one - other) / max(abs(one), abs(other))
        words = f" {one:.6g} and {other:.6g}, a difference of {gap:.2g}% of the larger"
        assert words in " ".join(run(*asked).stdout.split())
    if words.startswith("3 variants"):
        low, high = min(losses, key=losses.get), max(losses, key=losses.get)
        said = " ".join(run(*asked).stdout.partition("\n\n")[0].split())
        assert f"from {losses[low]:.6g} ({low}) to {losses[high]:.6g} ({high})" in said


@pytest.mark.parametrize("width", [60, 200])
def test_more_than_a_dozen_variants_have_a_row_for_each_result(width):
    """The clip fractions of two of them differ: they are equal where this column is shown too."""
    asked = ("compare", "samples/first.jsonl", "-v", "grpo,dr,trl/*,roll/vanilla,roll/topr")
    first, *lines = run(*asked, COLUMNS=str(width)).stdout.splitlines()
    header = next(at for at, line in enumerate(lines) if line.startswith("─"))
    rows = lines[header + 1 : lines.index("", header)]
    assert first.startswith(f"14 variants give {len(rows)} different results")
    assert sum(1 + ("(+1 equal)" in row) for row in rows) == 14


def test_own_settings_are_those_that_records_do_not_replace(tmp_path):
    whole = telling()
    given = [
        one | {"advantages": [0.5] * len(one["rewards"]), "hyperparameters": {"epsilon": 0.9}}
        for one in whole
    ]
    names = ("gspo", "dr", "grpo", "verl/gspo", "trl/dapo")
    bare, path = write(tmp_path / "bare", whole), write(tmp_path / "given", given)
    rows = compared(path, *names, own=True)
    assert rows["variants"] == compared(bare, *names)["variants"]
    assert rows["replaced"] == []
    assert rows["variants"] != compared(path, *names)["variants"]
    flag = answer("compare", path, "-v", ",".join(names), "--own", "--by", "loss")["variants"]
    assert flag == sorted(rows["variants"], key=lambda row: row["loss"])
    flags = {"own": True, "epsilon_low": 0.1}
    assert compared(path, "gspo", **flags) == compared(bare, "gspo", epsilon_low=0.1)


def test_losses_are_apart_by_no_power_of_ten():
    given = {"advantages": [1.0, -1.0], "log_probs_new": [[-1.0], [-1.0, -1.0]]}
    line = compare(given, "grpo,dr").headline  # 0, and −1 over 2 responses
    assert line.endswith("a difference of 100% of the larger")
    signs = {"advantages": [3.0, -1.0], "log_probs_new": [[-1.0], [-1.0] * 4]}
    assert compare(signs, "grpo,dr").headline.endswith("of opposite signs")


def test_every_setting_that_records_replace_is_printed(tmp_path):
    """The β of a KL as well, however many values of ε are replaced."""
    settings = {"epsilon_low": 0.1, "epsilon_high": 0.28, "beta": 0.015}
    rows = [one | {"log_probs_ref": one["log_probs_old"]} for one in telling()]
    path = write(tmp_path / "a", [one | {"hyperparameters": settings} for one in rows])
    names = ("grpo", "dr", "gspo", "cispo", "bnpo", "gspo-token", "two-sided")
    replaced = {
        row["variant"]: row["hyperparameters"] for row in compared(path, *names)["replaced"]
    }
    assert replaced["grpo"]["beta"] == [0.04, 0.015]
    assert "beta" not in replaced["dr"]
    text = " ".join(run("compare", path, "-v", ",".join(names)).stdout.split())
    for setting in ("epsilon_low 0.1", "epsilon_high 0.28", "beta 0.015"):
        assert f"{setting} (default: " in text
    assert "beta" not in str(compared(path, *names, beta=0.02)["replaced"])
