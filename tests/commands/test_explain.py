"""Pages made from the tables, reasons that hold, and arithmetic that adds up as printed."""

from __future__ import annotations

import json
import math
import re
import statistics

import numpy as np
import pytest
from files import some
from hypothesis import given
from hypothesis import strategies as st
from planted import DUMPS, record, telling, write

from grpo_cli import evaluate
from grpo_cli.commands.explain import variant as variant_module
from grpo_cli.commands.explain.explain import explain
from grpo_cli.commands.explain.facts import Steps
from grpo_cli.commands.explain.variant import describe_variant
from grpo_cli.commands.explain.why import _trend, rising
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError, UsageError
from grpo_cli.papers import UNSERVED
from grpo_cli.records import Reading
from grpo_cli.records.choose.grouping import Grouping
from grpo_cli.terminal.numbers import adding_up, decimals, equality
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import plan


def explained(path, *, record=None, response=None, **options):
    made = plan(options.pop("variant", "grpo"), **options)
    return explain(made, Reader([str(path)], Reading(record=record)), response)


def codes(path, **options):
    return {one["code"]: one["text"] for one in explained(path, **options)["why"]}


def test_every_variant_has_a_page(monkeypatch):
    monkeypatch.setattr(variant_module, "related", lambda _: ([], []))  # a second for each
    for name, row in VARIANTS.items():
        found = describe_variant(name)
        assert found["title"] == row.title, name
        assert found["note"] == row.note, name
        assert found["formula"].startswith("J = "), name
        assert all(stage["summary"] for stage in found["stages"]), name
        named = {one["name"] for one in found["hyperparameters"]}
        assert named == {name for stage in row_stages(row) for name in stage.values}, name


def test_a_loss_that_its_framework_dropped_says_so(grpo):
    assert "until    trl 1.7.1; newer releases do not have it" in grpo("explain", "gfpo").stdout
    assert json.loads(grpo("explain", "gfpo", "--json").stdout)["until"] == "trl 1.7.1"
    listed = " ".join(grpo("variants", "prime-rl/d*").stdout.split())
    assert "(also prime-rl/default; until prime-rl 0.9.0)" in listed


@pytest.mark.parametrize("name", some([*VARIANTS][::24], 4))
def test_rows_that_are_near_differ_at_one_or_two_stages(name):
    found = describe_variant(name)
    assert name not in found["same"]
    assert all(1 <= len(one["differs"]) <= 2 for one in found["near"])


def row_stages(row):
    names = ("advantage", "ratio", "surrogate", "kl", "correction", "aggregate")
    names += ("kl_aggregate", "entropy", "entropy_aggregate")
    return [bound for name in names if (bound := getattr(row, name)) is not None]


def test_what_is_the_same_gives_the_same_numbers():
    assert (
        "gspo-token" in describe_variant("gspo")["same"]
    )  # another ratio by name, one by what it gives
    one = record(5, [3, 8, 5, 2], [1.0, 0.0, 0.5, 0.2])
    for name in ("dr", "dapo", "gspo", "grpo"):
        for other in describe_variant(name)["same"]:
            assert evaluate(one, other).objective == pytest.approx(
                evaluate(one, name).objective, rel=1e-7
            )


def test_a_dual_clip_is_no_plain_clip():
    found = describe_variant("grpo")
    dual = next((one for one in found["near"] if one["variant"] == "dual-clip"), None)
    assert "dual-clip" not in found["same"]
    assert dual is None or any("dual_clip" in choice for choice in dual["differs"].values())


@pytest.mark.parametrize("name", UNSERVED)
def test_what_cannot_be_served_says_which_column_is_missing(name, grpo):
    for command in (["explain", name], ["eval", "-", "-v", name.upper()]):
        result = grpo(*command, stdin="{}")
        assert result.exit_code != 0
        said = " ".join((result.stderr or str(result.exception)).split())
        assert f"cannot be evaluated: {UNSERVED[name]}" in said
    assert "column" in UNSERVED[name] or "record has" in UNSERVED[name]


ON_POLICY = {"log_probs_new": [[-1.0, -2.0], [-1.5, -0.5]], "rewards": [1.0, 0.0]}


