"""``-o FILE`` is written whole or not at all: a failure leaves an older file as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

OLD = "an older result\n"
BAD = '{"log_probs_new": [[-0.5, 7]], "rewards": [1]}'


@pytest.mark.parametrize(
    ("words", "records"),
    [
        *((["eval", "-v", "dr", "-f", kind], [{}, BAD]) for kind in ("json", "jsonl", "csv")),
        (["eval", "-v", "dr"], [{}, BAD]),
        (["eval", "-v", "dr", "-f", "jsonl"], [BAD]),
        (["eval", "-v", "dr", "--level", "token", "--only", "gradient"], [{}, BAD]),
        (["compare", "--variants", "grpo", "--beta", "0.04"], [{}]),
        (["split", "-n", "1", "--beta", "0.04"], [{}]),
    ],
)
def test_a_failure_leaves_the_older_file(grpo, dump, words, records):
    Path("out").write_text(OLD)
    outcome = grpo(*words, "-o", "out", dump(*records))
    assert (outcome.code, Path("out").read_text()) == (3, OLD)


def test_convert_leaves_the_older_file(grpo, dump):
    Path("out").write_text(OLD)
    assert grpo("convert", "-o", "out", dump({}, '{"log_probs_new": 5}')).code == 3
    assert Path("out").read_text() == OLD
    assert sorted(path.name for path in Path().iterdir()) == ["in.jsonl", "out"]
