"""Every kind of error with its exact message."""

import json

import numpy as np
import pytest
from files import each, gather

from grpo_cli.errors import InputError
from grpo_cli.records import Block, assemble, parse, places, records
from grpo_cli.records.fields import read_fields
from grpo_cli.records.parse.columns import guess_rows, guess_values
from grpo_cli.records.parse.settings import read_settings
from grpo_cli.records.places import Origin, Row

NEW = {"log_probs_new": [[-1, -2], [-3]]}
FOUR = {"log_probs_new": [[-1], [-2], [-1], [-2]]}
DEEP = {"log_probs_new": [[[-1, -2], [-3]], [[-1]]]}
RATIOS = {"rhos": [1.2, 0.8]}

LISTS = [
    ({"log_probs_new": []}, "log_probs_new: expected a list of numbers, got an empty list"),
    ({"logps": {"a": 1}}, "logps: expected a list of numbers, got an object"),
    ({"logps": 0.5}, "logps: expected a list of numbers, got 0.5"),
    ({"logps": [[-1], -2]}, "logps[1]: expected a list of numbers, got -2"),
    ({"logps": [[-1], "ab"]}, 'logps[1]: expected a list of numbers, got "ab"'),
    ({"logps": [-1, [-2]]}, "logps[1]: expected a number, got a list"),
    ({"logps": [[-1], [[-2]]]}, "logps[1][0]: expected a number, got a list"),
    ({"logps": [[[-1]], []]}, "logps[1]: expected at least 1 response, got none"),
    ({"logps": [[[-1]], [-2]]}, "logps[1][0]: expected a list of numbers, got -2"),
]
COUNTS = [
    (
        NEW | {"log_probs_old": [[-1, -2]]},
        "log_probs_old: expected 2 responses (as log_probs_new has), got 1",
    ),
    (
        NEW | {"ref_log_prob": [[-1, -2], [-1, -2, -3]]},
        "ref_log_prob[1]: expected 1 number (as log_probs_new[1] has), got 3",
    ),
    (
        NEW | {"log_probs_old": [-1, -2]},
        "log_probs_old[0]: expected 2 numbers (as log_probs_new[0] has), got -1",
    ),
    (
        NEW | {"log_probs_old": [[-1, -2], "a"]},
        'log_probs_old[1]: expected 1 number (as log_probs_new[1] has), got "a"',
    ),
    (
        {"log_probs_new": [[], [-1]], "log_probs_old": ["", [-1]]},
        'log_probs_old[0]: expected 0 numbers (as log_probs_new[0] has), got ""',
    ),
    (
        {"log_probs_new": [-1, -2, -3], "log_probs_old": [-1, -2]},
        "log_probs_old: expected 3 numbers (as log_probs_new has), got 2",
    ),
    (
        DEEP | {"log_probs_old": [[[-1, -2], [-3]]]},
        "log_probs_old: expected 2 groups (as log_probs_new has), got 1",
    ),
    (
        DEEP | {"log_probs_old": [[[-1, -2]], [[-3], [-1]]]},
        "log_probs_old[0]: expected 2 responses (as log_probs_new[0] has), got 1",
    ),
    (
        DEEP | {"log_probs_old": [[[-1, -2], [-3]], [[-1, -1]]]},
        "log_probs_old[1][0]: expected 1 number (as log_probs_new[1][0] has), got 2",
    ),
]
VALUES = [
    ([[-1, "abc"], [-3]], '[0][1]: expected a number, got "abc"'),
    ([[-1, "x" * 99], [-3]], f'[0][1]: expected a number, got "{"x" * 40}…"'),
    ([[-1, True], [-3]], "[0][1]: expected a number, got true"),
    ([[-1, 0.0], [False]], "[1][0]: expected a number, got false"),
    ([[-1, None], [-3]], "[0][1]: expected a number, got null"),
    ([[-1, {}], [-3]], "[0][1]: expected a number, got an object"),
    ([[-1, float("nan")], [-3]], "[0][1]: expected a finite number, got NaN"),
    ([[-1, float("inf")], [-3]], "[0][1]: expected a finite number, got inf"),
    ([[-1, -2], [float("-inf")]], "[1][0]: expected a finite number, got -inf"),
    ([[-1, -(10**400)], [-3]], "[0][1]: expected a finite number, got -inf"),
    ([[0.5, -1], [-3]], "[0][0]: expected a log-prob <= 0, got 0.5"),
    ([[-1, 5e-324], [-3]], "[0][1]: expected a log-prob <= 0, got 5e-324"),
]
COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref", "rollout_log_probs")
MASKS = [
    ([[1, 2], [1]], "mask[0][1]: expected 0 or 1, got 2"),
    ([[1, 300], [1]], "mask[0][1]: expected 0 or 1, got 300"),
    ([[1, 0.5], [1]], "mask[0][1]: expected 0 or 1, got 0.5"),
    ([[1, -1], [1]], "mask[0][1]: expected 0 or 1, got -1"),
    ([[1, "1"], [1]], 'mask[0][1]: expected 0 or 1, got "1"'),
    ([[1, None], [1]], "mask[0][1]: expected 0 or 1, got null"),
    ([[1, 1], [[1]]], "mask[1][0]: expected 0 or 1, got a list"),
    ([[1, 1], [float("nan")]], "mask[1][0]: expected 0 or 1, got NaN"),
    ([[1, 1]], "mask: expected 2 responses (as log_probs_new has), got 1"),
    ([[1], [1]], "mask[0]: expected 2 numbers (as log_probs_new[0] has), got 1"),
    ("11", 'mask: expected 2 responses (as log_probs_new has), got "11"'),
]
SCORES = [
    ({"rewards": [1, 2, 3]}, "rewards: expected 2 rewards (one per response), got 3"),
    ({"rewards": []}, "rewards: expected 2 rewards (one per response), got 0"),
    ({"score": 3}, "score: expected 2 rewards (one per response), got 3"),
    ({"rewards": "ab"}, 'rewards: expected 2 rewards (one per response), got "ab"'),
    ({"rewards": [1, None]}, "rewards[1]: expected a number, got null"),
    ({"rewards": [1, True]}, "rewards[1]: expected a number, got true"),
    ({"rewards": ["1", 2]}, 'rewards[0]: expected a number, got "1"'),
    ({"rewards": [1, [2]]}, "rewards[1]: expected a number, got a list"),
    ({"rewards": [1, float("nan")]}, "rewards[1]: expected a finite number, got NaN"),
    ({"rewards": [1, 10**400]}, "rewards[1]: expected a finite number, got inf"),
    (
        {"rewards": [[1, 2], [3]]},
        "rewards[1]: expected 2 rewards (as the first response has), got 1",
    ),
    ({"rewards": [[1, 2], 3]}, "rewards[1]: expected 2 rewards (as the first response has), got 3"),
    ({"rewards": [[1, 2], [3, "x"]]}, 'rewards[1][1]: expected a number, got "x"'),
    ({"rewards": [[], []]}, "rewards[0]: expected at least 1 reward function, got none"),
    ({"rewards": {}}, "rewards: expected at least 1 reward function, got none"),
    ({"rewards": {"a": [1]}}, "rewards.a: expected 2 rewards (one per response), got 1"),
    ({"rewards": {"a": [1, 2], "b": [1, "x"]}}, 'rewards.b[1]: expected a number, got "x"'),
    ({"advantages": []}, "advantages: expected 2 advantages (one per response), got 0"),
    ({"A": [1]}, "A: expected 2 advantages (one per response), got 1"),
    ({"advantages": [1, None]}, "advantages[1]: expected a number, got null"),
    (
        {"advantages": [[1], [2]]},
        "advantages[0]: expected 2 numbers (as log_probs_new[0] has), got 1",
    ),
    ({"advantages": [[1, "x"], [2]]}, 'advantages[0][1]: expected a number, got "x"'),
    ({"advantages": [[1, 0], [False]]}, "advantages[1][0]: expected a number, got false"),
    (
        {"advantages": [[1, float("nan")], [2]]},
        "advantages[0][1]: expected a finite number, got NaN",
    ),
    ({"entropy": [[1, 0], [-0.5]]}, "entropy[1][0]: expected an entropy >= 0, got -0.5"),
    ({"entropies": [[1, True], [0]]}, "entropies[0][1]: expected a number, got true"),
    (
        {"entropies": [[1, float("inf")], [0]]},
        "entropies[0][1]: expected a finite number, got inf",
    ),
    ({"tokens": [["a"], ["b"]]}, "tokens[0]: expected 2 tokens (as log_probs_new[0] has), got 1"),
    ({"tokens": ["ab", "c"]}, 'tokens[0]: expected 2 tokens (as log_probs_new[0] has), got "ab"'),
    ({"tokens": [["a", 1], ["b"]]}, "tokens[0][1]: expected a string, got 1"),
    ({"completion_ids": [[1, 2], [3.5]]}, "completion_ids[1][0]: expected a whole number, got 3.5"),
    ({"token_ids": [[1, 2], [True]]}, "token_ids[1][0]: expected a whole number, got true"),
]
SAMPLES = [
    (RATIOS | {"rhos": [1, 0]}, "rhos[1]: expected a number > 0, got 0"),
    (RATIOS | {"rhos": [1, -(10**20)]}, "rhos[1]: expected a number > 0, got -1e+20"),
    (RATIOS | {"rhos": [1, -2]}, "rhos[1]: expected a number > 0, got -2"),
    (RATIOS | {"rhos": [1, True]}, "rhos[1]: expected a number, got true"),
    (RATIOS | {"pi_theta_old": [0.0, 1]}, "pi_theta_old[0]: expected a number > 0, got 0"),
    (RATIOS | {"probs_ref": [float("inf"), 1]}, "probs_ref[0]: expected a finite number, got inf"),
    (RATIOS | {"probs_old": [1]}, "probs_old: expected 2 numbers (as rhos has), got 1"),
]
KEYS = [
    (
        {"id": 1},
        "expected log_probs_new, found none of log_probs_new, log_probs, logprobs, logps, "
        "per_token_logps, logp_per_token, new_log_probs, trainer_logprobs, ratios, rhos, "
        "importance_ratios, action_log_probs",
    ),
    (NEW | {"logps": [[-1]]}, "log_probs_new and logps both mean log_probs_new; keep one"),
    (NEW | {"score": [1], "rewards": [1]}, "score and rewards both mean rewards; keep one"),
    (NEW | {"rhos": [1]}, "log_probs_new and rhos say the same thing; keep one"),
    (
        NEW | {"log_probs_old": [[-1, -2], [-3]], "pi_theta_old": [1]},
        "log_probs_old and pi_theta_old say the same thing; keep one",
    ),
    (NEW | {"reward_": [1]}, "reward_: unknown key; did you mean reward?"),
    (NEW | {"log_prob_old": [1]}, "log_prob_old: unknown key; did you mean log_probs_old?"),
    (NEW | {"advanatges": [1]}, "advanatges: unknown key; did you mean advantages?"),
    (NEW | {"epsilno": 1}, "epsilno: unknown key; did you mean epsilon?"),
]
SETTINGS = [
    ({"beta": -1}, "beta: expected a finite number >= 0, got -1"),
    ({"beta": None}, "beta: expected a finite number >= 0, got null"),
    ({"hyper": {"beta": "x"}}, "hyper.beta: expected a finite number >= 0, got 'x'"),
    ({"params": {"beta": [1]}}, "params.beta: expected a finite number >= 0, got a list"),
    (
        {"hyperparameters": {"beta": True}},
        "hyperparameters.beta: expected a finite number >= 0, got true",
    ),
    ({"hyper": {"betta": 1}}, "hyper.betta: unknown hyperparameter; did you mean beta?"),
    ({"hyper": {"x.beta": 1}}, "hyper.x.beta: unknown hyperparameter; did you mean beta?"),
    ({"hyper": [1]}, "hyper: expected an object, got a list"),
    ({"hyper": {"beta": 1}, "kl_coef": 2}, "hyper.beta: 1 contradicts kl_coef, which is 2"),
    ({"epsilon": 0.1, "clip_ratio": 0.2}, "clip_ratio: 0.2 contradicts epsilon, which is 0.1"),
    ({"hyper": {}, "params": {}}, "hyper and params both mean hyperparameters; keep one"),
]
GROUPS = [
    ({"uid": [1, 2, 3]}, "uid: expected 4 group ids (one per response), got 3"),
    ({"uid": [1, 2, None, 3]}, "uid[2]: expected a string or a number, got null"),
    ({"uid": [1, 2, True, 3]}, "uid[2]: expected a string or a number, got true"),
    ({"uid": [1, 2, float("nan"), 3]}, "uid[2]: expected a string or a number, got NaN"),
    ({"uid": {"a": 1}}, "uid: expected a string or a number, got an object"),
    ({"group_size": 3}, "group_size: expected a divisor of 4 (the number of responses), got 3"),
    ({"group_size": 0}, "group_size: expected a whole number >= 1, got 0"),
    ({"group_size": 1.5}, "group_size: expected a whole number >= 1, got 1.5"),
    ({"num_generations": "2"}, 'num_generations: expected a whole number >= 1, got "2"'),
    ({"num_generations": float("inf")}, "num_generations: expected a whole number >= 1, got inf"),
    (
        {"group_size": 2, "uid": "abaa"},
        "group_size: 2 contradicts uid, which has a group of 4 responses",
    ),
    (
        {"group_size": 2, "uid": [*"abaa"]},
        "group_size: 2 contradicts uid, which has a group of 3 responses",
    ),
]
NESTED_GROUPS = [
    (
        {"group_ids": [0, 1, 1]},
        "group_ids: expected one id for each nested group, got other groups",
    ),
    (
        {"group_ids": ["a", "a"]},
        "group_ids: expected one id for each nested group, got other groups",
    ),
    (
        {"group_size": 2},
        "group_size: 2 contradicts log_probs_new, which has a group of 1 response",
    ),
    ({"rewards": [[1, 2], [3, 4]]}, "rewards: expected 3 rewards (one per response), got 2"),
    ({"rewards": [[1, "x"], [3]]}, 'rewards[0][1]: expected a number, got "x"'),
]