def test_zero_since_ratios_are_1_and_advantages_centred(tmp_path):
    found = codes(write(tmp_path / "a", [ON_POLICY]), variant="dapo")
    assert "centred" in found
    assert "equal length" in found["centred"]
    assert "gradient" in found
    assert "not zero" in found["gradient"]
    assert "beta" in found


def test_unequal_lengths_move_the_loss(tmp_path):
    longer = ON_POLICY | {"log_probs_new": [[-1.0, -2.0, -0.1], [-1.5]]}
    assert "lengths" in codes(write(tmp_path / "a", [longer]), variant="dapo")
    found = codes(
        write(tmp_path / "a", [longer]), variant="dr", stages={"aggregate": "response-mean"}
    )
    assert "centred" in found
    assert "lengths" not in found


def test_dead_groups_and_no_gradient(tmp_path):
    dead = ON_POLICY | {"rewards": [1.0, 1.0]}
    found = codes(write(tmp_path / "a", [dead]), variant="dr")
    assert "dead" in found
    assert "no-gradient" in found
    found = codes(write(tmp_path / "b", [dead, ON_POLICY]), variant="dr")
    assert "1 of 2 groups" in found["dead-groups"]


def test_reward_functions_that_cancel(tmp_path):
    both = ON_POLICY | {"rewards": [[1.0, 0.0], [0.0, 1.0]]}
    one = ON_POLICY | {"rewards": [[1.0, 0.0], [0.5, 0.25]]}
    same = ON_POLICY | {"rewards": [[1.0, 0.5], [1.0, 0.5]]}
    found = codes(write(tmp_path / "a", [one, both, same, both]), variant="dr")
    assert found["rewards-cancel"].startswith("in 2 groups the reward functions differ")
    assert "rewards-cancel" not in codes(write(tmp_path / "b", [one, same]), variant="dr")
    partly = ON_POLICY | {"rewards": [[1.0, None], [0.0, 1.0]]}  # what is summed differs
    assert "rewards-cancel" not in codes(write(tmp_path / "c", [partly]), variant="trl/grpo")


def test_empty_mask(tmp_path):
    empty = ON_POLICY | {"mask": [[0, 0], [0, 0]]}
    found = codes(write(tmp_path / "a", [empty]), variant="dr")
    assert next(iter(found)) == "empty"


def test_negative_loss(tmp_path):
    good = ON_POLICY | {"log_probs_old": [[-1.1, -2.1], [-1.5, -0.5]]}
    found = codes(write(tmp_path / "a", [good]), variant="dr")
    assert "negative" in found
    assert "either sign" in found["negative"]


def test_a_kl_that_dominates(tmp_path):
    far = ON_POLICY | {"log_probs_ref": [[-6.0, -7.0], [-8.0, -9.0]]}
    assert "kl" in codes(write(tmp_path / "a", [far]), hyperparameters={"beta": 1.0})
    same = ON_POLICY | {"log_probs_ref": ON_POLICY["log_probs_new"]}
    assert "reference" in codes(write(tmp_path / "b", [same]))


def test_one_token_that_makes_the_loss(tmp_path):
    found = codes(write(tmp_path / "a", [SPIKE]), variant="dr")
    assert "response 1, token 0" in found["one-token"]
    assert "ratio" in found


@pytest.mark.parametrize("variant", ["grpo", "dr", "gspo", "cispo"])
def test_parts_and_steps_add_up(variant, tmp_path):
    found = explained(write(tmp_path / "a", telling()), variant=variant)
    assert math.fsum(found["parts"].values()) == pytest.approx(found["total"]["objective"])
    steps = found["record"]
    contributions = [one["contribution"] for one in steps["responses"]]
    assert math.fsum(contributions) == pytest.approx(steps["objective"])
    for one in steps["responses"]:
        tokens = math.fsum(token["contribution"] for token in one["tokens"])
        rest = one["rest"]["contribution"] if one["rest"] else 0.0
        assert tokens + rest == pytest.approx(one["contribution"])


def test_large_records_show_what_matters_and_sum_the_rest():
    path = DUMPS / "trl-1.16.0-grpo.jsonl"
    steps = explained(path, record="grpo/5")["record"]
    assert steps["id"] == "grpo/5"
    shown = [one for one in steps["responses"] if "tokens" in one]
    assert 0 < len(shown) < len(steps["responses"])
    for one in shown:
        assert len(one["tokens"]) + (one["rest"]["count"] if one["rest"] else 0) == one["length"]
        assert one["tokens"][0]["token"] is not None
    alone = explained(path, record="grpo/5", response=2)["record"]
    assert [one["index"] for one in alone["responses"] if "tokens" in one] == [2]


