"""No command decodes a record of plain JSON more often than it has to pass over it."""

from __future__ import annotations

import json

import orjson
import pytest

UNUSUAL = {"entropies": [[0.5, 0.25], [0.1]], "hyperparameters": {"beta": 0.0}}


@pytest.mark.parametrize("more", [{}, UNUSUAL], ids=["plain", "one by one"])
@pytest.mark.parametrize(
    "command",
    [
        ["eval", "--level", "token", "-f", "csv"],
        ["eval", "--where", "step==1"],
        ["compare", "--variants", "grpo,dr"],
        ["convert"],
        ["check"],
    ],
    ids=" ".join,
)
def test_a_record_is_decoded_once(grpo, dump, monkeypatch, command, more):
    path = dump(*[{"id": f"r{at}", "step": 1} | more for at in range(5)])
    lines = {json.dumps(orjson.loads(line)) for line in path.read_bytes().splitlines()}
    seen: list[str] = []
    real = orjson.loads

    def counted(text):
        value = real(text)
        seen.append(json.dumps(value))
        return value

    monkeypatch.setattr(orjson, "loads", counted)
    assert grpo(*command, str(path)).exit_code == 0
    passes = 2 if "token" in command else 1  # the denominators of the whole batch come first
    assert sorted(text for text in seen if text in lines) == sorted([*lines] * passes)
