"""``verify`` says yes only to numbers that it compared; what is not finite differs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from grpo_cli.hooks.writer import Writer

RECORD = (
    '{"log_probs_new": [[-0.9, -0.2], [-1.1]], "log_probs_old": [[-1.0, -0.25], [-1.0]],'
    ' "rewards": [1.0, 0.0], "hyperparameters": {"beta": 0}, "expected": %s}'
)


@pytest.mark.parametrize(
    "expected",
    [
        *('{"loss": NaN}', '{"loss": Infinity}', '{"loss": -Infinity}', '{"loss": 1e400}'),
        *('{"objective": NaN}', '{"gradient": [[NaN, NaN], [NaN]]}', '{"advantages": [NaN, NaN]}'),
    ],
)
def test_what_is_not_finite_differs(grpo, dump, expected):
    assert grpo("verify", dump(RECORD % expected)).code == 1


@pytest.mark.parametrize(
    "expected", ["{}", '{"loss": null}', '{"metrics": {"kl": "x"}}', '{"unknown": 1}']
)
def test_nothing_compared_is_bad_input(grpo, dump, expected):
    assert grpo("verify", dump(RECORD % expected)).code == 3


def test_a_list_for_a_loss_is_bad_input(grpo, dump):
    single = '{"log_probs_new": [[-0.5]], "advantages": [1], "expected": {"loss": [7]}}'
    outcome = grpo("verify", "--beta", "0", dump(single))
    assert (outcome.code, b"loss" in outcome.err) == (3, True)


def test_a_hook_writes_what_is_not_finite_as_such():
    with Writer("hook.jsonl") as writer:
        writer.write(lambda: {"expected": {"loss": math.nan, "objective": -math.inf}})
    expected = json.loads(Path("hook.jsonl").read_text())["expected"]
    assert math.isnan(expected["loss"])
    assert expected["objective"] == -math.inf
