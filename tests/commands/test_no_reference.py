"""Dumps without a reference: a KL penalty that only the variant asks for is left out, and named.

What commands say then: ``cases/said/no-reference.txt``.
"""

from __future__ import annotations

import json
import math

import pytest

from grpo_cli import VARIANTS, InputError, compare, evaluate, match, verify

PLAIN = {
    "log_probs_new": [[-0.2, -0.3], [-0.1, -0.4]],
    "log_probs_old": [[-0.5, -0.6], [-0.4, -0.7]],
    "rewards": [1.0, 0.0],
}
WITH = PLAIN | {"log_probs_ref": [[-0.25, -0.35], [-0.15, -0.4]]}

# By hand: A = ±0.5 / (σ + 1e-8), σ = √0.5; every ratio is e^0.3, clipped at 1.2 where A > 0.
LOSS = (math.exp(0.3) - 1.2) * 0.5 / (math.sqrt(0.5) + 1e-8) / 2

NOTE = "KL left out of grpo (k3, β 0.04): the records have no log_probs_ref"


@pytest.fixture
def write(tmp_path):
    def written(*records: dict, name: str = "dump.jsonl") -> str:
        path = tmp_path / name
        lines = [json.dumps({"id": at, "step": at} | one) for at, one in enumerate(records)]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return str(path)

    return written


def test_eval_leaves_the_penalty_out_and_says_so(grpo, write):
    result = grpo("eval", write(PLAIN | {"step": 1}, PLAIN | {"step": 1}), "--json")
    document = json.loads(result.stdout)
    total = document["total"]
    assert result.exit_code == 0
    assert total["loss"] == pytest.approx(LOSS, rel=1e-14)
    assert total["policy"] == total["objective"]
    assert total["kl"] is None
    assert "|kl:none(no reference)|" in document["signature"]
    assert [record["kl"] for record in document["records"]] == [None, None]
    assert result.stderr == f"grpo: note: {NOTE}\n"


@pytest.mark.parametrize("level", ["batch", "record", "response", "token"])
def test_every_level_has_the_numbers_of_beta_0(grpo, write, level):
    path = write(PLAIN, PLAIN)
    rows = [
        [
            json.loads(line)
            for line in grpo(
                "eval", path, "-f", "jsonl", "--level", level, *more
            ).stdout.splitlines()
        ]
        for more in ((), ("--beta", "0"))
    ]
    for own, without in zip(*rows, strict=True):
        assert level not in ("batch", "record") or own.pop("signature") != without.pop("signature")
        assert own == without


@pytest.mark.more
def test_match_names_the_default_as_it_stands(grpo, write):
    """And rows that differ in the KL penalty alone; those of another eps are named apart."""
    result = grpo("match", write(PLAIN, PLAIN), "--loss", "0.0529830888")
    assert "  grpo, grpo-unbiased-kl (equal on any data)\n" in result.stdout
    assert "-v grpo --level batch --only loss" in result.stdout
    assert "--kl none" not in result.stdout
    assert "KL left out of" in result.stderr
    found = match(write(PLAIN, PLAIN), loss=evaluate(write(PLAIN, PLAIN), "trl/dr_grpo").loss)
    assert "trl/dr_grpo" in found.matches[0].variants
    assert found.matches[0].command.count("--kl") == 0


def test_trend_has_the_columns_of_the_update(grpo, write):
    result = grpo("trend", write(PLAIN, PLAIN, PLAIN), "--fields", "loss,kl", "-f", "jsonl")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["loss"] for row in rows] == pytest.approx([LOSS] * 3, rel=1e-14)
    assert [row["kl"] for row in rows] == [None] * 3
    assert NOTE in result.stderr


def test_python_has_the_same_numbers_and_notes(write):
    path = write(PLAIN, PLAIN)
    found = evaluate([PLAIN, PLAIN])
    assert found.loss == pytest.approx(LOSS, rel=1e-14)
    assert found.total["kl"] is None
    assert all(math.isnan(value) for response in found.kl for value in response)
    assert found.notices == [NOTE]
    assert compare(path, "grpo").variants[0].kl is None
    assert verify([PLAIN | {"expected": {"loss": LOSS}}]).ok


# ---- which rows, and which records -------------------------------------------------------------


def leaving_out() -> list[str]:
    """The rows whose own β is not 0, and whose KL is a penalty in the loss on the reference."""
    rows = []
    for name, row in VARIANTS.items():
        needs = {"log_ratio_ref", "log_probs_ref"} & {*row.kl.choice.columns}
        if needs and not row.kl.choice.in_reward and row.kl.values.get("beta"):
            rows.append(name)
    return rows


def test_which_rows_they_are():
    # Read off the table of rows; the frameworks' released defaults of β stand there.
    assert {"grpo", "bnpo", "reinforce++-baseline", "liger/dapo", "skyrl/gspo"} <= {*leaving_out()}
    assert {"ms-swift/dr_grpo", "nemo-rl/grpo", "open-instruct/cispo"} <= {*leaving_out()}
    assert not {"rloo", "trl/grpo", "prime-rl/grpo", "openrlhf/ppo", "dr"} & {*leaving_out()}


@pytest.mark.parametrize("name", leaving_out())
def test_every_such_row_gives_what_a_beta_of_0_gives(name):
    turns = [[0.5] for _ in PLAIN["rewards"]]
    record = PLAIN | {"log_probs_rollout": PLAIN["log_probs_old"], "turn_rewards": turns}
    record |= {"state_ids": [0 for _ in turns]}
    found, without = evaluate(record, name), evaluate(record, name, beta=0.0)
    assert found.total == without.total
    assert "|kl:none(no reference)|" in found.signature
    with pytest.raises(InputError, match="log_probs_ref: missing"):
        evaluate(record, name, beta=0.04)


