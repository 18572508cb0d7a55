"""Each of samples/bad_* is one kind of mistake, with the message that it gives."""

from pathlib import Path

import pytest
from files import each

from grpo_cli.errors import InputError
from grpo_cli.records import assemble, read

SAMPLES = Path(__file__).parents[2] / "samples"

MESSAGES = {
    "bad_boolean.json": ": rewards[0]: expected a number, got true",
    "bad_boolean_log_prob.json": ": log_probs_new[0][1]: expected a number, got false",
    "bad_empty.jsonl": ": no records: the input is empty",
    "bad_infinity.json": ": log_probs_old[1][1]: expected a finite number, got -inf",
    "bad_malformed.json": ":4: malformed JSON at column 3: expected a comma or a closing bracket, "
    'got "rewards":',
    "bad_malformed.jsonl": ":2: malformed JSON at column 96: the string that begins here never "
    "ends",
    "bad_mask.json": ": mask[1][1]: expected 0 or 1, got 2",
    "bad_missing_log_probs.json": ": expected log_probs_new, found none of log_probs_new, "
    "log_probs, logprobs, logps, per_token_logps, logp_per_token, new_log_probs, "
    "trainer_logprobs, ratios, rhos, importance_ratios, action_log_probs",
    "bad_nan.json": ": log_probs_new[0][1]: expected a finite number, got NaN",
    "bad_negative_epsilon.json": ": epsilon: expected a finite number >= 0, got -0.2",
    "bad_not_an_object.jsonl": ":2: expected an object, got a list",
    "bad_null.json": ": log_probs_new[0][1]: expected a number, got null",
    "bad_positive_log_prob.json": ": log_probs_new[0][1]: expected a log-prob <= 0, got 0.3",
    "bad_reward_count.json": ": rewards: expected 2 rewards (one per response), got 3",
    "bad_row_count.json": ": log_probs_old: expected 2 responses (as log_probs_new has), got 1",
    "bad_string.json": ': log_probs_old[1][0]: expected a number, got "-0.4"',
    "bad_text_beta.json": ": hyperparameters.beta: expected a finite number >= 0, got '0.04'",
    "bad_token_count.json": ": log_probs_old[1]: expected 2 numbers (as log_probs_new[1] has), "
    "got 1",
    "bad_typing_slip.json": ": rewrads: unknown key; did you mean rewards?",
    "bad_unknown_hyperparameter.json": ": hyperparameters.epsilon_hihg: unknown hyperparameter; "
    "did you mean epsilon_high?",
}
LATER = {"bad_missing_reference.json", "bad_missing_rewards.json", "bad_overflow.json"}
"""Good records that the objective cannot be evaluated on."""


def test_every_bad_sample_is_listed():
    found = {path.name for path in SAMPLES.glob("bad_*")}
    assert found == {*MESSAGES, *LATER}


@each(("name", "message"), MESSAGES.items())
def test_message(monkeypatch, name, message):
    monkeypatch.chdir(SAMPLES)
    with pytest.raises(InputError) as caught:
        [assemble([record]) for record in read(name)]
    assert str(caught.value) == name + message


@pytest.mark.parametrize("name", sorted(LATER))
def test_these_are_records(name):
    (record,) = read(str(SAMPLES / name))
    assert assemble([record]).responses.count == 2
