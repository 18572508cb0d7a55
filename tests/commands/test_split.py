"""A batch cut into micro-batches, against arithmetic by hand and TRL's own losses."""

from __future__ import annotations

import json

import pytest
from planted import DUMPS, telling, write

from grpo_cli import InputError, UsageError, split

# Every ratio is 1, so J is the weighted mean of the advantages and the gradient w·A.
ON_POLICY = {"log_probs_new": [[-1.0], [-1.0] * 4], "advantages": [1.0, 0.2]}


def rows(path, micro_batch, variant="dr", **options):
    answer = split(str(path), micro_batch, variant=variant, **options).document()
    return {row["aggregate"]: row for row in answer["splits"]}


def test_mean_of_means_by_hand(tmp_path):
    found = rows(write(tmp_path / "a", [ON_POLICY]), 1)
    token_mean = found["token-mean"]
    # by hand: (1 + 4·0.2) / 5, and (1 + 0.2) / 2
    assert token_mean["global"] == pytest.approx(-0.36)
    assert token_mean["reported"] == pytest.approx(-0.6)
    assert not token_mean["invariant"]
    # by hand: global gradients 1/5 and 0.2/5, split 1/2 and 0.2/(4·2); projected
    assert token_mean["factor"] == pytest.approx((0.5 * 0.2 + 4 * 0.025 * 0.04) / 0.0464)
    for name in ("response-mean", "token-sum"):
        assert found[name]["invariant"]
        assert found[name]["factor"] == pytest.approx(1.0)
    assert found["sum"]["reported"] == pytest.approx(-0.9)
    assert found["sum"]["factor"] == pytest.approx(0.5)


def test_no_split_changes_nothing(tmp_path):
    path = write(tmp_path / "a", telling())
    for name, row in rows(path, 8, variant="grpo").items():
        assert (row["invariant"], row["invariant_by"]) == (None, None), name
        assert row["reported"] == pytest.approx(row["global"], rel=1e-12), name
        assert row["factor"] == pytest.approx(1.0), name


def test_one_window_of_trl_is_its_two_logged_losses(tmp_path):
    lines = (DUMPS / "trl-1.16.0-dapo.jsonl").read_text().splitlines()[:2]
    expected = sum(json.loads(line)["expected"]["loss"] for line in lines)
    path = tmp_path / "window"
    path.write_text("\n".join(lines))
    found = rows(path, 8, variant="trl/dapo", stages={"aggregate": "trl/dapo"})
    assert found["trl/dapo"]["reported"] == pytest.approx(expected, rel=1e-5)
    assert found["trl/dapo"]["invariant"]


def test_more_ranks_than_micro_batches(tmp_path):
    path = write(tmp_path / "a", telling())  # of 8 responses
    with pytest.raises(UsageError, match="fewer than the ranks"):
        rows(path, 4, ranks=3)


def test_records_of_other_columns_are_no_batch(tmp_path):
    other = ON_POLICY | {"log_probs_old": [[-1.0], [-1.0] * 4]}
    path = write(tmp_path / "a", [ON_POLICY, ON_POLICY, other, other])
    with pytest.raises(InputError, match="other columns") as told:
        rows(path, 1)
    assert told.value.line == 3


def test_a_kl_with_a_denominator_of_its_own_by_tokens(tmp_path):
    # An update that is the same as the whole batch's, part by part, has every number 1.
    found = rows(write(tmp_path / "a", telling()), 8, variant="skyrl/regular")
    own = next(iter(found.values()))
    assert own["own"]
    assert own["norm_factor"] == pytest.approx(1.0)


def test_a_split_that_does_nothing_says_so(grpo, tmp_path):
    path = str(write(tmp_path / "a", telling()))
    told = grpo("split", path, "-n", "8", "-v", "dr").stdout
    assert "nothing is split" in told
    told = grpo("split", path, "-n", "2", "-v", "dr").stdout
    assert "nothing is split" not in told
    assert "token-sum *" in told
    assert sum(line.startswith("not tried") for line in told.splitlines()) <= 1


EQUAL = {"log_probs_new": [[-1.0] * 3] * 4, "advantages": [1.0, 0.2, -0.5, 0.7]}
GROUPED = EQUAL | {"group_ids": [0, 0, 1, 1]}
EMPTY = EQUAL | {"mask": [[1] * 3, [1] * 3, [1] * 3, [0] * 3]}