CASES = [
    *LISTS,
    *COUNTS,
    *[(NEW | {"mask": mask}, message) for mask, message in MASKS],
    *[(NEW | more, message) for more, message in SCORES],
    *[(NEW | {name: value}, name + message) for name in COLUMNS for value, message in VALUES],
    *SAMPLES,
    *KEYS,
    *[(NEW | more, message) for more, message in SETTINGS],
    *[(FOUR | more, message) for more, message in GROUPS],
    *[(DEEP | more, message) for more, message in NESTED_GROUPS],
]


def _is_about_data(record):
    """Whether the fault is one that keys and hyperparameters do not show."""
    try:
        read_settings(record, read_fields(record))
    except InputError:
        return False
    return True


@each(("record", "message"), CASES)
def test_message(record, message):
    with pytest.raises(InputError) as caught:
        assemble([parse(record, source="d.jsonl", line=12)])
    assert str(caught.value) == f"d.jsonl:12: {message}"


@each(("record", "message"), CASES)
def test_message_from_json_text_inside_an_array(record, message):
    (found,) = records(Block("d", 1, [json.dumps([record]).encode()], document=True))
    with pytest.raises(InputError) as caught:
        raise found if isinstance(found, InputError) else InputError(str(_assembly_error(found)))
    assert str(caught.value).startswith("d: [0]")
    assert str(caught.value).endswith(message.rpartition("got ")[2])


