import json
from pathlib import Path

import numpy as np
import pytest
from files import gather
from hypothesis import given
from hypothesis import strategies as st

from grpo_cli.batch import Batch
from grpo_cli.records import assemble, layout, parse, read

DATA = Path(__file__).parents[1] / "data"
COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref", "entropies", "token_advantages")
ARRAYS = (*COLUMNS, "advantages", "rewards")


def same(one: Batch, other: Batch, *, positions: bool = True):
    assert one.responses.lengths.tolist() == other.responses.lengths.tolist()
    assert one.records.lengths.tolist() == other.records.lengths.tolist()
    assert one.groups.tolist() == other.groups.tolist()
    assert one.group_count == other.group_count
    for name in (*ARRAYS, "positions") if positions else ARRAYS:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None)
        assert a is None or (a.dtype == b.dtype and a.tobytes() == b.tobytes())


@pytest.mark.parametrize(
    ("name", "records", "tokens"),
    [("trl-1.16.0-grpo.jsonl", 2, [154, 190]), ("verl-0.9.1.jsonl", 3, None)],
)
def test_real_dumps(name, records, tokens):
    made = list(read(str(DATA / name)))
    assert len(made) == records
    batches = [assemble([record]) for record in made]
    for record, batch in zip(made, batches, strict=True):
        assert batch.log_probs_new.dtype == np.float64
        assert set(record.columns) == {"log_probs_new", "log_probs_old", "log_probs_ref"}
        assert record.expected["loss"] is not None
    if tokens:
        assert [batch.responses.total for batch in batches] == tokens


def test_records_side_by_side():
    one = {"logps": [[-1, -2], [-3]], "rewards": [1, 2], "uid": ["a", "b"]}
    two = {"logps": [[-4], [-5]], "rewards": [3, 4], "mask": [[0], [1]]}
    three = {"logps": [[-6], [-7]], "rewards": [5, 6], "group_size": 1}
    batch = assemble([parse(record) for record in (one, two, three)])
    assert batch.responses.lengths.tolist() == [2, 1, 0, 1, 1, 1]
    assert batch.records.lengths.tolist() == [2, 2, 2]
    assert batch.groups.tolist() == [0, 1, 2, 2, 3, 4]
    assert batch.group_count == 5
    assert batch.log_probs_new.tolist() == [-1, -2, -3, -5, -6, -7]
    assert batch.log_probs_old is batch.log_probs_new
    assert batch.rewards.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.positions is None


def test_positions_are_those_that_the_user_wrote():
    batch = assemble([parse({"logps": [[9, -1, -2], [-3, 9, -4]], "mask": [[0, 1, 1], [1, 0, 1]]})])
    assert batch.positions.tolist() == [1, 2, 0, 2]
    assert batch.positions.dtype == np.int64


def test_which_responses_end_with_a_masked_token():
    rows, mask = [[-1, 9], [9, -1], [], [9]], [[1, 0], [0, 1], [], [0]]
    batch = assemble([parse({"logps": rows, "mask": mask})])
    assert batch.last_masked.tolist() == [True, False, False, True]
    for mask in ([[1, 1], [0, 1], [], [1]], [[1, 1], [1, 1], [], [1]]):
        assert assemble([parse({"logps": rows, "mask": mask} | _LOGS)]).last_masked is None


_LOGS = {"logps": [[-1, -1], [-1, -1], [], [-1]]}


def test_rewards_by_function():
    rows = {"logps": [[-1], [-2]], "rewards": {"a": [1, 2], "b": [3, 4]}}
    batch = assemble([parse(rows), parse(rows)])
    assert batch.rewards.tolist() == [[1, 3], [2, 4]] * 2
    assert batch.reward_names == ("a", "b")


LAYOUTS = [
    {},
    {"rewards": [1]},
    {"rewards": [[1]]},
    {"rewards": [[1, 2]]},
    {"rewards": {"a": [1], "b": [2]}},
    {"advantages": [1]},
    {"advantages": [[1]]},
    {"log_probs_old": [[-1]]},
    {"pi_theta_old": [[0.5]]},
    {"beta": 0.1},
    {"beta": 0.2},
    {"entropy": [[1]]},
]


def test_layouts_tell_apart_what_cannot_be_mixed():
    layouts = [layout(parse({"logps": [[-1]]} | more)) for more in LAYOUTS]
    assert len({*layouts}) == len(layouts)
    first, second = (
        parse({"logps": [[-1]], "id": 1}),
        parse({"log_probs": [[[-2, -3]]], "mask": None}),
    )
    assert layout(first) == layout(second)