def test_records_and_responses_that_are_not_there():
    path = DUMPS / "trl-1.16.0-grpo.jsonl"
    with pytest.raises(InputError, match="no record matches --record nope"):
        explained(path, record="nope")
    with pytest.raises(UsageError, match="responses 0 to 7"):
        explained(path, response=8)


def test_equal_numbers_are_printed_equal():
    assert adding_up([1 / 3] * 3, 1.0, 2) == ["0.33"] * 3
    assert equality(["0.33"] * 3, "1.00") == "≈"
    assert adding_up([1 / 3, 1 / 3, 1 / 3 + 1e-4], 1.0001, 2) == ["0.33", "0.33", "0.34"]
    assert equality(["0.33", "0.33", "0.34"], "1.00") == "="
    # one unit is left over: none of two equal values takes it, though rounding changed them most
    assert adding_up([0.124, 0.124, 0.251, 0.501], 1.0, 2) == ["0.12", "0.12", "0.25", "0.51"]


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20, unique_by=lambda one: round(one, 3)))
def test_printed_numbers_add_up(values):
    total = math.fsum(values)
    places = decimals([*values, total])
    texts = adding_up(values, total, places)
    assert round(math.fsum(map(float, texts)), places) == round(total, places)
    for text, value in zip(texts, values, strict=True):
        assert abs(float(text) - value) <= 1.5 * 10.0**-places
        assert re.fullmatch(r"-?\d+(\.\d+)?", text)


# ---- answers that were wrong --------------------------------------------------------------------


def test_a_policy_term_of_rounding_is_no_length_bias(tmp_path):
    # Response-mean: the lengths cancel, and what is left of three thirds is rounding.
    one = {"log_probs_new": [[-1.0] * 3, [-1.0] * 7, [-1.0] * 11], "rewards": [0.1, 0.2, 0.6]}
    one["log_probs_ref"] = [[-1.5] * len(row) for row in one["log_probs_new"]]
    assert "lengths" not in codes(write(tmp_path / "a", [one]), variant="grpo")


@pytest.mark.parametrize("variant", ["cispo", "rloo", "opo", "gpg", "max-rl"])
def test_a_surrogate_of_log_probs_adds_where_a_is_negative(variant, tmp_path):
    one = {
        "log_probs_new": [[-3.0, -2.0], [-0.1, -0.2], [-0.3, -0.1]],
        "log_probs_ref": [[-3.0, -2.0], [-0.1, -0.2], [-0.3, -0.1]],
        "rewards": [1.0, 0.0, 0.2],
    }
    found = explained(write(tmp_path / "a", [one]), variant=variant)
    text = next(one["text"] for one in found["why"] if one["code"] == "positive")
    assert found["parts"]["negative_advantages"] > 0 > found["parts"]["positive_advantages"]
    assert "A < 0 add" in text
    assert "A > 0 take away" in text


@pytest.mark.parametrize("batch", ["input", "record"])
@pytest.mark.parametrize("variant", ["trl/gmpo", "trl/rloo"])
def test_a_response_without_tokens_counts_by_the_sign_of_its_advantage(variant, batch, tmp_path):
    """TRL gives it s = A: of two responses with A = ±1, the one without tokens adds ∓1/2."""
    for sign, full, empty in ((1, "positive", "negative"), (-1, "negative", "positive")):
        one = {
            "log_probs_new": [[-0.2, -0.3], []],
            "log_probs_old": [[-0.2, -0.3], []],
            "advantages": [sign, -sign],
        }
        parts = explained(write(tmp_path / "a", [one]), variant=variant, batch=batch)["parts"]
        assert parts[f"{full}_advantages"] == pytest.approx(sign / 2, rel=1e-12)
        assert parts[f"{empty}_advantages"] == pytest.approx(-sign / 2, rel=1e-12)


SPIKE = {
    "log_probs_new": [[-0.5, -0.5], [-0.1, -0.5]],
    "log_probs_old": [[-0.5, -0.5], [-6.0, -0.5]],
    "rewards": [1.0, 0.0],
}