def _assembly_error(record):
    with pytest.raises(InputError) as caught:
        assemble([record])
    return caught.value


@each("record", [record for record, _ in CASES if _is_about_data(record)])
def test_the_short_way_lets_no_fault_through(record):
    plain = json.loads(json.dumps(record))
    assert gather([plain]) is None
    assert gather([NEW, plain] if plain.keys() == NEW.keys() else [plain, plain]) is None


def test_the_short_way_takes_no_record_without_responses():
    plain = {"log_probs_new": [[-1.0]], "rewards": [1.0]}
    assert gather([plain]).responses.count == 1
    assert gather([plain, {"log_probs_new": [], "rewards": []}]) is None
    assert gather([{"log_probs_new": [], "rewards": []}]) is None


def test_a_long_column_hides_no_boolean():
    row = [-0.5, 0.0] * 400
    for at, value in ((3, False), (799, True)):
        with pytest.raises(InputError) as caught:
            parse({"logps": [[*row[:at], value, *row[at + 1 :]]]})
        assert caught.value.path == f"logps[0][{at}]"


def test_the_first_bad_record_is_named():
    good, bad = (
        {"logps": [[-1]], "log_probs_ref": [[-1]]},
        {"logps": [[-1]], "log_probs_ref": [[2]]},
    )
    worse = {"logps": [[1]], "log_probs_ref": [[-1]]}
    made = [parse(one, source="d", line=at) for at, one in enumerate([good, bad, worse], 1)]
    with pytest.raises(InputError) as caught:
        assemble(made)
    assert caught.value.record == 1
    assert str(caught.value) == "d:2: log_probs_ref[0][0]: expected a log-prob <= 0, got 2"


