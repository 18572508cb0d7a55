"""The product against ``plain.py``, on made-up records in files: every number, at every level.

    python tests/fuzz/differential.py --records 1000000 --seed 1 --jobs 4

Records come nested, padded with a mask, under aliases, with empty responses, dead groups and
several groups each; a file of them is one batch. Numbers agree when they differ by at most 1e-12 of
the magnitudes that cancel in them. Exit code 1: some do not, and the first record of each such file
is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from math import fsum, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import orjson

TESTS = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(TESTS)
    sys.path.insert(1, str(TESTS.parent))

from fuzz import plain  # noqa: E402
from fuzz.examine import sandbox  # noqa: E402
from fuzz.product import environment, run  # noqa: E402

RTOL = 1e-12
BATCH = 1000
"""Records of a file."""
_COLUMNS = {"new": "log_probs_new", "old": "log_probs_old", "ref": "log_probs_ref"}
_ALIASES = {
    "new": ("log_probs_new", "logps", "per_token_logps", "new_log_probs"),
    "old": ("log_probs_old", "old_log_probs", "old_per_token_logps", "prox_logp"),
    "ref": ("log_probs_ref", "ref_log_prob", "ref_logprobs", "base_action_log_probs"),
}
Pair = tuple[float, float]
"""A number, and the magnitude that its tolerance is relative to."""


def made(draw: random.Random) -> plain.Record:
    """A record in canonical form: up to three groups of four responses of six tokens."""
    sizes = [draw.choice((1, 2, 2, 3, 4)) for _ in range(draw.choice((1, 1, 2, 3)))]
    groups = [f"g{at}" for at, size in enumerate(sizes) for _ in range(size)]
    rewards = draw.choice((_binary, _binary, _halves, _normal, _dead))(groups, draw)
    record: plain.Record = {"groups": groups, "rewards": rewards, "new": [], "old": [], "ref": []}
    spread = draw.choice((0.0, 0.1, 0.3, 1.0, 4.0))
    for _ in groups:
        new = [-draw.expovariate(1.0) for _ in range(draw.choice((0, 1, 2, 3, 4, 6)))]
        record["new"].append(new)
        for name in ("old", "ref"):
            record[name].append([min(0.0, one + draw.gauss(0.0, spread)) for one in new])
    return record


def _binary(groups: list[str], draw: random.Random) -> list[float]:
    return [float(draw.random() < 0.4) for _ in groups]


def _halves(groups: list[str], draw: random.Random) -> list[float]:
    return [draw.choice((-1.0, 0.0, 0.5, 2.0)) for _ in groups]


def _normal(groups: list[str], draw: random.Random) -> list[float]:
    return [draw.gauss(draw.choice((0.0, 100.0)), 1.0) for _ in groups]


def _dead(groups: list[str], draw: random.Random) -> list[float]:
    return [0.3 for _ in groups]


def dressed(record: plain.Record, draw: random.Random) -> dict[str, Any]:
    """The record as a dump may have it."""
    names = {name: draw.choice(aliases) for name, aliases in _ALIASES.items()}
    value = {names[name]: record[name] for name in names}
    value |= {"rewards": record["rewards"], "group_ids": record["groups"]}
    if draw.random() < 0.4:
        _pad(value, [*names.values()], draw)
    return dict(draw.sample([*value.items()], len(value)))


def _pad(value: dict[str, Any], columns: list[str], draw: random.Random) -> None:
    """Holes and padding, with anything in them, and a mask that takes them out."""
    lengths = [len(row) for row in value[columns[0]]]
    width = max(lengths) + draw.randrange(3)
    if not width:
        return
    places = [sorted(draw.sample(range(width), length)) for length in lengths]
    value["mask"] = [[int(at in kept) for at in range(width)] for kept in places]
    for name in columns:
        value[name] = [
            [dict(zip(kept, row, strict=True)).get(at, 7.5) for at in range(width)]
            for kept, row in zip(places, value[name], strict=True)
        ]


def expected(records: list[plain.Record], variant: str) -> tuple[list[Pair], list[Pair]]:
    """The numbers of every record and its tokens, in the order of ``printed``, and the totals."""
    rule = plain.RULES[variant]
    advantages = [plain.advantages(record, rule) for record in records]
    rows = [
        [plain.tokens_of(at, record, variant, one) for at, one in enumerate(every)]
        for record, every in zip(records, advantages, strict=True)
    ]
    flat = [tokens for row in rows for tokens in row]
    found = plain.weights([len(one) for one in flat], rule)
    pairs, of_batch = [], iter(found)
    for every, tokens in zip(advantages, rows, strict=True):
        own = plain.weights([len(one) for one in tokens], rule)
        batch = [next(of_batch) for _ in tokens]
        pairs += [*_sums(tokens, own, rule), *_details(every, tokens, batch, rule)]
    return pairs, [*_sums(flat, found, rule), (float(sum(map(len, flat))), 0.0)]


def _sums(tokens: list[Any], found: list[float], rule: plain.Rule) -> list[Pair]:
    """Objective, loss, policy, KL, gradient norm and clip fractions."""
    every = [(w, one) for w, row in zip(found, tokens, strict=True) for one in row]
    policy, p_size = fsum(w * one[3] for w, one in every), fsum(w * one[7] for w, one in every)
    kl, k_size = fsum(w * one[4] for w, one in every), fsum(w * one[8] for w, one in every)
    objective, size = policy - rule.beta * kl, p_size + k_size
    gradients = [w * (one[5] - one[6]) for w, one in every]
    norm = sqrt(fsum(g * g for g in gradients))
    sizes = sqrt(fsum((w * (one[7] + one[8])) ** 2 for w, one in every))
    clips = [
        sum(one[2] == side for _, one in every) / len(every) if every else nan for side in (-1, 1)
    ]
    return [
        *((objective, size), (-objective, size), (policy, p_size), (kl, k_size), (norm, sizes)),
        *((clip, 1.0) for clip in clips),
    ]


def _details(
    every: list[Pair], tokens: list[Any], found: list[float], rule: plain.Rule
) -> Iterator[Pair]:
    """The advantage of each response, then its tokens' numbers."""
    for advantage, rows, w in zip(every, tokens, found, strict=True):
        yield advantage
        for log, ratio, side, s, k, slope, k_slope, s_size, k_size in rows:
            size = w * (s_size + k_size)
            yield from ((log, 1.0), (ratio, max(1.0, ratio)), (float(side), 0.0), (s, s_size))
            yield from ((k, k_size), (w, w), (w * (s - rule.beta * k), size))
            yield (w * (slope - k_slope), size)


