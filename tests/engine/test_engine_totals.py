"""The totals against the records they are of, folded from as many parts as there are."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import evaluation

from grpo_cli import evaluate
from grpo_cli.commands.eval.nested import encode_nested as encode_json
from grpo_cli.engine import Evaluation, Reader, pieces, pool
from grpo_cli.engine.evaluation import _of_another_scale
from grpo_cli.engine.facts import Skipped
from grpo_cli.engine.pieces import Pieces, bundled
from grpo_cli.errors import InputError
from grpo_cli.records import Block
from grpo_cli.variants.plan import plan


def record(new: float, old: float, **more: object) -> dict[str, object]:
    """Two responses of one token."""
    columns = {"log_probs_new": [[new], [-1.0]], "log_probs_old": [[old], [-1.0]]}
    return {**columns, "advantages": [1.0, -1.0], **more}


def total(folder: Path, *records: dict[str, object], **chosen: Any) -> dict[str, Any]:
    """The totals, each record being a part of its own; they must not depend on their order."""
    made = plan(chosen.pop("variant", "grpo"), stages=chosen, hyperparameters={})
    found = []
    for number, order in enumerate((records, records[::-1])):
        path = folder / f"{number}.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in order))
        run = evaluation(path, made, block_bytes=1)
        assert all(pieces == [] for pieces in run)
        found.append(run.total)
    assert found[0] == found[1]
    return found[0]


def test_the_range_of_the_ratio_is_over_all_records(tmp_path):
    found = total(tmp_path, record(-1.0, -1.5), record(-1.5, -1.0), record(-1, -1), variant="dr")
    assert found["ratio_min"] == pytest.approx(0.6065306597126334, rel=1e-15)
    assert found["ratio_max"] == pytest.approx(1.6487212707001282, rel=1e-15)


def test_a_kl_that_one_record_cannot_tell_is_unknown(tmp_path):
    own = {"beta": 0.0}
    known = record(-1.0, -1.5, log_probs_ref=[[-1.0], [-2.0]], hyperparameters=own)
    assert total(tmp_path, known, known)["kl"] > 0.0
    assert total(tmp_path, known, record(-1.0, -1.5, hyperparameters=own), known)["kl"] is None


def test_where_no_term_is_of_a_kl_it_is_0(tmp_path):
    found = total(tmp_path, record(-1.0, -1.5), variant="dr")
    assert (found["kl"], found["entropy"]) == (0.0, None)


def test_a_sum_has_no_denominator_that_counts(tmp_path):
    two = [record(-1.0, -1.1), record(-1.0, -1.1)]
    found = total(tmp_path, *two, variant="dr", aggregate="sum")
    assert found["denominator"] == 1
    assert found["objective"] == pytest.approx(2 * (1.1051709180756477 - 1.0), rel=1e-14)


def test_constants_that_differ_leave_no_one_denominator(tmp_path):
    lengths = [{"max_completion_length": length} for length in (4, 4, 5)]
    three = [record(-1.0, -1.1, hyperparameters=own) for own in lengths]
    chosen = {"variant": "dr", "aggregate": "token-sum-norm"}
    assert total(tmp_path, *three[:2], **chosen)["denominator"] == 16  # 4 responses, 4 each
    assert total(tmp_path, *three, **chosen)["denominator"] is None


def test_records_with_betas_of_their_own(tmp_path):
    """An infinite KL has no part in J where β is 0."""
    far = {"log_probs_new": [[-1.0], [-801.0]], "log_probs_old": [[-1.0], [-801.0]]}
    reference = {"log_probs_ref": [[-2.0], [-1.0]], "advantages": [0.5, 0.5]}
    off = {**far, **reference, "hyperparameters": {"beta": 0.0}}
    near = record(-1.0, -1.0, log_probs_ref=[[-2.0], [-1.0]], hyperparameters={"beta": 0.5})
    found = total(tmp_path, off, near)
    assert found["kl"] == float("inf")
    kl = 0.36787944117144233  # e^(−1) + 1 − 1, the one token that differs
    assert found["objective"] == pytest.approx((1.0 - 0.5 * kl) / 4, rel=1e-14)


OWN = {  # for verl/sapo, whose KL is a mean over tokens, unlike its policy term
    "log_probs_new": [[-1.0, -0.5], [-0.8]],
    "log_probs_old": [[-1.1, -0.4], [-1.0]],
    "log_probs_ref": [[-2.0, -0.9], [-0.3]],
    "advantages": [1.0, -1.0],
}


@pytest.mark.parametrize("count", [1, 3])
def test_gradient_where_the_kl_has_a_denominator_of_its_own(tmp_path, count):
    """‖g − β·g′‖ of the batch, from sums over records, against the tokens of one long record."""
    whole = {name: count * values for name, values in OWN.items()}
    gradient = np.concatenate(evaluate(whole, "verl/sapo", beta=0.3).gradient)
    own = {"hyperparameters": {"beta": 0.3}}
    found = total(tmp_path, *[{**OWN, **own}] * count, variant="verl/sapo")
    assert found["gradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-14)


def test_betas_where_the_kl_has_a_denominator_of_its_own(tmp_path):
    """Records alike with β 0.3 and 0.1 are together what they are with 0.2."""
    two = [{**OWN, "hyperparameters": {"beta": beta}} for beta in (0.3, 0.1)]
    found = total(tmp_path, *two, variant="verl/sapo")
    wanted = evaluate(OWN, "verl/sapo", beta=0.2).objective
    assert found["objective"] == pytest.approx(wanted, rel=1e-14)


def test_the_kl_of_the_responses_adds_up_to_the_record_s(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(OWN))
    made = plan("verl/sapo", hyperparameters={"beta": 0.3})
    encode = partial(encode_json, level="response", fields=None)
    ((piece,),) = evaluation(path, made, encode=encode)
    row = json.loads(piece)
    assert sum(one["kl"] for one in row["responses"]) == pytest.approx(row["kl"], rel=1e-14)


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("cuts", [[7], [1, 6], [3, 4], [2, 0, 5], [1] * 7])
def test_the_first_errors_are_kept_and_all_counted(most, cuts):
    errors = [InputError(str(number)) for number in range(7)]
    found, left = Skipped(most), iter(errors)
    for size in cuts:
        part = Skipped(most)
        for _ in range(size):
            part.add(next(left))
        found.merge(part)
    kept = 7 if most == 0 else min(most, 7)
    assert (list(found), found.count, found.more) == (errors[:kept], 7, 7 - kept)
    assert len(found) == 7
    assert not Skipped()


def test_of_many_bad_records_twenty_are_told(tmp_path):
    (tmp_path / "a").write_text("{}\n" * 21)
    run = evaluation(tmp_path / "a", plan("dr"), skip=True)
    assert not any(run)
    assert (len(list(run.skipped)), run.skipped.more) == (20, 1)
    reader = Reader([str(tmp_path / "a")], skip=True)
    assert list(reader) == []
    assert (len(list(reader.skipped)), reader.skipped.more) == (20, 1)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([3, 3, 3, 3], [2, 2]),
        ([5, 4, 1, 9], [1, 2, 1]),
        ([2, 2], [2]),
        ([11, 2], [1, 1]),
        ([], []),
    ],
)
def test_small_pieces_are_worked_on_together(sizes, expected):
    """A bundle ends with the piece that makes it half of 10 bytes."""
    pieces = [Block(f"s{at}", at, [b"x" * (size - 1)]) for at, size in enumerate(sizes, 1)]
    found = list(bundled(pieces, 10))
    assert [len(one.pieces) for one in found] == expected
    firsts = [1 + sum(expected[:at]) for at in range(len(expected))]
    assert [(one.source, one.line) for one in found] == [(f"s{at}", at) for at in firsts]
    assert sum(one.size for one in found) == sum(sizes)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(("bad", "told"), [(None, ["saw 1"]), (0, []), (1, ["saw 1"])])
def test_what_is_told_of_the_first_record_is_of_no_other(tmp_path, size, bad, told):
    lines = [json.dumps({**record(-1.0, -1.5), "id": at}) for at in (1, 2, 3)]
    lines = ["{}" if at == bad else line for at, line in enumerate(lines)]
    (tmp_path / "a").write_text("\n".join(lines))
    reader = Reader([str(tmp_path / "a")], skip=True, block_bytes=size)
    run = Evaluation(
        reader, plan("dr"), encode=None, look=lambda chunk: [f"saw {chunk.first.records[0].id}"]
    )
    assert not any(run)
    assert [one for one in run.notices if one.startswith("saw")] == told


@pytest.mark.parametrize(
    ("own", "used", "far"),
    [
        *[(0.2, 0.0003, True), (0.0003, 0.2, True), (1.0, 0.125, False), (-0.5, 0.01, True)],
        *[(0.5, 5.0, False), (0.5, 5.5, True), (0.0, 0.2, False), (0.2, 0.0, False)],
        *[(20, 0.1, False), (0.1, None, False), (0.0, 0.0, False)],
    ],
)
def test_values_of_another_scale(own, used, far):
    assert _of_another_scale(own, used) == far


@pytest.mark.parametrize(
    ("text", "quota"),
    [("200000 100000", 2), ("150000 100000", 2), ("100001 100000", 2), ("100000 100000", 1),
     ("1000 100000", 1), ("0 100000", 1), ("max 100000", None), ("", None), (None, None)],
)  # fmt: skip
def test_the_cores_that_a_process_may_use(monkeypatch, text, quota):
    def read(path):
        if text is None:
            raise FileNotFoundError
        return text

    monkeypatch.setattr(pool.Path, "read_text", read)
    for count in (1, 2, 64):
        monkeypatch.setattr(
            os, "sched_getaffinity", lambda pid, n=count: {*range(n)} - {pid - 1}, raising=False
        )
        assert pool.cores() == min(count, quota or count)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert pool.cores() == 1


@pytest.mark.parametrize("sockets", [True, False])
def test_a_result_comes_as_it_was_sent(monkeypatch, sockets):
    """Large texts beside the message, where that is known; arrays in it, to be written to."""
    monkeypatch.setattr(pool, "_SOCKETS", sockets)
    result = [Pieces([b"a" * 40_000, b"bc"]), np.arange(3.0), Pieces([b"d" * 41_000]), "e"]
    monkeypatch.setattr(pieces, "_LARGE", 40_000)
    ours, theirs = multiprocessing.Pipe()
    pool.send(ours, result)
    message, sizes = theirs.recv()
    assert sizes == [40_000, 41_000][: 2 * sockets]
    assert (b"a" * 9 in message) != sockets
    if sockets:
        with pool._socket(theirs) as stream:
            stream.recv(81_000, pool.socket.MSG_WAITALL)
    pool.send(ours, result)
    found = pool.receive(theirs)
    found[1] += 1.0
    assert (found[0], found[1].tolist(), found[2:]) == (result[0], [1.0, 2.0, 3.0], result[2:])


def test_a_text_that_comes_in_parts_is_put_together():
    class Dripping:
        def __init__(self, *parts):
            self.parts = list(parts)

        def recv(self, size, flags):
            asked.append((size, flags))
            return self.parts.pop(0)

    asked = []
    assert pool._read(Dripping(b"ab", b"c", b"de"), 5) == b"abcde"
    assert asked == [(size, pool.socket.MSG_WAITALL) for size in (5, 3, 2)]
    with pytest.raises(EOFError):
        pool._read(Dripping(b"ab", b""), 5)


def test_what_can_be_read_once_is_kept_to_be_read_again(tmp_path):
    path, line = tmp_path / "pipe", json.dumps(record(-1.0, -1.5)) + "\n"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_text(line * 3))
    writer.start()
    reader = Reader([str(path)])
    assert reader.keep_input() == [str(path)]
    writer.join()
    for _ in range(2):
        assert sum(len(chunk.records) for chunk in reader) == 3
    kept = reader._sources[0].path
    assert Path(kept).exists()
    assert (reader.keep_input(), reader.nodes, reader.on_cluster) == ([], 0, False)
    del reader
    gc.collect()
    assert not Path(kept).exists()
