"""Each key that ``--json`` prints is a field of the answer from Python, in its place.

A new key of a command's JSON is a line of its dataclass in ``grpo_cli/commands/COMMAND/answer.py``.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import run

from grpo_cli import check, compare, match, split, verify

TESTS = Path(__file__).parent.parent
DAPO = str(TESTS / "data/rollouts/trl-1.16.0-dapo.jsonl")
VERL = str(TESTS / "data/verl-0.9.1.jsonl")
GRPO = str(TESTS / "data/trl-1.16.0-grpo.jsonl")
SHIFTED = str(TESTS.parent / "samples/temperature.jsonl")


def printed(*arguments: str) -> bytes:
    """What a command prints on standard output."""
    return run(*arguments).stdout_bytes


def as_printed(document: dict[str, Any]) -> bytes:
    option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    return orjson.dumps(document, option=option) + b"\n"


ANSWERS = {
    "compare": (
        lambda: compare(DAPO, ["grpo", "trl/*"], beta=0.01),
        ["compare", DAPO, "-v", "grpo,trl/*", "--beta", "0.01"],
    ),
    "match": (
        lambda: match(GRPO, loss="0.0122", variant="dapo", stages={"kl": "none"}),
        ["match", GRPO, "--loss", "0.0122", "-v", "dapo", "--kl", "none"],
    ),
    "verify": (lambda: verify(DAPO), ["verify", DAPO]),
    "verify, differing": (
        lambda: verify(DAPO, "dapo", rtol=1e-6, causes=1, epsilon_high=0.4),
        ["verify", DAPO, "-v", "dapo", "--rtol", "1e-6", "--causes", "1", "--epsilon-high", "0.4"],
    ),
    "check": (lambda: check(VERL), ["check", VERL]),
    "check, with findings": (
        lambda: check(SHIFTED, limit=1),
        ["check", SHIFTED, "--limit", "1"],
    ),
    "split": (
        lambda: split(DAPO, 4, ranks=2, variant="dapo"),
        ["split", DAPO, "-n", "4", "--ranks", "2", "-v", "dapo"],
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_what_json_prints(name: str) -> None:
    ask, arguments = ANSWERS[name]
    answer = ask()
    assert as_printed(answer.document()) == printed(*arguments, "--json", "-q")
    assert dataclasses.is_dataclass(answer)
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.records = 0  # type: ignore[misc]
    assert answer._repr_html_().startswith("<div>")
