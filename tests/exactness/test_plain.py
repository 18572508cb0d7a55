"""Every number at every level against ``plain.py``, on made-up records in files.

    GRPO_FILES=1000 pytest tests/exactness/test_plain.py

Records come nested, padded with a mask, under aliases, with empty responses, dead groups and
several groups each; a file of them is one batch. Numbers agree when they differ by at most 1e-12 of
the magnitudes that cancel in them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from math import fsum, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from command import run
from files import some

from exactness import plain

RTOL = 1e-12
SEED = 20
FILES = int(os.environ.get("GRPO_FILES", "6"))
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


def compare(records: list[plain.Record], variant: str, draw: random.Random) -> str:
    """What differs first between the numbers of a file; empty where none does."""
    lines = [orjson.dumps(dressed(record, draw)) for record in records]
    Path("in.jsonl").write_bytes(b"\n".join(lines))
    flags = ["-v", variant] + (["--beta", "0.04"] if variant == "trl/grpo" else [])
    document = run("eval", "in.jsonl", *flags, "--level", "token", "--json", "-q")
    assert document.exit_code == 0, document.stderr
    found = orjson.loads(document.stdout)
    wanted, total = expected(records, variant)
    names = (*_OF_RECORD, "tokens")
    return _differing(wanted, printed(found["records"])) or _differing(
        total, [found["total"][name] for name in names]
    )


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


def differing(seed: int, files: Iterable[int], size: int) -> list[str]:
    """What differs in made-up files of so many records, each under the next of the objectives."""
    variants = [*plain.RULES]
    found = []
    for number in files:
        draw = random.Random(f"{seed}/{number}")
        records = [made(draw) for _ in range(size)]
        variant = variants[number % len(variants)]
        said = compare(records, variant, draw)
        found += [f"file {number}, {variant}: {said}"] * bool(said)
    return found


def test_every_number_of_six_objectives(folder: Path) -> None:
    assert differing(SEED, range(FILES), 60) == []


@pytest.mark.parametrize("variant", some([*plain.RULES], 2))
def test_a_window_that_is_a_millionth_wider_is_noticed(
    variant: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = plain.RULES[variant]
    monkeypatch.setitem(plain.RULES, variant, rule._replace(high=rule.high + 1e-6))
    assert differing(SEED, [[*plain.RULES].index(variant)], 60)