@pytest.mark.parametrize("bound", [{"dual_clip": 3.0}, {"delta": 4.0}])
def test_a_dual_clip_bounds_where_a_is_negative(bound, tmp_path):
    path = write(tmp_path / "a", [SPIKE])
    assert "ratio" in codes(path, variant="dr")
    found = codes(path, variant="dr", hyperparameters=bound)
    assert "ratio" not in found
    assert "no upper clip" not in found.get("one-token", "")


def test_all_groups_dead_under_a_kl(tmp_path):
    dead = ON_POLICY | {"rewards": [1.0, 1.0], "log_probs_ref": [[-2.0, -2.5], [-1.0, -1.5]]}
    found = codes(write(tmp_path / "a", [dead]), variant="grpo")
    assert "every A is 0" in found["all-dead"]


def test_every_token_clipped(tmp_path):
    far = {
        "log_probs_new": [[-0.1, -0.2], [-4.0, -5.0]],
        "log_probs_old": [[-2.1, -2.2], [-1.0, -1.0]],
        "rewards": [1.0, 0.0],
    }
    found = codes(write(tmp_path / "a", [far]), variant="dr")
    assert "no gradient" in found["all-clipped"]


def run_of(drift, gain, count=12):
    """Steps whose reward rises by ``gain`` and whose distance to the reference by ``drift``."""
    made = []
    for step in range(count):
        one = record(step, [6, 6, 6, 6], [gain * step + r for r in (0.0, 1.0, 0.5, 0.2)])
        one["log_probs_new"] = one["log_probs_old"]
        shift = drift * step
        one["log_probs_ref"] = [[x - shift for x in row] for row in one["log_probs_old"]]
        made.append(one)
    return made


def test_why_the_loss_rises_while_the_reward_rises(tmp_path):
    found = codes(write(tmp_path / "a", run_of(0.1, 0.05)), variant="grpo")
    assert "100% of that is the KL penalty" in found["rising"]
    assert "no measure of progress" in found["rising"]


@pytest.mark.parametrize(("drift", "gain"), [(0.0, 0.05), (0.1, 0.0), (0.1, -0.05)])
def test_nothing_rises_that_does_not(drift, gain, tmp_path):
    assert "rising" not in codes(write(tmp_path / "a", run_of(drift, gain)), variant="grpo")


def test_rows_of_one_response_are_told_to_be_grouped(tmp_path):
    rows = [
        {"uid": f"p{at // 2}", "log_probs_new": [-1.0, -0.5], "reward": float(at % 2)}
        for at in range(4)
    ]
    found = codes(write(tmp_path / "a", rows), variant="dr")
    assert "--group-by uid" in found["ungrouped"]
    assert "ungrouped" not in codes(write(tmp_path / "b", [ON_POLICY]), variant="dr")


def test_what_does_not_hold_is_not_said(tmp_path):
    """Moved ratios, live groups, a reference that differs: its sign and its gradient alone."""
    found = codes(write(tmp_path / "a", telling()))
    assert {*found} in ({"negative", "gradient"}, {"positive", "gradient"})
    assert "on-policy" in codes(write(tmp_path / "b", [ON_POLICY]), variant="dapo")


UNEQUAL = {"log_probs_new": [[-1.0] * 2, [-1.0] * 6], "rewards": [1.0, 0.0]}
MOVED = {"log_probs_new": [[-1.0], [-1.0]], "log_probs_old": [[-1.1], [-1.1]], "rewards": [1, 0]}
MANY = {"log_probs_new": [[-1.0] * 8, [-1.0] * 2], "log_probs_old": [[-1.1] * 8, [-1.0] * 2]}
FAR = ON_POLICY | {"log_probs_ref": [[-6.0, -7.0], [-8.0, -9.0]]}
LOGS = {"log_probs_new": [[-3.0, -2.0], [-0.1, -0.2], [-0.3, -0.1]], "rewards": [1, 0, 0.2]}
TURNED = LOGS | {"log_probs_new": [*reversed(LOGS["log_probs_new"])], "rewards": [1, 0.2, 0]}
DEAD = ON_POLICY | {"rewards": [1.0, 1.0]}
NO_KL, STILL = ("beta", "β = 0"), ("on-policy", "every ratio is exactly 1")


