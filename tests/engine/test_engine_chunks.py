"""Records that are read together against the same records read alone."""

from __future__ import annotations

import io
import json
import os
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest
from files import each, evaluation

from grpo_cli.commands.eval.nested import encode_nested as encode_json
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.engine.evaluation import EvaluationSums
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.packing import alike
from grpo_cli.errors import InputError
from grpo_cli.objective import pipeline
from grpo_cli.records import PLAIN, Block, DecodedChunk, assemble, parse
from grpo_cli.variants.plan import plan

RECORD = {
    "id": "r",
    "log_probs_new": [[-1.0, -2.0], [-0.5, -0.25]],
    "log_probs_old": [[-1.1, -2.1], [-0.4, -0.2]],
    "log_probs_ref": [[-1.2, -2.2], [-0.3, -0.1]],
    "log_probs_rollout": [[-1.0, -2.1], [-0.4, -0.2]],
    "rewards": [1.0, 0.0],
    "advantages": [0.5, -0.25],
    "mask": [[1, 0], [1, 1]],
    "group_ids": ["a", "b"],
    "tokens": [["x", "y"], ["z", "z"]],
}


def run(path: Path, records: list[dict], *, level: str | None = "token") -> Evaluation:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    encode = None if level is None else partial(encode_json, level=level, fields=None)
    found = evaluation(path, plan("dr"), encode=encode, skip=True)
    found.rows = [json.loads(piece) for pieces in found for piece in pieces]
    return found


def test_chunks_of_standard_input_can_be_read_again(monkeypatch):
    text = b"".join(json.dumps({**RECORD, "id": at}).encode() + b"\n" for at in range(3))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    reader = Reader(["-"])
    again = [[one.name for chunk in reader for one in chunk.records] for _ in range(2)]
    assert again == [[0, 1, 2]] * 2


def test_a_fork_leaves_what_was_kept_of_standard_input(monkeypatch):
    """Until the process that kept it forgets its reader."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}\n")))
    reader = Reader(["-"])
    reader.keep_input()
    path = Path(reader._sources[0].path)
    child = os.fork()
    if not child:
        del reader
        os._exit(0)
    os.waitpid(child, 0)
    assert path.read_bytes() == b"{}\n"
    del reader
    assert not path.exists()


def test_what_was_kept_of_standard_input_is_called_as_it_is_called(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b" \n")))
    with pytest.raises(InputError, match=r"^<stdin>: no records"):
        list(Reader(["-"]))


def test_records_with_the_same_settings_of_their_own_are_evaluated_together(tmp_path):
    settings = [{}, {}, {"epsilon": 0.1}, {"epsilon": 0.1}, {"epsilon": 0.3}, {}]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({**RECORD, **one}) + "\n" for one in settings))
    sizes = [2, 2, 1, 1]
    chunks = list(Reader([str(path)]))
    assert [len(chunk.packed) for chunk in chunks] == sizes
    assert [chunk.settings.get("epsilon_low") for chunk in chunks] == [None, 0.1, 0.3, None]
    raws = DecodedChunk([raw for raw, _ in Reader([str(path)]).records()])
    runs = [(len(items), packed is not None) for items, packed in alike(raws)]
    assert runs == [(2, True), (3, True), (1, True)]  # settings do not part what is converted
    named = raws._replace(items=raws.items[2:4], keys=(*RECORD, "epsilon"))
    assert [(len(items), packed is not None) for items, packed in alike(named)] == [(2, True)]


@pytest.mark.parametrize("key", ["log_probs_old", "advantages", "mask", "group_ids", "tokens"])
def test_a_null_among_values_counts_as_absent_where_it_stands(tmp_path, key):
    path = tmp_path / "data.jsonl"
    both = RECORD, {**RECORD, key: None}
    alone = [run(path, [record]).rows[0] for record in both]
    assert alone[0] != alone[1]
    for order in set(permutations((0, 0, 1, 1))):
        together = run(path, [both[which] for which in order]).rows
        assert together == [{**alone[which], "line": at} for at, which in enumerate(order, 1)]


@each("key", [key for key in RECORD if key.startswith("log_probs")])
@each("row", ["", {}, "ab", {"a": 1, "b": 2}, None, 2, [True, False], [-1.0, False]])
def test_what_is_no_list_of_numbers_is_refused_wherever_it_stands(tmp_path, key, row):
    bad = {**RECORD, key: [RECORD[key][0], row], "mask": None, "tokens": None}
    found = run(tmp_path / "data.jsonl", [RECORD, bad, RECORD], level=None)
    assert found.total["records"] == 2
    (error,) = found.skipped
    assert (error.line, error.path.partition("[")[0]) == (2, key)


@pytest.mark.parametrize("row", [[0.5, True], [False, 0.5], [2.0, True]])
def test_a_boolean_among_the_advantages_of_tokens_is_no_number(tmp_path, row):
    good = {**RECORD, "advantages": [[0.5, 1.0], [0.0, 2.0]], "mask": None}
    bad = {**good, "advantages": [[0.5, 1.0], row]}
    found = run(tmp_path / "data.jsonl", [good, bad, good], level=None)
    assert [(one.line, one.path) for one in found.skipped] == [
        (2, f"advantages[1][{[isinstance(value, bool) for value in row].index(True)}]")
    ]


@pytest.mark.parametrize("key", [key for key in RECORD if key.startswith("log_probs")])
@pytest.mark.parametrize("row", ["", {}])
def test_what_is_empty_is_no_empty_list(tmp_path, key, row):
    columns = {name: [RECORD[name][0], []] for name in RECORD if name.startswith("log_probs")}
    good = {**columns, "rewards": [1, 0]}
    found = run(tmp_path / "data.jsonl", [good, {**good, key: [RECORD[key][0], row]}], level=None)
    assert found.total["records"] == 1
    assert [error.path for error in found.skipped] == [f"{key}[1]"]


@pytest.mark.parametrize("level", ["record", "token"])
def test_settings_that_a_row_does_not_read_change_nothing(tmp_path, level):
    """Records that agree in the others are evaluated together, with the same numbers."""
    ignored = [{**RECORD, "id": at, "num_items_in_batch": at % 5 + 1} for at in range(20)]
    records = [one | {"epsilon": 0.1 + at // 10} for at, one in enumerate(ignored)]
    agreeing = [one | {"num_items_in_batch": 1} for one in records]
    assert sizes(records) == [10, 10]
    assert sizes(records, "trl/dapo") == [1] * 20
    found, expected = (run(tmp_path / "a.jsonl", each, level=level) for each in (records, agreeing))
    assert found.rows == expected.rows


def sizes(records: list[dict], variant: str = "dr") -> list[int]:
    """How many records are evaluated together."""
    block = Block("a", 1, [json.dumps(one).encode() for one in records])
    sums = EvaluationSums(Evaluator(plan(variant)))
    sums.in_order = True
    return [len(one.packed) for one in sums.chunks(PLAIN.decoded(block, {}))]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rewards": None, "advantages": None},
        {"log_probs_old": [[-1.1, -2.1], [-1e300, -0.2]]},
        {"log_probs_old": [[0.5, -2.0], [-0.5, -0.25]]},
    ],
)
@pytest.mark.parametrize("every", [1, 3])
def test_many_bad_records_of_many_are_each_left_out(tmp_path, wrong, every):
    """More than Python's stack has frames."""
    records = [{**RECORD, "id": at} | (wrong if at % every == 0 else {}) for at in range(1500)]
    found = run(tmp_path / "a.jsonl", records, level="record")
    assert [row["id"] for row in found.rows] == [at for at in range(1500) if at % every]
    assert found.skipped.count == 1500 - len(found.rows)
    assert [error.line for error in found.skipped.first] == [
        at + 1 for at in range(1500) if at % every == 0
    ][: len(found.skipped.first)]


