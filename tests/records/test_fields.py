import pytest
from files import each

from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import KNOWN
from grpo_cli.records import parse
from grpo_cli.records.fields import ALIASES, GROUPS, TOKEN_COLUMNS, read_fields, unknown_keys

VALUES = {
    "rewards": [1],
    "reward_baselines": [1],
    "advantages": [1],
    "mask": [[1, 1]],
    "group_ids": ["q"],
    "group_size": 1,
    "tokens": [["a", "b"]],
    "token_ids": [[1, 2]],
    "hyperparameters": {"beta": 0.5},
    "expected": {"loss": 0},
    "id": "x",
}
VALUES |= {name: [[0.0, -0.0]] for name in TOKEN_COLUMNS}
VALUES |= {name: [[1.0, 2.0]] for name in ("ratios", "probs_old", "probs_ref")}

PAIRS = [(name, alias) for name, aliases in ALIASES.items() for alias in (name, *aliases)]


@each(("name", "alias"), PAIRS)
def test_every_alias_says_what_the_canonical_name_says(name, alias):
    record = {alias: VALUES[name]}
    if name not in ("log_probs_new", "ratios"):
        record["log_probs_new"] = VALUES["log_probs_new"]
    made = parse(record)
    assert made.names[name] == alias
    column = {"probs_old": "log_probs_old", "probs_ref": "log_probs_ref"}.get(name, name)
    field = {"group_ids": "group_labels", "hyperparameters": "hyperparameters"}.get(name, name)
    if column in TOKEN_COLUMNS:
        assert column in made.columns
    elif name not in ("mask", "group_size"):
        assert getattr(made, field)


def test_no_name_means_two_things():
    names = [alias for _, alias in PAIRS]
    assert len(names) == len({*names})
    assert not KNOWN & {*names}


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (["action_log_probs"], {"log_probs_new": "action_log_probs"}),
        (
            ["action_log_probs", "logps"],
            {"log_probs_new": "logps", "log_probs_old": "action_log_probs"},
        ),
        (
            ["action_log_probs", "logps", "prox_logp"],
            {"log_probs_new": "logps", "log_probs_old": "prox_logp"},
        ),
        (
            ["action_log_probs", "rhos", "pi_theta_old"],
            {"ratios": "rhos", "probs_old": "pi_theta_old"},
        ),
    ],
)
def test_action_log_probs(keys, names):
    assert read_fields(dict.fromkeys(keys, 1)).names == names


def test_a_null_is_as_good_as_nothing():
    found = read_fields({"logps": 1, "log_probs": None, "action_log_probs": None, "beta": None})
    assert found.names == {"log_probs_new": "logps"}
    assert found.hyperparameters == ("beta",)


@each(
    "key",
    [
        "step",
        "framework",
        "prompt",
        "prompts",
        "prompt_ids",
        "response_id",
        "meta",
        "task",
        "uuid",
        "tag",
        "mas",
        "Mask!",
        "logs",
        "group",
        "completion",
        "metrics",
        "seed",
        "model",
        "value",
        "epoch",
    ],
)
def test_keys_beside_the_data_are_ignored(key):
    assert read_fields({key: 1}).names == {}


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("rewrads", "rewards"),  # swapped
        ("rewardss", "rewards"),  # added
        ("rewads", "rewards"),  # dropped
        ("rewarts", "rewards"),  # changed
        ("epsilonhigh", "epsilon_high"),
        ("paramz", "params"),
        ("log_probs_nwe", "log_probs_new"),
        ("action_log_prob", "action_log_probs"),
    ],
)
def test_one_slip_is_noticed(key, near):
    with pytest.raises(InputError) as caught:
        read_fields({key: 1})
    assert str(caught.value) == f"{key}: unknown key; did you mean {near}?"


@pytest.mark.parametrize(
    ("key", "known"),
    [
        *[("dvantages", True), ("advantaes", True), ("advantage_", True), ("advantagesx", True)],
        *[("xadvantages", True), ("advbntages", True), ("bdvantages", True), ("advantaged", True)],
        *[("davantages", True), ("advnatages", True), ("advantagse", True)],
        *[("vantages", False), ("advtages", False), ("advantagesxy", False)],
        *[("xxadvantages", False), ("badvantagesx", False), ("davantagse", False)],
        *[("bdvantaged", False), ("vdaantages", False)],
    ],
)
def test_one_slip_of_the_fingers_is_told(key, known):
    record = {"log_probs_new": [[-1.0]], key: [1.0]}
    if known:
        with pytest.raises(InputError, match=f"{key}: unknown key; did you mean advantage"):
            read_fields(record)
    else:
        assert read_fields(record).unknown == (key,)


@pytest.mark.parametrize(
    ("name", "unknown", "said"),
    [
        ("rewards", [], ""),
        ("rewards", ["step", "metrics"], ""),
        ("rewards", ["step", "note"], ": note"),
        (
            "rewards",
            ["note", "my_Score", "gain", "returns"],
            ": my_Score, returns, note, gain (--map rewards=my_Score)",
        ),
        ("log_probs_new", ["x", "old_logp", "ref_lp", "gen_lp"], ": x, old_logp, ref_lp, gen_lp"),
        ("log_probs_new", ["x", "old_lp", "lp"], ": lp, x, old_lp (--map log_probs_new=lp)"),
        ("log_probs_new", ["x", "reward_lp"], ": reward_lp, x (--map log_probs_new=reward_lp)"),
        ("log_probs_ref", ["base_lp"], ": base_lp (--map log_probs_ref=base_lp)"),
        ("rewards", [*"abcdefgh"], ": a, b, c, d, e, f, g, h"),
        ("rewards", [*"abcdefghi"], ": a, b, c, d, e, f, g, h, …"),
    ],
)
def test_keys_that_were_not_understood(name, unknown, said):
    expected = f"; keys that mean nothing here{said}" if said else ""
    assert unknown_keys(name, unknown) == expected


@pytest.mark.parametrize(
    ("value", "known"), [(["a", 1], True), (["a"], True), ([1], True), ([1.5], False), ("a", False)]
)
def test_groups_are_labels_where_they_are_lists_of_them(value, known):
    names = read_fields({"log_probs_new": [[-1.0]] * len(value), GROUPS: value}).names
    assert ("group_ids" in names) == known