@pytest.mark.parametrize(
    ("records", "options", "wanted"),
    [  # by hand, as the comments have it
        (  # A = ±√0.5 over 8 tokens: 6A/8, 2A/8; the norm is A/√8
            [UNEQUAL],
            {"variant": "dapo"},
            [
                ("positive", "A < 0 take away 0.53033, those with A > 0 add 0.176777"),
                ("lengths", "(2 to 6 tokens), and longer responses weigh more"),
                *(NO_KL, STILL, ("gradient", "0.25")),
            ],
        ),
        (
            [ON_POLICY],
            {"variant": "dapo"},
            [("centred", "over responses of equal length"), NO_KL, STILL, ("gradient", "0.353553")],
        ),
        (  # e^0.1·0.5/2 each; 1.10517·0.25·√2
            [MOVED],
            {"variant": "dr"},
            [("cancels", "with A > 0 add, those with A < 0"), NO_KL, ("gradient", "0.390737")],
        ),
        (  # A = ±0.5 over two responses: 0.5·2/2, 0.5·(e^5.9 + 1)/2; 91.2593 of 92.0094
            [SPIKE],
            {"variant": "dr"},
            [
                ("positive", "A < 0 take away 91.5094, those with A > 0 add 0.5"),
                (
                    "one-token",
                    "99% of all contributions: record 0, response 1, token 0, ratio 365.037, A "
                    "-0.5; no upper clip",
                ),
                ("ratio", "ratios reach 365.037"),
                *(NO_KL, ("gradient", "91.2604")),
            ],
        ),
        (  # 8·e^0.1·0.5/2 and 2·0.5/2
            [MANY | {"rewards": [1, 0]}],
            {"variant": "dr"},
            [
                ("negative", "A > 0 add 2.21034, those with A < 0 -0.5"),
                ("sums", "10 tokens over 2 (responses)"),
                *(NO_KL, ("gradient", "0.85773")),
            ],
        ),
        (  # a loss of 1.71034/2
            [MANY | {"rewards": [0.5, 0]}],
            {"variant": "dr"},
            [("negative", "1.10517"), NO_KL, ("gradient", "0.428865")],
        ),
        (  # k3 at d = 5, 5, 6.5 and 8.5: (4.00674 + (5.5015 + 7.5002)/2)/2
            [FAR],
            {"hyperparameters": {"beta": 1.0}},
            [("kl", "the KL penalty, 5.2538, outweighs"), STILL, ("gradient", "0.611677")],
        ),
        (  # A = 0.6, −0.4, −0.2 over σ = 0.52915: 1.13389·5/6; (0.75593·0.3 + 0.37796·0.4)/6
            [LOGS],
            {"variant": "cispo"},
            [
                ("positive", "A < 0 add 0.0629941, those with A > 0 take away 0.944911: the"),
                ("one-token", "56% of all contributions: record 0, response 0, token 0, ratio 1"),
                *(NO_KL, STILL, ("gradient", "")),
            ],
        ),
        (  # A = 0.6, −0.2, −0.4: (0.2·0.3 + 0.4·5)/6; 0.2 of 0.34333 + 0.6·0.4/6
            [TURNED],
            {"variant": "gpg"},
            [
                ("negative", "so where A < 0 it adds 0.343333 to J"),
                ("one-token", "52% of all contributions: record 0, response 2, token 0, ratio 1"),
                *(NO_KL, STILL, ("gradient", "")),
            ],
        ),
        (
            [DEAD],
            {"variant": "dr"},
            [("dead", "so every A is 0"), NO_KL, STILL, ("no-gradient", "nothing")],
        ),
        (
            [DEAD, ON_POLICY, DEAD],
            {"variant": "dr"},
            [
                ("centred", "equal length"),
                ("dead-groups", "2 of 3 groups"),
                *(NO_KL, STILL, ("gradient", "")),
            ],
        ),
        (  # k3 at d = 1, 0.8, −0.5 and −0.4, times 0.04
            [DEAD | {"log_probs_ref": [[-2.0, -2.8], [-1.0, -0.1]]}],
            {},
            [
                ("kl", "the KL penalty, 0.00857754, outweighs"),
                ("all-dead", "every A is 0"),
                *(STILL, ("gradient", "")),
            ],
        ),
    ],
)
def test_all_that_is_said(records, options, wanted, tmp_path):
    found = codes(write(tmp_path / "a", records), **options)
    assert [*found] == [code for code, _ in wanted]
    for code, part in wanted:
        assert part in found[code]