log_prob = st.floats(-50, 0)
response = st.lists(st.tuples(log_prob, log_prob, st.floats(0, 9)), max_size=5)
junk = st.sampled_from([None, float("nan"), float("inf"), 3.5, -1, 0, True])
bit = st.sampled_from([(0, 1), (False, True), (0.0, 1.0)])


@st.composite
def padded(draw):
    """A ragged record, and the same with masked junk in between."""
    rows = draw(st.lists(response, min_size=1, max_size=4))
    off, on = draw(bit)
    ragged = {"logps": [], "old_log_probs": [], "entropy": [], "advantages": []}
    full = {"logps": [], "old_log_probs": [], "entropy": [], "advantages": [], "mask": []}
    for row in rows:
        marks = draw(st.permutations([on] * len(row) + [off] * draw(st.integers(0, 3))))
        kept = iter(row)
        values = [(*next(kept), 1.0) if mark else draw(st.tuples(*[junk] * 4)) for mark in marks]
        whole = [(*one, 1.0) for one in row]
        for at, name in enumerate(ragged):
            ragged[name].append([one[at] for one in whole])
            full[name].append([one[at] for one in values])
        full["mask"].append(list(marks))
    return ragged, full


@given(padded())
def test_padding_with_masked_junk_changes_nothing(pair):
    ragged, full = (json.loads(json.dumps(record)) for record in pair)
    same(assemble([parse(ragged)]), assemble([parse(full)]), positions=False)


@given(st.lists(padded(), min_size=1, max_size=3), st.booleans(), st.booleans(), st.data())
def test_many_at_once_are_as_one_by_one(pairs, full, groups, data):
    many = []
    for pair in pairs:
        record = {name: value for name, value in pair[full].items() if name != "entropy"}
        if groups:
            size = len(record["logps"])
            labels = st.lists(st.sampled_from(["a", "b"]), min_size=size, max_size=size)
            record |= {"uid": data.draw(labels), "rewards": [0.5] * size}
        many.append(json.loads(json.dumps(record)))
    found = gather(many)
    if found is not None:
        careful = assemble([parse(record) for record in many])
        same(found, careful)
        assert np.array_equal(found.last_masked, careful.last_masked)
    # A null or a float where the mask hides it is for the long way.
    assert found is not None or full


@pytest.mark.parametrize("name", ["trl-1.16.0-grpo.jsonl", "verl-0.9.1.jsonl"])
def test_real_dumps_are_plain(name):
    made = [json.loads(line) for line in (DATA / name).read_text().splitlines()]
    same(gather(made), assemble([parse(record) for record in made]))


@given(padded(), st.integers(0, 4))
def test_padding_at_the_end_changes_nothing_at_all(pair, more):
    ragged, _ = pair
    names = ("logps", "old_log_probs", "entropy", "advantages")
    full = {name: [row + [None] * more for row in ragged[name]] for name in names}
    full["mask"] = [[1] * len(row) + [0] * more for row in ragged["logps"]]
    same(assemble([parse(ragged)]), assemble([parse(full)]))


@given(
    st.lists(response, min_size=1, max_size=4).flatmap(
        lambda r: st.tuples(st.just(r), st.permutations(range(len(r))))
    )
)
def test_the_order_of_responses_changes_no_value(pair):
    rows, order = pair
    column = [[one[0] for one in row] for row in rows]
    plain = assemble([parse({"logps": column})])
    moved = assemble([parse({"logps": [column[at] for at in order]})])
    cut = np.split(plain.log_probs_new, plain.responses.starts[1:])
    assert np.concatenate([cut[at] for at in order]).tobytes() == moved.log_probs_new.tobytes()


@given(
    st.lists(
        st.lists(st.lists(log_prob, max_size=3), min_size=1, max_size=3), min_size=1, max_size=3
    )
)
def test_nested_groups_are_group_ids_are_records(groups):
    if not any(row for group in groups for row in group):
        return  # without a token, [[]] could be two levels or three
    nested = assemble([parse({"logps": groups})])
    flat = [row for group in groups for row in group]
    ids = [number for number, group in enumerate(groups) for _ in group]
    labelled = assemble([parse({"logps": flat, "group_ids": ids})])
    same(nested, labelled)
