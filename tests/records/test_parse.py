import math
from array import array

import pytest

from grpo_cli.errors import InputError
from grpo_cli.records import assemble, parse

FLAT = [-1.0, -2.0, -3.0]


def tokens(record, name="log_probs_new"):
    return array("d", record.columns[name]).tolist()


def test_one_number_per_response():
    record = parse({"logps": FLAT, "rewards": [1, 2, 3]})
    assert (record.nested, record.widths, tokens(record)) == (1, [1, 1, 1], FLAT)
    assert record.rewards == [1, 2, 3]


@pytest.mark.parametrize(
    "more",
    [
        {"reward": 1},
        {"advantage": 0.5},
        {"tokens": ["a", "b", "c"]},
        {"completion_ids": [1, 2, 3], "rewards": [1.0]},
        {"token_ids": [1, 2, 3], "advantages": [1, 2, 3]},
        {"reward": 1, "advantages": [1, 2, 3], "mask": [1, 0, 1], "logp_per_token": FLAT},
    ],
)
def test_one_response(more):
    record = parse({"logps": FLAT} | more if "logp_per_token" not in more else more)
    assert (record.nested, record.widths, tokens(record)) == (1, [3], FLAT)
    assert assemble([record]).responses.count == 1
    if isinstance(more.get("advantages"), list):
        assert array("d", record.advantages).tolist() == [1, 2, 3]
    if "tokens" in more:
        assert record.tokens == [["a", "b", "c"]]


def test_a_flat_list_with_a_reward_each_is_not_one_response():
    record = parse({"logps": FLAT, "rewards": [1, 2, 3], "tokens": ["a", "b", "c"]})
    assert record.widths == [1, 1, 1]
    assert record.tokens == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("value", [[-1.0], [[-1.0]], [[[-1.0]]]])
@pytest.mark.parametrize("reward", [1, [1], [[1, 2]], {"a": 1, "b": 2}, {"a": [1]}])
def test_one_token_nested_anyhow(value, reward):
    record = parse({"logps": value, "reward": reward})
    assert (record.widths, tokens(record), len(record.rewards)) == ([1], [-1.0], 1)


def test_one_number_is_that_of_one_response():
    """And not of its one token, though that comes to the same widths."""
    record = parse({"logps": [-1.0], "advantages": [0.5]})
    assert record.advantages == [0.5]
    with pytest.raises(InputError, match=r"got 2; logps is a flat list, a number per response"):
        parse({"logps": [-1.0], "rewards": [1, 2]})


def test_tokens_of_responses():
    record = parse({"logps": [[-1, -2], [], [-3.0]], "advantages": [[1, 2], [], [3]]})
    assert (record.nested, record.widths, tokens(record)) == (2, [2, 0, 1], FLAT)
    assert array("d", record.advantages).tolist() == [1, 2, 3]
    assert record.groups is None


def test_nothing_but_empty_responses():
    record = parse(
        {"logps": [[], []], "mask": [[], []], "advantages": [[], []], "tokens": [[], []]}
    )
    assert (record.widths, record.columns["log_probs_new"], record.advantages) == ([0, 0], b"", b"")
    assert assemble([record]).responses.total == 0


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ({"rewards": [[1, 2], [3]]}, "rewards", [1, 2, 3]),
        ({"rewards": [1, 2, 3]}, "rewards", [1, 2, 3]),
        ({"rewards": [[[1, 4], [2, 5]], [[3, 6]]]}, "rewards", [[1, 4], [2, 5], [3, 6]]),
        (
            {"rewards": {"a": [[1, 2], [3]], "b": [4, 5, 6]}},
            "rewards",
            [[1, 4], [2, 5], [3, 6]],
        ),
        ({"advantages": [[1, 2], [3]]}, "advantages", [1, 2, 3]),
        ({"advantages": [1, 2, 3]}, "advantages", [1, 2, 3]),
        (
            {"advantages": [[[1, 2], [3]], [[4]]]},
            "advantages",
            array("d", [1, 2, 3, 4]).tobytes(),
        ),
        ({"group_ids": ["p", "q"]}, "group_labels", ["p", "q"]),
        ({"group_ids": ["p", "p", "q"]}, "group_labels", ["p", "q"]),
        ({"group_ids": [["p", "p"], ["q"]]}, "group_labels", ["p", "q"]),
        ({"tokens": [[["a", "b"], ["c"]], [["d"]]]}, "tokens", [["a", "b"], ["c"], ["d"]]),
        ({"mask": [[[1, 0], [True]], [[False]]]}, "mask", b"\1\0\1\0"),
    ],
)
def test_groups_of_responses(more, field, value):
    record = parse({"logps": [[[-1, -2], [-3]], [[-4]]]} | more)
    assert (record.nested, record.widths, record.shape) == (3, [2, 1, 1], [2, 1])
    assert (tokens(record), record.groups) == ([-1, -2, -3, -4], [0, 0, 1])
    assert getattr(record, field) == value