def test_ratios_above_ten_are_told(tmp_path):
    for ratio, told in ((10.5, True), (9.5, False)):
        one = SPIKE | {"log_probs_old": [[-0.5] * 2, [-0.1 - math.log(ratio), -0.5]]}
        assert ("ratio" in codes(write(tmp_path / "a", [one]), variant="dr")) == told


def steps_of(losses, rewards, penalties) -> Steps:
    """Records of two chunks."""
    cut = [[np.array(one[:3]), np.array(one[3:])] for one in (losses, rewards, penalties)]
    return Steps(*cut)


def standard_errors(values) -> float:
    places = range(len(values))
    r = statistics.correlation(places, values)
    return r * math.sqrt((len(values) - 2) / (1 - r * r))


WAVES = [0.0, 0.9, -0.4, 1.3, 0.2, 1.1, 0.5, 1.6, 0.3, 1.9]
NEARLY, JUST = ([one + by * at for at, one in enumerate(WAVES)] for by in (0.016, 0.018))


def test_a_rise_is_one_from_two_standard_errors_on():
    straight = [0.1 * at for at in range(10)]
    assert 2.02 > standard_errors(JUST) > 2.0 > standard_errors(NEARLY) > 1.98
    for losses, rewards in ((JUST, straight), (straight, JUST)):
        assert [*rising(steps_of(losses, rewards, losses))]
    for losses, rewards in ((NEARLY, straight), (straight, NEARLY)):
        assert not [*rising(steps_of(losses, rewards, losses))]
    assert not [*rising(steps_of(straight[:3], straight[:3], straight[:3]))]
    assert [*rising(steps_of(straight[:4], straight[:4], straight[:4]))]


def test_a_level_is_no_rise():
    assert _trend(np.ones(5)) == 0.0
    assert _trend(np.arange(5.0)) == math.inf == -_trend(-np.arange(5.0))


def test_how_much_of_a_rise_is_the_kl():
    losses = [0.1 * at + 0.01 * (at % 3) for at in range(10)]
    rewards = [2.0 + 0.2 * at for at in range(10)]
    for share, told in ((0.7, "70% of that is the KL penalty"), (1.5, "100% of that is the KL")):
        penalties = [share * one for one in losses]
        (found,) = rising(steps_of(losses, rewards, penalties))
        assert f"; {told}" in found.text
        first, last = (math.fsum(few) / 2 * share for few in (losses[:2], losses[-2:]))
        assert f"from {first:.4g} to {last:.4g}" in found.text
    assert "rises from 0.055 to 0.86 while the mean reward rises from 2.1 to 3.7" in found.text
    assert "over 10 records" in found.text
    (found,) = rising(steps_of(losses, rewards, [0.45 * one for one in losses]))
    assert "that is the policy term, not the KL" in found.text


def given(*advantages, **more):
    """Two tokens and six, whose ratios are 1."""
    return UNEQUAL | {"advantages": [*advantages], "rewards": None} | more


NEAR = {"log_probs_ref": [[-1.5] * 2, [-1.5] * 6]}


@pytest.mark.parametrize(
    ("record", "options", "code", "told"),
    [
        # J is tanh(δ/2) of Σ|w·c·s|, δ the difference of the log ratios
        (MOVED | {"log_probs_old": [[-1.1], [-1.1 + 1.8e-6]]}, {"variant": "dr"}, "cancels", True),
        (MOVED | {"log_probs_old": [[-1.1], [-1.1 + 2.2e-6]]}, {"variant": "dr"}, "cancels", False),
        # the sum of the advantages beside Σ|A|, 1e-5
        (given(1.0, -1.0 + 1.8e-5), {"variant": "dapo"}, "lengths", True),
        (given(1.0, -1.0 + 2.2e-5), {"variant": "dapo"}, "lengths", False),
        # a policy term of a millionth of its parts, beside a KL
        (given(1.0, -1.0 + 2.2e-6, **NEAR), {}, "lengths", True),
        (given(1.0, -1.0 + 1.8e-6, **NEAR), {}, "lengths", False),
        # a KL over 1,100 tokens is not 0 beside itself
        (
            {
                "log_probs_new": [[-1.0] * 1100],
                "log_probs_ref": [[-1.5] * 1100],
                "rewards": [1.0],
            },
            {"variant": "bnpo"},
            *("kl", True),
        ),
        # sums are told of where |loss| > 1, over less than half as many as there are tokens
        (MANY | {"rewards": [0.0, 0.6]}, {"variant": "dr"}, "sums", True),
        (MANY | {"rewards": [0.0, 0.57]}, {"variant": "dr"}, "sums", False),
        (MANY | {"rewards": [0.0, 9.0]}, {"variant": "dapo"}, "sums", False),
    ],
)
def test_where_a_reason_begins_to_hold(record, options, code, told, tmp_path):
    assert (code in codes(write(tmp_path / "a", [record]), **options)) == told


