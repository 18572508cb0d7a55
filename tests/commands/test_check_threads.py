"""The issue threads in samples/threads: the command that one would run names the fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import answer

THREADS = Path(__file__).parents[2] / "samples" / "threads"

NAMED = {
    "verl-6280": ("ratio-noise", "so precision, kernels or batch shapes cause this noise"),
    "verl-6564": ("last-token", "at the last token of 8 of 8 responses"),
    "verl-6240": ("mean-weight", "top-p or top-k kept"),
    "unsloth-6738": ("drift", "grows with the position"),
    "unsloth-4502": ("ratio-noise", "on-policy (num_iterations 1), yet the ratios are not 1"),
    "trl-6789": ("mean-weight", "top-p or top-k kept, or has another one-sided bias"),
    "trl-6121": ("probabilities negative-entropy", "padding that was filled with 1"),
    "trl-5224": ("retokenised", "differ from the sampled ids (sampled_token_ids)"),
    "nemo-rl-1518": ("advantage-scale", "a leave-one-out std of 0 gives 1/eps"),
    "nemo-rl-1330": ("rollout-mismatch", "engine and trainer differ"),
    "areal-1419": ("advantages", "groups of 9 consecutive rows"),
}


@pytest.mark.parametrize("name", NAMED)
def test_check_names_the_fault_of_a_thread_and_nothing_else(name):
    codes, words = NAMED[name]
    found = answer("check", THREADS / f"{name}.jsonl")["findings"]
    severe = [row for row in found if row["severity"] != "info"]
    assert {row["code"] for row in severe} == {*codes.split()}
    assert words in severe[0]["message"]


@pytest.mark.parametrize("row", [(), ("-v", "trl/dapo")])
def test_verify_names_that_cut_tokens_are_in_the_denominator(row):
    """182 tokens count; the response that was cut has 50 more, and three pads.

    The record's settings turn the KL's weight off, which the row that a user names has on.
    """
    (record,) = answer("verify", THREADS / "trl-6369.jsonl", *row)["records"]
    first = record["first"]
    assert first["stage"] == "aggregate"
    (cause,) = first["causes"]
    words = "tokens including responses that are masked entirely (truncated responses still count)"
    assert words in cause
    assert cause.startswith("KL not weighted by the ratio, and ") == bool(row)


def test_every_thread_is_asked_about():
    assert {path.stem for path in THREADS.glob("*.jsonl")} == {*NAMED, "trl-6369"}