_OF_RECORD = (
    *("objective", "loss", "policy", "kl", "gradient_norm", "clip_fraction_low"),
    "clip_fraction_high",
)
_OF_TOKEN = ("log_ratio", "ratio", "clip", "surrogate", "kl", "weight", "contribution", "gradient")

_SIDES = {"low": -1.0, None: 0.0, "high": 1.0}


def printed(rows: list[dict[str, Any]]) -> list[Any]:
    """What the product says, in the order of ``expected``."""
    values: list[Any] = []
    for row in rows:
        values += [row[name] for name in _OF_RECORD]
        for response in row["responses"]:
            values.append(response["advantage"])
            columns = response["tokens"]
            columns["clip"] = [_SIDES[one] for one in columns["clip"]]
            values += [
                x for each in zip(*(columns[n] for n in _OF_TOKEN), strict=True) for x in each
            ]
    return values


def compare(records: list[plain.Record], variant: str, draw: random.Random) -> tuple[int, str]:
    """How many numbers of a file were compared, and what differs first."""
    lines = [orjson.dumps(dressed(record, draw)) for record in records]
    Path("in.jsonl").write_bytes(b"\n".join(lines))
    flags = ["-v", variant] + (["--beta", "0.04"] if variant == "trl/grpo" else [])
    document = run(["eval", "in.jsonl", *flags, "--level", "token", "--json", "-q"])
    if document.code:
        return 0, document.err.decode()
    found = orjson.loads(document.out)
    wanted, total = expected(records, variant)
    names = (*_OF_RECORD, "tokens")
    said = _differing(wanted, printed(found["records"])) or _differing(
        total, [found["total"][name] for name in names]
    )
    return len(wanted) + len(total), said


def _differing(wanted: list[Pair], found: list[Any]) -> str:
    """The first number that differs; empty where none does."""
    if len(wanted) != len(found):
        return f"{len(wanted)} numbers expected, {len(found)} printed"
    theirs = np.array([nan if one is None else one for one in found], dtype=np.float64)
    ours, sizes = np.array(wanted, dtype=np.float64).T
    close = np.abs(ours - theirs) <= RTOL * np.maximum(sizes, np.abs(ours))
    bad = np.flatnonzero(~(close | (np.isnan(ours) & np.isnan(theirs))))
    at = bad[0] if len(bad) else 0
    return f"{len(bad)} differ, number {at}: {ours[at]!r}, {theirs[at]!r} of {sizes[at]!r}" * bool(
        len(bad)
    )


def campaign(seed: int, numbers: range, batch: int = BATCH) -> tuple[int, int, list[str]]:
    """So many files: how many records and numbers were compared, and what differs."""
    count, compared, bad = 0, 0, []
    variants = [*plain.RULES]
    with sandbox():
        for number in numbers:
            draw = random.Random(f"differential {seed}/{number}")
            records = [made(draw) for _ in range(batch)]
            variant = variants[number % len(variants)]
            size, said = compare(records, variant, draw)
            count, compared = count + len(records), compared + size
            if said:
                bad.append(
                    f"file {number}, {variant}: {_narrowed(records, variant, number)} {said}"
                )
    return count, compared, bad


def _narrowed(records: list[plain.Record], variant: str, number: int) -> str:
    """The first record that differs on its own."""
    for at, record in enumerate(records):
        if compare([record], variant, random.Random(number))[1]:
            return f"record {at} {json.dumps(record)}"
    return "no record alone"


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--files", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.files:
        print(json.dumps(campaign(given.seed, range(*map(int, given.files.split(","))))))
        return 0
    began = time.monotonic()
    files = -(-given.records // BATCH)
    results = [*_shared_out(given.seed, files, given.jobs)]
    records, numbers = (sum(row[at] for row in results) for at in (0, 1))
    bad = [said for row in results for said in row[2]]
    seconds = time.monotonic() - began
    print(f"{records:,} records, {numbers:,} numbers, {len(bad)} files differ: {seconds:.0f} s")
    print(*bad[:20], sep="\n")
    return int(bool(bad))


def _shared_out(seed: int, files: int, jobs: int) -> Iterator[Any]:
    command = [sys.executable, __file__, "--seed", str(seed), "--files"]
    started = [
        subprocess.Popen(
            [*command, f"{first},{files},{jobs}"], stdout=subprocess.PIPE, env=environment()
        )
        for first in range(min(jobs, files))
    ]
    for process in started:
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"a worker ended with {process.returncode}")
        yield json.loads(out)


if __name__ == "__main__":
    sys.exit(main())
