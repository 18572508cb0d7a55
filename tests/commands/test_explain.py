"""Pages made from the tables, reasons that hold, and arithmetic that adds up as printed."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import DUMPS, record, telling, write

from grpo_cli import evaluate
from grpo_cli.commands.explain.explain import explain
from grpo_cli.commands.explain.page import page
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records import Reading
from grpo_cli.terminal.rounding import adding_up, decimals
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import plan


def explained(path, *, record=None, response=None, **options):
    made = plan(options.pop("variant", "grpo"), **options)
    return explain(made, Reader([str(path)], Reading(record=record)), response)


def codes(path, **options):
    return {one["code"]: one["text"] for one in explained(path, **options)["why"]}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_has_a_page(name):
    found = page(name)
    row = VARIANTS[name]
    assert found["title"] == row.title
    assert found["note"] == row.note
    assert found["formula"].startswith("J = ")
    assert all(stage["summary"] for stage in found["stages"])
    named = {one["name"] for one in found["hyperparameters"]}
    assert named == {name for stage in row_stages(row) for name in stage.values}
    assert name not in found["same"]
    assert all(1 <= len(one["differs"]) <= 2 for one in found["near"])


def row_stages(row):
    names = ("advantage", "ratio", "surrogate", "kl", "correction", "aggregate")
    names += ("kl_aggregate", "entropy", "entropy_aggregate")
    return [bound for name in names if (bound := getattr(row, name)) is not None]


def test_what_is_the_same_gives_the_same_numbers():
    one = record(5, [3, 8, 5, 2], [1.0, 0.0, 0.5, 0.2])
    for name in ("dr", "dapo", "gspo", "grpo"):
        for other in page(name)["same"]:
            assert evaluate(one, other).objective == pytest.approx(
                evaluate(one, name).objective, rel=1e-7
            )


def test_a_dual_clip_is_no_plain_clip():
    found = page("grpo")
    dual = next((one for one in found["near"] if one["variant"] == "dual-clip"), None)
    assert "dual-clip" not in found["same"]
    assert dual is None or any("dual_clip" in choice for choice in dual["differs"].values())


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
    assert "rewards-cancel" in codes(write(tmp_path / "a", [both]), variant="dr")


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
    spike = {
        "log_probs_new": [[-0.5, -0.5], [-0.1, -0.5]],
        "log_probs_old": [[-0.5, -0.5], [-6.0, -0.5]],
        "rewards": [1.0, 0.0],
    }
    found = codes(write(tmp_path / "a", [spike]), variant="dr")
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


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_printed_numbers_add_up(values):
    total = math.fsum(values)
    places = decimals([*values, total])
    texts = adding_up(values, total, places)
    assert round(math.fsum(map(float, texts)), places) == round(total, places)
    for text, value in zip(texts, values, strict=True):
        assert abs(float(text) - value) <= 1.5 * 10.0**-places
        assert re.fullmatch(r"-?\d+(\.\d+)?", text)
