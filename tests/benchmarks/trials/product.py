"""The product as its users drive it: the command line, in this process.

Nothing else of the package is imported by the experiment, so that it outlives any rearrangement.
"""

from __future__ import annotations

import atexit
import csv
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import command
import orjson

Record = dict[str, Any]
KEYS: dict[str, dict[str, str]] = {
    "own": {},
    "trl": {
        "log_probs_new": "per_token_logps",
        "log_probs_old": "old_per_token_logps",
        "log_probs_ref": "ref_per_token_logps",
        "log_probs_rollout": "sampling_per_token_logps",
        "mask": "completion_mask",
        "token_ids": "completion_ids",
    },
    "verl": {
        "log_probs_new": "log_probs",
        "log_probs_old": "old_log_probs",
        "log_probs_ref": "ref_log_prob",
        "log_probs_rollout": "rollout_log_probs",
        "mask": "response_mask",
        "token_ids": "response_ids",
        "group_ids": "uid",
    },
}
"""Whose names → canonical name → theirs."""


def rows(module: str, name: str) -> list[dict[str, str]]:
    """The rows of a table next to a module: column → cell."""
    with Path(module).with_name(name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def table(module: str, name: str) -> list[dict[str, Any]]:
    """The objects of a JSON table next to a module; lists are tuples."""

    def frozen(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: frozen(one) for key, one in value.items()}
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return [*frozen(json.loads(Path(module).with_name(name).read_bytes()))]


@dataclass(frozen=True)
class Answer:
    """What a command answered: exit code (70 for a crash), ``--json`` document, standard error."""

    code: int
    document: Any
    told: str


@cache
def _folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="answers-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def place(records: Sequence[Record], name: str = "batch") -> str:
    """Writes records as JSONL where this process keeps its files; gives the path."""
    path = _folder() / f"{name}.jsonl"
    path.write_bytes(lines(records))
    return str(path)


def lines(records: Sequence[Record]) -> bytes:
    """Records as JSONL; NaN and infinities are kept as Python writes them."""
    return b"".join(_line(record) + b"\n" for record in records)


def _line(record: Record) -> bytes:
    if record.get("not_finite"):
        return json.dumps({k: v for k, v in record.items() if k != "not_finite"}).encode()
    return orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)


def run(*words: str) -> Answer:
    """Runs ``grpo WORDS --json``."""
    result = command.run(*words, "--json")
    crashed = result.exception is not None and not isinstance(result.exception, SystemExit)
    try:
        document = orjson.loads(result.stdout) if result.stdout.strip() else None
    except orjson.JSONDecodeError:
        document = None
    told = result.stderr + (f"\n{result.exception!r}" if crashed else "")
    return Answer(70 if crashed else result.exit_code, document, told)


def ask(name: str, records: Sequence[Record], *words: str) -> Answer:
    """Runs a command on records."""
    return run(name, place(records), *words)


_SCALE = re.compile(r"\$1\s*([*/])\s*([0-9.e+-]+)")


def printed_value(line: str, path: str) -> float | None:
    """The number that a printed command gives, on another file; None where it gives none.

    ``grpo eval FILE … --only loss | awk '… $1 / 4 …'`` is run as printed, but with ``--json`` in
    place of ``--only`` and without a shell; the factor of the awk script is applied here.
    """
    head, _, tail = line.partition(" | ")
    words = shlex.split(head)[1:]
    wanted = words[words.index("--only") + 1] if "--only" in words else "loss"
    kept = [word for at, word in enumerate(words[1:]) if not _of_only(words, at + 1)]
    files = [word for word in kept if word.endswith((".jsonl", ".json"))]
    answer = run(words[0], *[path if word in files else word for word in kept])
    total = (answer.document or {}).get("total", {})
    if answer.code or wanted not in total or total[wanted] is None:
        return None
    value = float(total[wanted])
    if found := _SCALE.search(tail):
        by = float(found[2])
        return value * by if found[1] == "*" else value / by
    return value


def _of_only(words: Sequence[str], at: int) -> bool:
    return words[at] == "--only" or words[at - 1] == "--only"
