"""A trainer logs one loss for a step: steps are compared where records repeat it, or one has it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from command import answer, run
from files import each
from trended import write

from grpo_cli import evaluate, verify
from grpo_cli.errors import InputError

pytestmark = pytest.mark.more

Rows = list[dict[str, Any]]
STEPS, GROUP = 6, 5


@pytest.fixture(scope="module")
def steps() -> list[Rows]:
    """Steps of three prompts each."""
    random = np.random.default_rng(8)
    return [[_record(random, step) for _ in range(3)] for step in range(STEPS)]


def _record(random: np.random.Generator, step: int) -> dict[str, Any]:
    lengths = random.integers(4, 12, GROUP)
    old = [random.uniform(-3, -0.1, length) for length in lengths]
    new = [np.minimum(row + random.normal(0, 0.2, len(row)), -1e-3) for row in old]
    ref = [np.minimum(row + random.normal(0, 0.2, len(row)), -1e-3) for row in old]
    columns = {"log_probs_new": new, "log_probs_old": old, "log_probs_ref": ref}
    return {
        "step": step,
        **{name: [row.tolist() for row in rows] for name, rows in columns.items()},
        "rewards": random.integers(0, 4, GROUP).tolist(),
        "mask": [[1] * int(length) for length in lengths],
        "hyperparameters": {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.04},
    }


def logged(
    steps: list[Rows], loss: Callable[[Rows], float], only: int | None = None, key: str = ""
) -> Rows:
    """The records of all steps, which expect or have the loss of their step; or one of each."""
    made = copy.deepcopy(steps)
    for step in made:
        number = loss(step)
        for record in step if only is None else [step[only]]:
            record |= {key: number} if key else {"expected": {"loss": number}}
    return [record for step in made for record in step]


def right(step: Rows) -> float:
    return evaluate(step, "grpo").loss


@each(("only", "key"), [(None, ""), (0, ""), (-1, ""), (None, "loss"), (-1, "train/loss")])
def test_the_losses_of_steps_agree_with_steps(steps, only, key) -> None:
    found = verify(logged(steps, right, only, key), "grpo", causes=0)
    assert (found.batch, found.verified, found.differing) == ("step", STEPS, 0)


def test_standard_input_is_kept_for_its_steps(steps) -> None:
    lines = b"\n".join(map(orjson.dumps, logged(steps, right)))
    found = answer("verify", "-", "-v", "grpo", "--causes", 0, stdin=lines)
    assert (found["batch"], found["ok"]) == ("step", True)


@each(
    ("wrong", "places"),
    [((4, 5), "from step 4 on"), ((5,), "from step 5 on"), ((0, 4, 5), ""), ((2, 5), "")],
)
def test_the_step_from_which_on_records_differ_is_named(steps, wrong, places) -> None:
    """Also where one of the records after it agrees; not where chance may have left all before."""
    each = [record | {"expected": {"loss": right([record])}} for step in steps for record in step]
    for record in each[:-1]:
        record["expected"] = {"loss": record["expected"]["loss"] * 1.5 ** (record["step"] in wrong)}
    found = verify(each, "grpo", batch="record", causes=0)
    assert (found.differing, found.places) == (3 * len(wrong) - 1, places)
    assert found.records[0].step == 0


def test_the_only_wrong_step_is_named(steps) -> None:
    def wrong(step: Rows) -> float:
        return right(step) * (1.5 if step[0]["step"] == 4 else 1.0)

    found = verify(logged(steps, wrong), "grpo", causes=0)
    assert (found.verified, found.differing, found.places) == (STEPS, 1, "step 4")
    assert [one.id for one in found.records if not one.agrees] == [4]
    assert found.factor == pytest.approx(1.5)
    assert found.headline == (
        "differs: 1 of 6 steps differs (step 4): your loss is the computed one times 1.5"
    )


MISTAKES: dict[str, Callable[[Rows], float]] = {
    "β with the wrong sign (−β): the KL is added to the objective": lambda step: (
        2 * evaluate(step, "grpo", beta=0.0).loss - right(step)
    ),
    "KL missing (β = 0)": lambda step: evaluate(step, "grpo", beta=0.0).loss,
    "other denominator: aggregate token-mean instead of response-mean": lambda step: (
        evaluate(step, "grpo", stages={"aggregate": "token-mean"}).loss
    ),
    "mean over the responses of a group missing: your loss adds up their token means; divide each "
    "group's sum by 5": lambda step: GROUP * right(step),
}


@each("cause", MISTAKES)
def test_a_mistake_in_all_steps_is_named(steps, cause) -> None:
    found = verify(logged(steps, MISTAKES[cause]), "grpo", batch="step")
    assert (found.batch, found.differing, found.explained) == ("step", STEPS, STEPS)
    assert found.causes[0] == cause


@each("settings", [{"gradient_accumulation_steps": 3}, {"num_processes": 3}])
def test_a_step_adds_up_what_its_micro_batches_divide(steps, settings) -> None:
    made = copy.deepcopy(steps)
    for step in made:
        items = sum(len(row) for record in step for row in record["mask"])
        for record in step:
            record["hyperparameters"] |= settings | {"num_items_in_batch": items}

    def accumulated(row: str) -> Callable[[Rows], float]:
        ranks = settings.get("num_processes", 1)
        return lambda step: sum(evaluate([record], row).loss for record in step) / ranks

    for row in ("trl/dapo", "trl/grpo") if "num_processes" not in settings else ("trl/dapo",):
        found = verify(logged(made, accumulated(row)), row, causes=0)
        assert (found.batch, found.ok) == ("step", True)


def test_losses_of_records_are_compared_by_record(steps) -> None:
    made = [
        {**record, "expected": {"loss": 2 * right([record])}} for step in steps for record in step
    ]
    assert verify(made, "grpo", causes=0).batch == "record"
    with pytest.raises(InputError, match="of the same batch has, got"):
        verify(made, "grpo", batch="step")


def test_copies_of_a_record_are_no_step(steps) -> None:
    record = {**steps[0][0], "expected": {"loss": 3.0}}
    found = verify([record, record], "grpo", causes=0)
    assert (found.batch, found.verified) == ("record", 2)


@each("batch", ["step", "input"])
def test_a_flag_says_what_is_compared(steps, batch) -> None:
    several = steps if batch == "step" else [[record for step in steps for record in step]]
    found = verify(logged(several, right), "grpo", batch=batch)
    assert (found.ok, found.verified) == (True, len(several))


def test_records_of_other_columns_are_no_batch(steps) -> None:
    made = logged(steps, right)
    del made[1]["log_probs_ref"]
    with pytest.raises(InputError, match="columns or hyperparameters differ"):
        verify(made, "grpo", batch="step")


@each("words", [(), ("--on-error", "skip")])
def test_steps_that_cannot_be_joined_are_compared_by_record(steps, words, tmp_path) -> None:
    """Their records have other settings."""
    made = logged(steps, right)
    for at, record in enumerate(made):
        record["hyperparameters"] = record["hyperparameters"] | {"beta": 0.01 + 0.01 * at}
    found = answer("verify", write(tmp_path / "a", made), "-v", "grpo", "--causes", 0, *words)
    assert (found["batch"], found["verified"]) == ("record", len(made))


def with_gradients(batch: Rows, sign: float = 1.0, **settings: Any) -> Rows:
    """The records of a batch, which expect its loss and each their part of its gradient."""
    whole = evaluate(batch, "grpo", **settings)
    gradient = -sign * np.asarray(whole.breakdown.gradient)
    made = copy.deepcopy(batch)
    for record in made:
        ends = np.cumsum([len(row) for row in record["mask"]])
        rows = np.split(gradient[: ends[-1]], ends[:-1])
        gradient = gradient[ends[-1] :]
        expected = {"loss": sign * whole.loss, "loss_gradient": [row.tolist() for row in rows]}
        record["expected"] = expected
    return made


def recorded(steps: list[Rows], of: str) -> list[Rows]:
    """The batches of what a loss is of."""
    every = [record for step in steps for record in step]
    return {"record": [[one] for one in every], "step": steps, "input": [every]}[of]


@each("of", ["record", "step", "input"])
@each("has_steps", [True, False])
@each("gradients", [True, False])
@each("size", [GROUP, 2])
def test_a_right_loss_agrees_however_it_is_recorded(steps, of, has_steps, gradients, size) -> None:
    """Of a record, a step or the input; records of unequal sizes, of all steps or of one."""
    made = copy.deepcopy(steps if has_steps else steps[:1])
    for record in made[0][:2]:
        for name in ("log_probs_new", "log_probs_old", "log_probs_ref", "rewards", "mask"):
            record[name] = record[name][:size]
    batches = [with_gradients(batch) for batch in recorded(made, of)]
    for record in (record for batch in batches for record in batch):
        if not gradients:
            del record["expected"]["loss_gradient"]
        if not has_steps:
            del record["step"]
    found = verify([record for batch in batches for record in batch], "grpo", causes=0)
    assert (found.ok, found.verified) == (True, len(batches))


@each("only", [0, -1])
def test_one_record_of_a_step_has_its_loss_and_each_its_gradient(steps, only) -> None:
    made = [with_gradients(step) for step in steps]
    for step in made:
        for record in step:
            if record is not step[only]:
                del record["expected"]["loss"]
    found = verify([record for step in made for record in step], "grpo", causes=0)
    assert (found.batch, found.ok, found.verified) == ("step", True, STEPS)


def test_a_mistake_in_the_gradients_of_a_batch_is_named(steps) -> None:
    made = [record for step in steps for record in with_gradients(step, sign=-1.0)]
    found = verify(made, "grpo")
    assert (found.batch, found.explained) == ("step", STEPS)
    assert "sign" in found.causes[0]


def test_gradients_of_records_and_the_loss_of_a_batch_differ(steps) -> None:
    """Each number is of one batch."""
    made = copy.deepcopy(steps[0])
    for record in made:
        (alone,) = with_gradients([record])
        record["expected"] = alone["expected"] | {"loss": right(made)}
    found = verify(made, "grpo", causes=0)
    assert (found.batch, found.ok, found.records[0].first.key) == ("input", False, "loss_gradient")


def test_a_cause_of_later_records_explains_the_first(steps) -> None:
    """The first loss is off by what its digits leave, beyond what float32 does."""
    records = [record for step in steps for record in step]
    made = [{**one, "expected": {"loss": GROUP * right([one])}} for one in copy.deepcopy(records)]
    made[0]["expected"]["loss"] *= 1 + 4e-6
    found = verify(made, "grpo")
    assert found.explained == found.differing
    assert found.records[0].first is not None
    assert "5 is the number of responses" in (found.records[0].first.pattern or "")


def test_a_record_that_agrees_by_chance_does_not_hide_whose_the_losses_are(steps: list[Rows]):
    """The loss of the step, with −β; in one step it is that of the first record."""
    first = evaluate(steps[0][:1], "grpo").loss
    sign = MISTAKES["β with the wrong sign (−β): the KL is added to the objective"]
    found = verify(logged(steps, lambda step: first if step[0]["step"] == 0 else sign(step)))
    assert (found.batch, found.verified, found.explained) == ("step", STEPS, STEPS - 1)


@each(
    ("losses", "batch"),
    [
        (lambda step, _: step, "step"),  # of each step
        (lambda *_: 0, "step"),  # of the input
        (lambda step, at: None if at else step, "record"),  # of the first record of each step
    ],
)
def test_losses_that_nothing_explains_are_of_what_repeats_them(steps, losses, batch) -> None:
    """Of answers that say as much: where records repeat a loss, it is of the smallest batch."""
    made = copy.deepcopy([record for step in steps for record in step])
    for number, record in enumerate(made):
        if (loss := losses(record["step"], number % len(steps[0]))) is not None:
            record["expected"] = {"loss": 3.21 + 1.7 * loss}
    found = verify(made, "grpo", causes=0)
    assert (found.batch, found.ok, found.explained) == (batch, False, 0)


# ---- another row's numbers ----------------------------------------------------------------------


def other(name: str, **settings: Any) -> Callable[[Rows], float]:
    return lambda step: evaluate(step, name, **settings).loss


@each(("row", "settings"), [("dapo", {}), ("dr", {}), ("gspo", {}), ("dapo", {"std_eps": 1e-4})])
@each("asked", ["sapo"])
def test_a_row_that_gives_all_losses_is_named(steps, row, settings, asked) -> None:
    """Where no cause explains them."""
    made = logged(steps, other(row, **settings))
    found = verify(made, asked)
    wanted = row if not settings else f"{row} -p std_eps=0.0001"
    assert (found.ok, found.batch, found.agreeing) == (False, "step", STEPS)
    assert wanted in found.agrees_with
    assert found.headline.endswith(f"yours are the numbers of {found.agrees_with[0]}")
    assert all(not one.first.causes for one in found.records)
    name, _, rest = found.agrees_with[0].partition(" ")
    flags = {} if not rest else {"std_eps": 1e-4} if "std_eps" in rest else {"beta": 0.0}
    assert verify(made, name, **flags).ok


def test_rows_that_give_the_first_losses_only_are_not_named(steps) -> None:
    """Causes are then searched for as if no row had been tried."""

    def loss(step: Rows) -> float:
        return other("dr")(step) if step[0]["step"] < 2 else GROUP * right(step)

    found = verify(logged(steps, loss))
    assert (found.agrees_with, found.agreeing, found.explained) == ((), 0, STEPS - 2)


def test_a_cause_comes_before_a_row_that_was_not_asked_for(steps) -> None:
    found = verify(logged(steps, other("grpo", beta=0.0)), "grpo")
    assert (found.agrees_with, found.explained) == ((), STEPS)


def test_the_command_that_agrees_is_printed_and_agrees(steps, tmp_path) -> None:
    path = write(tmp_path / "a.jsonl", logged(steps, other("dapo")))
    printed = " ".join(run("verify", path, "-v", "sapo").stdout.split())
    said = re.search(r"grpo (verify \S+ -v \S+(?: -\S+ \S+)*) agrees", printed)
    assert said is not None, printed
    assert run(*said[1].split()).exit_code == 0


@each("batch", ["step", "input", "record"])
def test_the_match_that_is_asked_is_of_the_loss(steps, batch, tmp_path) -> None:
    """It reads the records of the batch whose loss it is."""
    made = [record for step in steps for record in step]
    for at, record in enumerate(made):
        unit = {"step": record["step"], "input": 0, "record": at}[batch]
        record = made[at] = {**record, "id": f"r{at}", "expected": {"loss": 3.21 + unit}}
    path = write(tmp_path / "a.jsonl", made)
    printed = " ".join(run("verify", path, "--batch", batch, "-v", "grpo").stdout.split())
    of_step = " --where step==0"
    chosen = {"step": of_step, "input": "", "record": f" --record r0{of_step}"}[batch]
    assert f"grpo match {path}{chosen} --loss 3.21" in printed


@each(
    ("stages", "words"),
    [
        ({"ratio": "rollout"}, "ratio to the rollout engine's log-probs instead of π_old"),
        ({"advantage": "batch-std"}, "batch-std: divided by the std of the batch"),
    ],
)
def test_a_cause_is_named_once_where_another_is_the_same_in_other_words(steps, stages, words):
    random, made = np.random.default_rng(3), copy.deepcopy(steps)
    for record in (record for step in made for record in step):
        old = record["log_probs_old"]
        engine = [np.minimum(row + random.normal(0, 0.1, len(row)), -1e-3).tolist() for row in old]
        record["log_probs_rollout"] = engine
    found = verify(logged(made, lambda step: evaluate(step, "grpo", stages=stages).loss), "grpo")
    assert (found.causes, found.explained) == ((words,), STEPS)
