"""What the documentation promises of records, formats and flags, where it was found broken."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from command import answer
from formats import dumps
from fuzz.product import blocks_of


def numbers(outcome, name="loss"):
    """One number of each record that was printed as JSON Lines."""
    assert outcome.code == 0, outcome.err
    return [json.loads(line)[name] for line in outcome.out.splitlines()]


def test_a_record_with_two_masks_is_converted(grpo, dump):
    masks = {"loss_mask": [[1, 1], [1]], "response_mask": [[1, 0], [1]]}
    direct = grpo("eval", "-v", "dr", "-f", "jsonl", dump(masks))
    assert grpo("convert", "-o", "made.jsonl", "in.jsonl").code == 0
    assert numbers(grpo("eval", "-v", "dr", "-f", "jsonl", "made.jsonl")) == numbers(direct)


def test_an_unused_column_of_nanoseconds(grpo):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    times = pa.array([1], pa.timestamp("ns"))
    record = {"log_probs": [[[-0.5, -1.0], [-0.25]]], "rewards": [[1.0, 0.0]], "when": times}
    parquet.write_table(pa.table(record), "in.parquet")
    assert grpo("eval", "-v", "dr", "in.parquet").code == 0


def unipo(**changed):
    """A UNIPO file whose first response is changed."""
    value = dumps.unipo()
    response = value["entries"][0]["prompts"][0]["responses"][0]
    response["tokens"] |= {key: one for key, one in changed.items() if key in response["tokens"]}
    response |= {key: one for key, one in changed.items() if key in response}
    if "advantage" in changed:
        del response["advantage"]
    Path("unipo.json").write_text(json.dumps(value))
    return "unipo.json"


def test_unipo_old_log_probs_missing_in_one_response(grpo):
    outcome = grpo("eval", "-v", "dr", "--advantage", "group-mean", unipo(old_log_probs=None))
    assert outcome.code == 3 or b"old_log_probs" in outcome.err


def test_unipo_advantages_of_some_responses_only(grpo):
    outcome = grpo("eval", "-v", "dr", unipo(advantage=None))
    usual = b"the records' advantages were used"  # said of the other group, which has them all
    said = [line for line in outcome.err.splitlines() if usual not in line]
    assert outcome.code == 3 or any(b"advantage" in line for line in said)


def test_unipo_record_by_the_id_that_is_printed(grpo):
    steps = [one for one in dumps.unipo_lines() if one["type"] == "step"]
    for response in (
        r for step in steps for prompt in step["prompts"] for r in prompt["responses"]
    ):
        del response["id"]
    Path("steps.jsonl").write_bytes(dumps.lines(steps))
    printed = numbers(grpo("eval", "-v", "dr", "-f", "jsonl", "steps.jsonl"), "id")
    assert len(set(printed)) == len(printed) == 2
    for one in printed:
        found = grpo("eval", "-v", "dr", "-f", "jsonl", "--record", str(one), "steps.jsonl")
        assert numbers(found, "id") == [one]


def test_integer_ids_beyond_64_bits_are_told_apart(grpo, dump):
    rows = [f'{{"uid": {2**70 + at}, "logps": [-0.5], "reward": {at}}}' for at in (0, 1)]
    outcome = grpo(
        "eval", "-v", "dr", "--group-by", "uid", "--only", "groups", "--level", "batch", dump(*rows)
    )
    assert outcome.out == b"2\n"


def test_integer_group_ids_beyond_64_bits_are_refused(grpo, dump):
    """They cannot be told apart any more when they are read."""
    name = dump({"group_ids": [2**70, 2**70 + 1]})
    outcome = grpo("eval", "-v", "dr", "--only", "groups", "--level", "batch", name)
    assert outcome.code == 3
    assert outcome.out == b""
    assert b"group_ids[0]: expected an id of at most 64 bits, got " in outcome.err
    assert outcome.err.endswith(b"; write such ids as strings\n")


def test_notes_do_not_depend_on_the_size_of_blocks(grpo, dump):
    trl = {"framework": {"name": "trl", "loss_type": "grpo"}}
    name = dump({}, trl)
    at_once = grpo("eval", "-v", "dr", name)
    with blocks_of(1):
        by_line = grpo("eval", "-v", "dr", name)
    assert at_once.err == by_line.err


def safetensors(offsets):
    """A file of two tensors, the second of which says that it stands at ``offsets``."""
    values = np.array([[-0.5, -1.0]]).tobytes() + np.array([1.0]).tobytes()
    header = {
        "log_probs": {"dtype": "F64", "shape": [1, 2], "data_offsets": [0, 16]},
        "advantages": {"dtype": "F64", "shape": [1], "data_offsets": offsets},
    }
    text = json.dumps(header).encode()
    Path("in.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values)
    return "in.safetensors"


def test_a_sound_safetensors_is_read(grpo):
    assert grpo("eval", "-v", "dr", safetensors([16, 24])).code == 0


@pytest.mark.parametrize("offsets", [[-8, 24], [8, 16], [0, 8]], ids=str)
def test_safetensors_offsets_are_checked(grpo, offsets):
    outcome = grpo("eval", "-v", "dr", safetensors(offsets))
    assert (outcome.code, b"in.safetensors" in outcome.err) == (3, True)


def test_a_mean_is_not_called_a_sum(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    record = {"log_probs_new": [[-1.0] * 3, [-1.0] * 2], "rewards": [1e4, 3e4]}
    path.write_text(json.dumps(record))
    words = ("explain", path, "--beta", "0", "--advantage", "raw", "--surrogate", "unclipped")
    assert "sums" not in {one["code"] for one in answer(*words)["why"]}