@pytest.mark.parametrize("name", ["trl/grpo", "verl/vanilla"])
def test_a_row_whose_own_beta_is_0_is_evaluated_as_before(name):
    found = evaluate(PLAIN, name)
    assert "no reference" not in found.signature
    assert "[beta=0" in found.signature
    assert not any("KL left out" in note for note in found.notices)


def test_records_with_probabilities():
    bare = {"ratios": [1.2, 0.8], "advantages": [1.0, 1.0]}
    for record in (bare, bare | {"probs_old": [0.9, 0.5]}):
        found = evaluate(record)
        assert found.objective == pytest.approx(1.0)  # by hand: (1.2 + 0.8) / 2
        assert found.notices == [NOTE]
    with pytest.raises(InputError, match=r"probs_old: missing; the kl stage \(k3\) needs it"):
        evaluate(bare | {"probs_ref": [1.0, 0.5]})
    known = evaluate(bare | {"probs_old": [0.9, 0.5], "probs_ref": [1.0, 0.5]})
    assert known.total["kl"] > 0.0
    assert known.notices == []


def test_a_beta_of_0_beside_records_that_give_none(write):
    found = evaluate(write(PLAIN | {"step": 1}, PLAIN | {"step": 1, "beta": 0.0}))
    assert found.loss == pytest.approx(LOSS, rel=1e-14)
    assert "|kl:mixed|" in found.signature
    assert found.notices == [NOTE]


# ---- some with a reference, some without ------------------------------------------------------

ORDERS = {
    "lacking first": ([PLAIN, PLAIN, WITH, PLAIN], 1),
    "lacking last": ([WITH, WITH, PLAIN, WITH, PLAIN], 3),
    "lacking within": ([WITH, PLAIN, WITH], 2),
}


@pytest.mark.more
@pytest.mark.parametrize("order", ORDERS)
def test_compare_and_match_skip_what_needs_the_column_that_a_mix_lacks(grpo, write, order):
    records, line = ORDERS[order]
    path = write(*(one | {"expected": {"loss": LOSS}} for one in records))
    document = json.loads(grpo("compare", path, "-v", "dr,grpo", "--json").stdout)
    (skipped,) = document["skipped"]
    assert skipped["place"].endswith(f"dump.jsonl:{line}")
    stages = {"ratio": "token", "surrogate": "clip"}
    found = match(path, loss=str(LOSS), stages=stages, epsilon=0.2)
    assert "grpo" not in [name for one in found.matches for name in one.variants]


@pytest.mark.parametrize("order", ORDERS)
def test_records_without_are_skipped_and_their_steps_have_no_update(grpo, write, order):
    records, line = ORDERS[order]
    path = write(*records)
    lacks = ["log_probs_ref" not in one for one in records]
    result = grpo("eval", path, "--on-error", "skip", "--json")
    kept = evaluate([one for one in records if "log_probs_ref" in one])
    assert result.exit_code == 3
    assert json.loads(result.stdout)["total"] == kept.total
    assert f"skipped {sum(lacks)} of {len(records)} records" in result.stderr
    result = grpo("trend", path, "--fields", "loss", "-f", "jsonl")
    assert [json.loads(row)["loss"] is None for row in result.stdout.splitlines()] == lacks
    assert f"dump.jsonl:{line}: log_probs_ref: missing" in result.stderr
    assert "KL left out" not in result.stderr


def test_nothing_is_skipped_where_no_record_has_a_reference(grpo):
    result = grpo("eval", "--on-error", "skip", "--only", "loss", stdin=json.dumps(PLAIN))
    assert result.exit_code == 0
    assert float(result.stdout) == pytest.approx(LOSS, rel=1e-14)


# ---- however the input is cut ------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.parametrize(
    "records",
    [
        [PLAIN] * 300,
        [*[PLAIN] * 180, WITH, *[PLAIN] * 20],
        [*[WITH] * 130, PLAIN, *[WITH] * 69],
        [*[WITH, PLAIN | {"rewards": [1.0]}] * 2, *[PLAIN] * 100],
        [*[PLAIN] * 90, PLAIN | {"rewards": [1.0]}, *[WITH] * 100],
    ],
    ids=["none", "late reference", "late lack", "another error first", "another error between"],
)
def test_bytes_are_the_same_for_any_jobs(grpo, write, records):
    path = write(*records)
    one, two = (grpo("eval", path, "-f", "jsonl", "--jobs", jobs) for jobs in (1, 2))
    assert (one.exit_code, one.stdout, one.stderr) == (two.exit_code, two.stdout, two.stderr)


# ---- what a row needs and nobody gives ---------------------------------------------------------


@pytest.mark.more
def test_match_names_a_length_that_nobody_gives(grpo, write):
    """As other commands do: ``cases/said/no-reference.txt``."""
    path = write(PLAIN, PLAIN)
    said = "note: max_completion_length: missing; trl/dr_grpo uses its default of 512: give "
    assert said in grpo("match", path, "--loss", repr(evaluate(path, "trl/dr_grpo").loss)).stderr


def test_a_length_that_no_row_has_is_an_error_in_the_same_words(write):
    path = write(PLAIN, PLAIN)
    said = (
        "max_completion_length: missing; token-sum-norm needs it: give "
        "-p max_completion_length=VALUE, or put it in the record's hyperparameters"
    )
    stages = {"ratio": "token", "surrogate": "clip"}
    found = match(path, loss="0.1", variant="dr", stages=stages, epsilon=0.2, batch="record")
    assert found.not_tried["token-sum-norm"] == said
