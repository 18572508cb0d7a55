"""What numbers of a row are made of: shares, extremes, exact sums; and no zero with a sign."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from files import each

from grpo_cli import evaluate
from grpo_cli.batch import Segments
from grpo_cli.engine.rows.fields import RECORD, RESPONSE, TOKEN, TOTAL
from grpo_cli.engine.rows.source import bounds, exact_sums, extreme, fraction, kept, plain, whole
from grpo_cli.engine.totals import Totals
from grpo_cli.objective import pipeline
from grpo_cli.records import assemble, parse
from grpo_cli.variants.plan import plan

SEGMENTS = Segments(np.array([0, 2, 0, 3, 1, 0]))
VALUES = np.array([3.0, -1.0, 1e16, 1.0, -1e16, 5.0])


def test_numbers_of_segments_of_which_some_are_empty():
    assert bounds(SEGMENTS) == [0, 0, 2, 2, 5, 6, 6]
    assert extreme(np.minimum, VALUES, SEGMENTS) == [None, -1.0, None, -1e16, 5.0, None]
    assert extreme(np.maximum, VALUES, SEGMENTS) == [None, 3.0, None, 1e16, 5.0, None]
    assert exact_sums(VALUES, SEGMENTS) == [0.0, 2.0, 0.0, 1.0, 5.0, 0.0]
    none = Segments(np.array([0, 0]))
    assert extreme(np.minimum, VALUES[:0], none) == [None, None]
    assert exact_sums(VALUES[:0], none) == [0.0, 0.0]


def test_lists_of_numbers():
    assert fraction([3.0, 0.0, 1.0], [4, 0, 1]) == [0.75, None, 1.0]
    found = whole(np.array([2.0, 2.5, -3.0]))
    assert [(one, type(one)) for one in found] == [(2, int), (2.5, float), (-3, int)]
    assert kept(["a", "b", "c"], np.array([0, 2])) == ["a", "c"]
    assert kept(["a", "b"], np.array([0, 1])) == ["a", "b"]
    assert kept(["a", "b"], np.array([], dtype=int)) == []


def signed(values) -> bool:
    """Whether a zero among them has a sign."""
    numbers = np.asarray(values, dtype=float)
    return bool((np.signbit(numbers) & (numbers == 0)).any())


class Negative(SimpleNamespace):
    """Whatever is asked for is −0.0, unless it is said to be something else."""

    def __getattr__(self, name):
        return np.array([-0.0])


SOURCE = SimpleNamespace(
    breakdown=Negative(
        kl_unknown=False,
        record_value=lambda name: np.array([-0.0]),
        policy=SimpleNamespace(sums=np.array([0.0])),
        term=lambda name: None,
    ),
    responses_count=1,
)
ZEROS = {
    "record": (RECORD, "objective loss policy kl"),
    "response": (RESPONSE, "advantage weight policy kl contribution"),
    "token": (TOKEN, "log_ratio ratio advantage surrogate kl weight contribution gradient"),
}


@pytest.mark.parametrize("level", ZEROS)
def test_no_zero_of_a_row_has_a_sign(level):
    fields, names = ZEROS[level]
    found = {field.name: field.read(SOURCE) for field in fields if field.name in names.split()}
    assert [*found] == names.split()
    for name, values in found.items():
        assert [*values] == [0.0], name
        assert not signed(values), name
    assert signed([-0.0])
    assert not signed(plain(np.array([-0.0, 0.0])))


@each("objective", [0.0, -0.0])
def test_no_zero_of_the_totals_has_a_sign(objective):
    total = SimpleNamespace(objective=objective, value=lambda name: -0.0, kl_known=True)
    reads = {field.name: field.read for field in TOTAL}
    for name in ("objective", "loss", "policy", "kl"):
        assert (reads[name](total), signed(reads[name](total))) == (0.0, False)


RECORDS = [
    {
        "log_probs_new": [[-1.0, -0.5], [-0.8]],
        "log_probs_old": [[-1.1, -0.4], [-1.0]],
        "advantages": [1.0, -1.0],
    },
    {
        "log_probs_new": [[-0.3], [-0.2, -0.7, -0.1]],
        "log_probs_old": [[-0.4], [-0.3, -0.9, -0.1]],
        "advantages": [0.5, -2.0],
    },
]


def test_record_by_record_the_totals_are_means_over_the_records():
    """The gradient's norm is that of all tokens, a record's own by the number of records."""
    made = plan("dr", batch="record", stages={"aggregate": "token-mean"})
    objective = made.objective({}, advantages_given=True)
    totals = Totals("record")
    totals.add(pipeline.evaluate(assemble([parse(one) for one in RECORDS]), objective))
    alone = [evaluate(one, "dr", stages={"aggregate": "token-mean"}) for one in RECORDS]
    row = totals.row()
    assert row["objective"] == pytest.approx(sum(one.objective for one in alone) / 2, rel=1e-14)
    squares = [sum(float(x) ** 2 for row in one.gradient for x in row) for one in alone]
    assert row["gradient_norm"] == pytest.approx(math.sqrt(sum(squares)) / 2, rel=1e-14)
    assert row["denominator"] == 2
    assert row["denominator_of"] == "records, each by its own tokens"