@pytest.mark.parametrize(
    ("record", "micro_batch", "by"),
    [
        # one length: a mean over tokens is one over responses, though it counts tokens
        (EQUAL, 2, {"token-mean": "data", "response-mean": "formula", "token-sum": "formula"}),
        # micro-batches of other sizes: nothing that counts responses agrees
        (EQUAL, 3, {"token-mean": None, "response-mean": None, "verl/token-sum": "formula"}),
        # groups that no cut goes through, as many to a micro-batch
        (GROUPED, 2, {"prompt-mean": "formula", "token-mean": "data"}),
        (GROUPED, 1, {"prompt-mean": "data"}),
        # no response is empty, and those that are would not be counted
        (EQUAL, 2, {"openrlhf/response-mean": "data", "sum": None, "trl/dapo": "formula"}),
        (EMPTY, 2, {"openrlhf/response-mean": None, "response-mean": "formula"}),
    ],
)
def test_no_difference_on_this_data_is_told_from_none_by_the_formula(
    tmp_path, record, micro_batch, by
):
    found = rows(write(tmp_path / "a", [record]), micro_batch)
    assert {name: found[name]["invariant_by"] for name in by} == by
    for name, why in by.items():
        assert found[name]["invariant"] == (why is not None)


def test_the_table_says_what_holds_only_here(grpo, tmp_path):
    path = str(write(tmp_path / "a", [EQUAL]))
    lines = grpo("split", path, "-n", "2", "-v", "dr").stdout.splitlines()
    cells = {line.split()[0]: line for line in lines if "×" in line}
    assert " here " in cells["token-mean"]
    assert " yes " in cells["response-mean"]
    nothing = grpo("split", path, "-n", "9", "-v", "dr", "--json")
    document = json.loads(nothing.stdout)
    assert (nothing.exit_code, document["cuts_nothing"]) == (0, True)
    assert {row["invariant"] for row in document["splits"]} == {None}


def test_settings_in_which_records_differ_are_told(grpo, tmp_path):
    records = [
        ON_POLICY | {"hyperparameters": {"epsilon": 0.25, "tau_pos": tau} | more}
        for tau, more in ((1.0, {}), (1.0, {}), (2.0, {"beta": 0.5}), (3.0, {}))
    ]
    path = str(write(tmp_path / "a", records))
    told = grpo("split", path, "-n", "2", "-v", "dr").stderr.splitlines()
    notes = [line for line in told if "differs between the records" in line]
    said = "differs between the records;"
    assert notes == [
        f"grpo: note: tau_pos {said} the first one's, 1.0, is used",
        f"grpo: note: beta {said} the first one's, None, is used",
    ]


@pytest.mark.parametrize("variant", ["dr", "lite-ppo"])
def test_records_that_cannot_be_read(grpo, tmp_path, variant):
    """Left out, each told once, or the end; a row may need the whole input's statistics first."""
    good = str(write(tmp_path / "good", telling()))
    first, second = (tmp_path / "good").read_text().splitlines(keepends=True)
    path = tmp_path / "bad"
    path.write_text(f"{first}{{broken\n{second}")
    words = ("-n", "2", "-v", variant, "--json", "--jobs", "1")
    wanted = json.loads(grpo("split", good, *words).stdout)
    ended = grpo("split", str(path), *words)
    assert ended.exit_code == 3
    assert json.loads(ended.stderr)["error"]["line"] == 2
    found = grpo("split", str(path), *words, "--on-error", "skip")
    assert found.exit_code == 3
    assert json.loads(found.stdout)["splits"] == wanted["splits"]
    assert found.stderr.count("malformed JSON") == 1


def test_no_aggregation_that_can_be_evaluated(grpo, tmp_path):
    """The page has no table, and one line says what is missing."""
    path = str(write(tmp_path / "a", [ON_POLICY]))
    words = ("-n", "1", "-v", "dr", "--aggregate", "verl/seq-mean-token-sum-norm")
    outcome = grpo("split", path, *words)
    assert outcome.exit_code == 3
    said = outcome.stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"grpo: no aggregation can be evaluated: {path}:1: loss_scale_factor")
    assert outcome.stdout.splitlines() == [
        "dr: 2 responses in 2 micro-batches of 1, 2 accumulated on 1 rank",
        "skipped (missing inputs): verl/seq-mean-token-sum-norm (--json says why)",
    ]