def test_a_record_that_is_a_batch_of_its_own_has_its_own_statistics():
    """Beside records with other rewards, and more tokens than responses."""
    other = {**RECORD, "rewards": [7.0, -3.0], "log_probs_new": [[-1.0, -2.0], [-0.5, -4.0]]}
    kept = [key for key in RECORD if key not in ("advantages", "group_ids")]
    both = [{key: one[key] for key in kept} for one in (RECORD, other)]
    objective = plan("dr", stages={"advantage": "batch-whiten"}, batch="record").objective(
        {}, advantages_given=False
    )
    together = pipeline.evaluate(assemble([parse(one) for one in both]), objective)
    for at, one in enumerate(both):
        alone = pipeline.evaluate(assemble([parse(one)]), objective)
        part = slice(2 * at, 2 * at + 2)
        assert together.response_advantage[part].tolist() == alone.response_advantage.tolist()
        assert alone.response_advantage.all()


def test_a_record_without_tokens_is_not_on_policy(tmp_path):
    same = {"log_probs_new": [[-1.0], [-2.0]], "rewards": [1, 0], "mask": [[1], [1]]}
    empty = {**same, "mask": [[0], [0]]}
    records = [empty, same, empty, same, empty]
    found = run(tmp_path / "data.jsonl", records, level=None)
    assert found.total["on_policy_records"] == 2
    moved = [{**record, "log_probs_old": [[-1.0], [-2.5]]} for record in records]
    found = run(tmp_path / "data.jsonl", moved, level=None)
    assert found.total["on_policy_records"] == 0
    still = {**same, "log_probs_old": same["log_probs_new"]}
    found = run(tmp_path / "data.jsonl", [*moved, still, *moved], level=None)
    assert found.total["on_policy_records"] == 1


def test_a_reader_that_is_read_again_counts_again(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(RECORD) + "\n{}\n" + json.dumps(RECORD) + "\n")
    reader = Reader([str(path)], PLAIN, skip=True)
    for _ in range(2):
        assert sum(len(chunk.records) for chunk in reader) == 2
        assert reader.skipped.count == 1