def test_rows_that_need_no_grouping_are_not_told_of_it(tmp_path):
    rows = [
        {"uid": f"p{at // 2}", "log_probs_new": [-1.0, -0.5], "reward": float(at % 2)}
        for at in range(4)
    ]
    path = write(tmp_path / "a", rows)
    grouped = Reader([str(path)], Reading(grouping=Grouping((("uid",),))))
    assert "ungrouped" not in [one["code"] for one in explain(plan("dr"), grouped)["why"]]
    assert "ungrouped" not in codes(write(tmp_path / "b", rows[:1]), variant="dr")
    others = [{**one, "name": one["uid"]} for one in rows]
    for one in others:
        del one["uid"]
    assert "ungrouped" not in codes(write(tmp_path / "c", others), variant="dr")
    for one in others:
        one |= {"group_index": 3}
    assert (
        "--group-by group_index" in codes(write(tmp_path / "d", others), variant="dr")["ungrouped"]
    )


def test_what_records_of_other_settings_say_together(tmp_path):
    """Each is evaluated apart; a reason holds of all of them, or is not told."""
    other = {"hyperparameters": {"epsilon": 0.1}}
    wide = UNEQUAL | {"log_probs_new": [[-1.0] * 9, [-1.0] * 3]}
    found = codes(write(tmp_path / "a", [UNEQUAL, wide | other, UNEQUAL]), variant="dapo")
    assert "(2 to 9 tokens)" in found["lengths"]
    found = codes(write(tmp_path / "b", [wide | other, UNEQUAL]), variant="dapo")
    assert "(2 to 9 tokens)" in found["lengths"]
    uncentred = given(1.0, 0.5)
    assert "lengths" not in codes(write(tmp_path / "c", [uncentred, wide | other]), variant="dapo")
    still = ON_POLICY | {"log_probs_ref": ON_POLICY["log_probs_new"]}
    gone = ON_POLICY | {"log_probs_ref": [[-1.1, -2.0], [-1.5, -0.5]]} | other
    assert "reference" in codes(write(tmp_path / "d", [still, still | other]))
    for records in ([still, gone], [gone, still]):
        assert "reference" not in codes(write(tmp_path / "e", records))
    free = [SPIKE, SPIKE | {"hyperparameters": {"dual_clip": 3.0}}]
    assert "ratio" in codes(write(tmp_path / "f", free[:1]), variant="dr")
    for records in (free, free[::-1]):
        assert "ratio" not in codes(write(tmp_path / "g", records), variant="dr")
    off, on = ({"hyperparameters": {"beta": beta}} for beta in (0.0, 0.1))
    assert "beta" in codes(write(tmp_path / "h", [gone | off]))
    assert "beta" not in codes(write(tmp_path / "i", [gone | off, gone | on]))


def test_the_place_of_the_largest_token(tmp_path):
    """In the second record's third response; its first two tokens as written are masked."""
    far = {
        "id": "far",
        "log_probs_new": [[-0.5] * 3, [-0.5], [-0.5, -0.5, -0.5, -0.1]],
        "log_probs_old": [[-0.5] * 3, [-0.5], [-0.5, -0.5, -0.5, -6.0]],
        "mask": [[1, 0, 1], [1], [0, 0, 1, 1]],
        "rewards": [1.0, 1.0, 0.0],
    }
    small = SPIKE | {"log_probs_old": [[-0.5] * 2, [-2.0, -0.5]]}
    near = far | {"id": "near", "log_probs_old": [[-0.5] * 3, [-0.5], [-0.5] * 4]}
    for records in ([small, far], [far, small], [near, far]):
        found = codes(write(tmp_path / "a", records), variant="dr")
        assert "record far, response 2, token 3, ratio 365.037" in found["one-token"]


