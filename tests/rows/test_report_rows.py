"""Rows: what each number is, where it is null, and that no bit depends on the company."""

from __future__ import annotations

import math
import pickle
from functools import partial

import numpy as np
import orjson
import pytest

from grpo_cli.commands.emit import CSV
from grpo_cli.commands.eval.lines import encode_lines
from grpo_cli.commands.eval.nested import encode_nested as encode_json
from grpo_cli.engine.rows.fields import COLUMNS, names
from grpo_cli.engine.rows.rows import rows


def encode_csv(records, breakdown, *, level, fields):
    fields = fields or COLUMNS[level]
    return encode_lines(records, breakdown, level=level, fields=fields, lines=CSV)


ONE = {
    "log_probs_new": [[-0.9, -0.2], [-1.1], []],
    "log_probs_old": [[-1.0, -0.6], [-1.0], []],
    "rewards": [1.0, 0.0, 1.0],
}
TWO = {
    "id": "two",
    "log_probs_new": [[-0.5], [-0.5]],
    "log_probs_old": [[-0.5], [-0.5]],
    "rewards": [2.0, 2.0],
    "group_ids": ["a", "b"],
}


def test_record_rows(evaluated):
    first, second = rows(*evaluated(ONE, TWO), "record")
    assert tuple(first) == names("record")
    assert [first["id"], second["id"]] == [0, "two"]
    assert (first["groups"], first["response_count"], first["tokens"]) == (1, 3, 3)
    assert (first["denominator"], first["denominator_of"]) == (3, "responses")
    # by hand: r̄ = 2/3; ρ = e^0.1, e^0.4 (clipped at 1.2), e^-0.1; ÷ 3 responses
    objective = ((math.exp(0.1) + 1.2) / 3 - math.exp(-0.1) * 2 / 3) / 3
    assert first["objective"] == pytest.approx(objective, rel=1e-14)
    assert first["loss"] == -first["objective"]
    assert first["clip_fraction"] == first["clip_fraction_high"] == 1 / 3
    assert first["clip_fraction_low"] == 0.0
    assert first["ratio_min"] == pytest.approx(math.exp(-0.1), rel=1e-14)
    assert first["ratio_max"] == pytest.approx(math.exp(0.4), rel=1e-14)
    norm = math.hypot(math.exp(0.1) / 9, math.exp(-0.1) * 2 / 9)
    assert first["gradient_norm"] == pytest.approx(norm, rel=1e-14)
    assert (first["dead_groups"], second["dead_groups"], second["groups"]) == (0, 2, 2)


def test_response_rows(evaluated):
    first, second = rows(*evaluated(ONE, TWO), "response")
    assert [tuple(row) for row in first["responses"]] == [(*names("response"),)] * 3
    assert [row["length"] for row in first["responses"]] == [2, 1, 0]
    assert [row["group"] for row in first["responses"]] == [0, 0, 0]
    assert [row["group"] for row in second["responses"]] == ["a", "b"]
    empty = first["responses"][2]
    assert empty["clip_fraction"] is empty["ratio_mean"] is empty["ratio_max"] is None
    assert empty["contribution"] == 0.0
    assert sum(r["contribution"] for r in first["responses"]) == pytest.approx(first["objective"])


@pytest.mark.parametrize("level", ["record", "response", "token"])
@pytest.mark.parametrize("encode", [encode_json, encode_csv])
def test_no_bit_depends_on_the_company(evaluated, level, encode):
    rng = np.random.default_rng(0)
    records = []
    for number in range(7):
        lengths = rng.integers(0, 9, size=4)
        new = [(-rng.random(n)).tolist() for n in lengths]
        old = [(-rng.random(n)).tolist() for n in lengths]
        rewards = rng.random(4).tolist()
        records.append(
            {"id": number, "log_probs_new": new, "log_probs_old": old, "rewards": rewards}
        )
    together = encode(*evaluated(*records), level=level, fields=None)
    alone = [encode(*evaluated(one), level=level, fields=None)[0] for one in records]
    if encode is encode_json:  # the line is that of the record in its file
        together = [orjson.loads(one) | {"line": 1} for one in together]
        alone = [orjson.loads(one) for one in alone]
    elif level == "record":
        return
    assert together == alone