# ---- places, and what seems to stand there ----------------------------------------------------


def test_a_flat_index_is_a_place_as_the_user_nested_it():
    widths, shape = [2, 0, 1, 3, 1], [2, 1, 2]
    flat = [places.index(at, 2, widths, None) for at in range(7)]
    assert flat == ["[0][0]", "[0][1]", "[2][0]", "[3][0]", "[3][1]", "[3][2]", "[4][0]"]
    deep = [places.index(at, 3, widths, shape) for at in range(7)]
    grouped = ["[0][0][0]", "[0][0][1]", "[1][0][0]", "[2][0][0]", "[2][0][1]", "[2][0][2]"]
    assert deep == [*grouped, "[2][1][0]"]
    assert places.index(3, 1, [5], None) == "[3]"
    assert [places.response(row, shape) for row in range(5)] == [
        *("[0][0]", "[0][1]", "[1][0]"), *("[2][0]", "[2][1]"),
    ]  # fmt: skip


ROWS = (Row(4, "", 0), Row(6, "[1].", 1))
SPELLED = {"log_probs_new": "r[{r}].lp[{t}]", "rewards": "r[{r}].score", "one": "only[{t}]{}"}


@pytest.mark.parametrize(
    ("path", "rows", "expected", "line"),
    [
        ("log_probs_new[1][2]", None, "x.r[1].lp[2]", 1),
        ("log_probs_new[1]", None, "x.r[1].lp", 1),
        ("log_probs_new", None, "x.r", 1),
        ("rewards[1]", None, "x.r[1].score", 1),
        ("rewards[1][2]", None, "x.r[1].score[2]", 1),
        ("rewards.f[1]", None, "x.r[1].score.f", 1),
        ("other[3][4]", None, "x.other[3][4]", 1),
        ("log_probs_new[0][2]", ROWS, "r[0].lp[2]", 4),
        ("log_probs_new[1][2]", ROWS, "[1].r[1].lp[2]", 6),
        ("log_probs_new[2][2]", ROWS, "x.r[2].lp[2]", 1),
        ("other[1][4]", ROWS, "[1].other[4]", 6),
        ("no[place]", ROWS, "x.no[place]", 1),
    ],
)
def test_a_place_in_what_the_user_wrote(path, rows, expected, line):
    error = InputError("expected 3 (as rewards[1] has)", path=f"x.{path}", line=1)
    Origin(SPELLED, rows).place(error, "x.")
    assert (error.path, error.line) == (expected, line)
    assert ("(as r[1].score has)" in error.message) == (path != "no[place]")