def test_every_response_there_is_can_be_asked_for():
    for response in (0, 7):
        steps = explained(DUMPS / "trl-1.16.0-grpo.jsonl", record="grpo/5", response=response)
        shown = [one["index"] for one in steps["record"]["responses"] if "tokens" in one]
        assert shown == [response]


@pytest.mark.parametrize(
    ("ratio", "advantage", "told"), [(1.25, -1, 1), (1.15, -1, 0), (1.25, 1, 0)]
)
def test_where_no_upper_clip_acts_on_the_largest_token(ratio, advantage, told, tmp_path):
    one = {
        "log_probs_new": [[-1.0], [-1.0]],
        "log_probs_old": [[-1.0 - math.log(ratio)], [-0.1]],
        "advantages": [advantage, 0.01],
    }
    found = codes(write(tmp_path / "a", [one]), variant="dr")["one-token"]
    assert ("no upper clip acts on a ratio where A < 0" in found) == told


DIFFER = {
    "log_probs_new": [[-1.0, -0.5], [-1.0], [-0.2], [-0.4]],
    "rewards": [1.0, 0.0, 0.0, 1.0],
    "advantages": [0.0, 0.0, 0.0, 0.0],
}
"""Rewards that differ, and advantages of 0 that the record gives."""
ALIKE = DIFFER | {"rewards": [1.0] * 4}
ALIVE = DIFFER | {"advantages": [1.0, 0.0, 0.0, -1.0]}
LONE = {"log_probs_new": [[-1.0, -0.5]], "rewards": [1.0]}
HOW = "--advantage group-std computes advantages from them"


@pytest.mark.parametrize(
    ("records", "options", "code", "text"),
    [
        (
            [DIFFER],
            {"variant": "dapo"},
            "dead",
            "the loss is 0: every advantage in your data is 0, though the rewards differ in 1 "
            f"group of 1; {HOW}",
        ),
        (
            [DIFFER, ALIKE],
            {"variant": "dr"},
            "dead",
            "the loss is 0: every advantage in your data is 0, though the rewards differ in 1 "
            "group of 2; --advantage group-mean computes advantages from them",
        ),
        ([ALIKE], {"variant": "dapo"}, "dead", "the loss is 0: every advantage in your data is 0"),
        (
            [DIFFER | {"rewards": None}],
            {"variant": "dapo"},
            "dead",
            "the loss is 0: every advantage in your data is 0",
        ),
        (
            [DIFFER | {"log_probs_ref": [[-0.5, -0.5], [-1.0], [-0.2], [-0.4]]}],
            {},
            "all-dead",
            "every advantage in your data is 0, though the rewards differ in 1 group of 1: no "
            f"reward is in this loss, only the KL or the entropy moves the policy; {HOW}",
        ),
        (
            [DIFFER, ALIVE],
            {"variant": "dapo"},
            "dead-groups",
            "1 of 2 groups has no advantage but 0; they still count in the denominator; the "
            f"rewards differ in 1 of them: {HOW}",
        ),
        # ALIKE's own advantages are not asked for: those of its rewards, which are equal
        (
            [ALIKE],
            {"variant": "dr", "stages": {"advantage": "group-mean"}},
            "dead",
            "the loss is 0: in every group all rewards are equal, so every A is 0",
        ),
        # Σ(r − r̄)² is below std_min: an advantage that is computed and 0 though rewards differ
        (
            [DIFFER],
            {"variant": "grpo-k1", "stages": {"advantage": "group-std"}}
            | {"hyperparameters": {"std_min": 9.0, "beta": 0.0}},
            "dead",
            "the loss is 0: --advantage group-std makes every A 0, though the rewards differ in 1 "
            "group of 1",
        ),
        (
            [LONE, LONE],
            {"variant": "dr"},
            "dead",
            "the loss is 0: every group is a single response, so every A is 0",
        ),
    ],
)
def test_why_every_advantage_is_0(records, options, code, text, tmp_path):
    found = codes(write(tmp_path / "a", records), **options)
    assert found[code] == text