@pytest.mark.parametrize(
    ("more", "groups", "labels"),
    [
        ({}, None, None),
        ({"group_size": 4}, None, None),
        ({"num_generations": 2}, [0, 0, 1, 1], None),
        ({"group_size": 1.0}, [0, 1, 2, 3], None),
        ({"prompt_id": 7}, None, [7]),
        ({"uid": ["b", "a", "b", "a"]}, [0, 1, 0, 1], ["b", "a"]),
        ({"uid": [0.5, 1, 1, 1]}, [0, 1, 1, 1], [0.5, 1]),
        ({"uid": "aabb"}, None, ["aabb"]),
        ({"uid": [2, 1, 2, 1], "group_size": 2}, [0, 1, 0, 1], [2, 1]),
    ],
)
def test_flat_groups(more, groups, labels):
    record = parse({"logps": [[-1], [-2], [-3], [-4]]} | more)
    assert (record.groups, record.group_labels) == (groups, labels)


def test_reward_functions():
    record = parse({"logps": [[-1], [-2]], "rewards": {"format": [1, 0], "right": [2, 3]}})
    assert record.rewards == [[1, 2], [0, 3]]
    assert record.reward_names == ("format", "right")
    assert parse({"logps": [[-1], [-2]], "scores": [[1], [2]]}).rewards == [[1], [2]]


def test_sample_level():
    record = parse(
        {
            "rhos": [1.2, 0.8],
            "A": [1, -1],
            "pi_theta_old": [0.9, 1.1],
            "pi_theta_ref": [1.0, 0.5],
            "beta": 0.01,
        }
    )
    assert tokens(record, "ratios") == [1.2, 0.8]
    assert tokens(record, "log_probs_old") == [math.log(0.9), math.log(1.1)]
    assert tokens(record, "log_probs_ref") == [0.0, math.log(0.5)]
    new = [math.log(0.9) + math.log(1.2), math.log(1.1) + math.log(0.8)]
    assert tokens(record) == pytest.approx(new, rel=1e-15)
    assert assemble([record]).log_probs_old.max() > 0


def test_ratios_alone():
    batch = assemble([parse({"ratios": [[1.0, 2.0], [3.0]], "advantages": [1, 2]})])
    assert batch.ratios.tolist() == [1, 2, 3]
    assert batch.log_probs_new is None
    assert batch.log_probs_old is None


def test_ratios_with_old_log_probs():
    record = parse({"ratios": [1.0, 2.0], "log_probs_old": [-1, -2]})
    assert tokens(record) == [-1, -2 + math.log(2)]
    assert record.derived == ("log_probs_new",)


@pytest.mark.parametrize("junk", [None, math.nan, math.inf, 7, -(10**400), True, False, 0])
def test_what_is_masked_does_not_matter(junk):
    row = {"logps": [[-1, junk], [-2]], "mask": [[1, 0.0], [True]]}
    row |= {"advantages": [[5, junk], [6]], "entropy": [[5, junk], [6]]}
    batch = assemble([parse(row)])
    assert batch.log_probs_new.tolist() == [-1, -2]
    assert batch.token_advantages.tolist() == [5, 6]
    sample = {"rhos": [2, junk], "probs_old": [1, junk], "mask": [1, 0], "A": [1, 2]}
    assert assemble([parse(sample)]).log_probs_new.tolist() == [math.log(2)]


def test_exact_zeros_are_log_probs():
    record = parse({"logps": [[-0.0, 0.0, 0], [0.0] * 600]})
    assert assemble([record]).log_probs_new.tolist() == [0.0] * 603


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        ({}, {}),
        ({"beta": 1}, {"beta": 1.0}),
        ({"hyper": {"kl_coef": 0.5}, "beta": 0.5}, {"beta": 0.5}),
        (
            {"epsilon": 0.2, "params": {"epsilon_high": 0.3}},
            {"epsilon_high": 0.3, "epsilon_low": 0.2},
        ),
        ({"hyperparameters": None}, {}),
        ({"hyperparameters": {}}, {}),
    ],
)
def test_hyperparameters(more, settings):
    made = parse({"logps": [[-1]]} | more).hyperparameters
    assert made == settings
    assert [*made] == sorted(made)


@pytest.mark.parametrize(("value", "kept"), [("a", "a"), (3, 3), (None, None), ([1], None)])
def test_id(value, kept):
    assert parse({"logps": [[-1]], "id": value}).id == kept