def test_kl_is_null_where_it_is_unknown_and_zero_where_there_is_none(evaluated):
    assert rows(*evaluated(ONE, variant="dr"), "record")[0]["kl"] == 0.0
    assert rows(*evaluated(ONE, variant="grpo", beta=0), "record")[0]["kl"] is None
    row = rows(*evaluated(ONE, variant="grpo", beta=0), "token")[0]
    assert [one["kl"] for one in row["responses"]] == [None] * 3
    assert row["responses"][0]["tokens"]["kl"] is None
    (row, *_) = rows(*evaluated(ONE, variant="dr"), "token")
    assert not row["responses"][0]["tokens"]["kl"].any()
    assert [one["kl"] for one in row["responses"]] == [0.0] * 3


def test_entropy_is_what_the_bonus_is_of_and_null_without_one(evaluated):
    record = {**ONE, "entropy": [[0.5, 1.5], [1.75], []]}
    (row,) = rows(*evaluated(record, variant="dr", entropy_coef=0.1), "record")
    assert row["entropy"] == pytest.approx((0.5 + 1.5 + 1.75) / 3, rel=1e-15)
    assert row["objective"] == pytest.approx(row["policy"] + 0.1 * row["entropy"], rel=1e-15)
    assert rows(*evaluated(record, variant="dr"), "record")[0]["entropy"] is None


def test_masked_tokens_are_gone_but_positions_stay(evaluated):
    record = {
        "log_probs_new": [[-1.0, -2.0, -3.0]],
        "log_probs_old": [[-1.0, -2.0, -3.0]],
        "advantages": [1.0],
        "mask": [[1, 0, 1]],
        "tokens": [["a", "b", "c"]],
        "token_ids": [[7, 8, 9]],
    }
    (row,) = rows(*evaluated(record), "token")
    tokens = row["responses"][0]["tokens"]
    assert tokens["token"] == ["a", "c"]
    assert tokens["token_id"] == [7, 9]
    assert tokens["position"].tolist() == [0, 2]
    assert list(tokens)[:3] == ["token", "token_id", "position"]


def test_advantages_of_tokens_and_several_rewards(evaluated):
    record = {
        "log_probs_new": [[-1.0, -2.0], [-1.0]],
        "log_probs_old": [[-1.0, -2.0], [-1.0]],
        "advantages": [[0.0, 0.0], [0.5]],
    }
    (row,) = rows(*evaluated(record), "token")
    assert [one["advantage"] for one in row["responses"]] == [None, None]
    assert row["responses"][1]["tokens"]["advantage"].tolist() == [0.5]
    assert row["dead_groups"] == 0


def test_no_tokens_at_all(evaluated):
    record = {"log_probs_new": [[], []], "log_probs_old": [[], []], "rewards": [1, 0]}
    (row,) = rows(*evaluated(record), "token")
    assert row["clip_fraction"] is row["ratio_mean"] is row["ratio_min"] is None
    assert (row["objective"], row["loss"], row["gradient_norm"]) == (0.0, 0.0, 0.0)
    assert math.copysign(1.0, row["loss"]) == 1.0
    assert encode_csv(*evaluated(record), level="token", fields=None) == [b""]


def test_an_infinite_ratio_is_null_in_json_and_inf_in_csv(evaluated):
    record = {"log_probs_new": [[-1.0]], "log_probs_old": [[-900.0]], "advantages": [1.0]}
    (piece,) = encode_json(*evaluated(record), level="token", fields=None)
    row = orjson.loads(piece)
    assert row["ratio_max"] is row["responses"][0]["tokens"]["ratio"][0] is None
    for level in ("record", "response", "token"):
        name = "ratio" if level == "token" else "ratio_max"
        assert encode_csv(*evaluated(record), level=level, fields=(name,)) == [b"inf\n"]


def test_csv_quotes_what_needs_it(evaluated):
    record = TWO | {"id": 'a,"b"\n'}
    (line,) = encode_csv(*evaluated(record), level="record", fields=("id", "line"))
    assert line == b'"a,""b""\n",1\n'


def test_encoders_travel_to_other_processes(evaluated):
    encode = partial(encode_json, level="token", fields=("ratio",))
    assert pickle.loads(pickle.dumps(encode))(*evaluated(ONE)) == encode(*evaluated(ONE))


def test_chosen_fields_that_a_record_lacks_are_null(evaluated):
    (piece,) = encode_json(*evaluated(ONE), level="token", fields=("token", "source", "reward"))
    row = orjson.loads(piece)
    assert list(row) == ["id", "source", "responses"]
    assert row["responses"][0] == {"response": 0, "reward": 1.0, "tokens": {"token": None}}
    (text,) = encode_csv(*evaluated(ONE), level="token", fields=("token", "clip"))
    assert text == b",\n,high\n,\n"