@pytest.mark.parametrize(
    ("value", "text"),
    [(10**400, "inf"), (-(10**400), "-inf"), (5, "5.0"), (2**70, "1.1805916207174113e+21")],
)
def test_integers_beyond_floats(value, text):
    assert str(places.as_float(value)) == text


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([0.5] * 5, ""),
        ([0.5] * 6, "look like probabilities"),
        ([1.0] * 6, "look like probabilities"),
        ([1.0] * 5 + [1.5], "negate them"),
        ([0.0] * 5 + [1.5], ""),
        ([0.0] * 8 + [1.5] * 2, "negate them"),
        ([0.0] * 9 + [1.5] * 2, ""),
        ([0.0] * 6, ""),
        ([-0.5] * 8 + [1.5, 0.25], "look like logits"),
        ([-0.5] * 9 + [1.5], ""),
        ([0.5] * 5 + [float("nan")], ""),
        ([0.5] * 6 + [float("inf")], "look like probabilities"),
    ],
)
def test_what_numbers_seem_to_be(numbers, said):
    found = guess_values(np.array(numbers))
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("row", "count", "deep", "said"),
    [
        ([-1.0, 2.0], 3, True, "the 2 numbers in each list of lp look like logits"),
        ([-1.0, -2.0], 3, True, "lp is nested as several groups are: if its 2 numbers"),
        ([-1.0, 0.0], 3, True, "lp is nested as several groups are: if its 2 numbers"),
        ([-1.0], 3, True, ""),
        ([-1.0, "x"], 3, True, ""),
        ([-1.0, 2.0], 3, False, ""),
        ([-1.0] * 800 + [1.0] * 200, 2, False, "the 1,000 numbers in each list of lp look like"),
        ([-1.0] * 801 + [1.0] * 199, 2, False, ""),
        ([-1.0] * 799 + [1.0] * 200, 2, False, ""),
    ],
)
def test_what_lists_seem_to_be(row, count, deep, said):
    column = [[row] * count] if deep else [row] * count
    found = guess_rows("lp", column, [len(row)] * count, deep=deep)
    assert said in found
    assert bool(found) == bool(said)
    assert guess_rows("lp", column, [len(row)] * count + [len(row) + 1], deep=deep) == ""


def test_what_is_said_of_a_record_is_of_it_alone():
    """Its neighbours hold what would look like something else."""
    bad = {"logps": [[0.5] * 6], "rewards": [1]}
    fine = {"logps": [[-9.0] * 50], "rewards": [1]}
    for before in range(3):
        made = [parse(one, source="d") for one in [*[fine] * before, bad, fine]]
        with pytest.raises(InputError, match="these look like probabilities") as caught:
            assemble(made)
        assert caught.value.record == before
        assert caught.value.path == "logps[0][0]"
