"""Inputs that have no answer: a loss that returns a number for one of these hides a fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vectors.cases.vector import PLAIN, Vector, columns, scored

NAN, INF = float("nan"), float("inf")
GOOD: Mapping[str, Any] = {
    "new": [[-1.0, -0.5], [-2.0, -1.0]],
    "old": [[-1.125, -0.5], [-1.875, -1.0625]],
    "ref": [[-1.5, -0.25], [-2.5, -1.25]],
    "rollout": [[-1.0, -0.5], [-2.0, -1.25]],
}
NEEDS: Mapping[str, Mapping[str, Any]] = {
    "new": {},
    "old": {},
    "ref": {"kl": "k3", "beta": 0.25},
    "rollout": {"correction": "token-truncate", "is_high": 2.0},
}
FILES = {"new": "clip", "old": "clip", "ref": "kl", "rollout": "correction"}


def given(
    column: str, value: float | None, advantages: list[float] | None = None
) -> dict[str, Any]:
    """A good batch of two tokens a response, one value of it replaced; None: it is missing."""
    needed = {"new", "old", column}
    tokens = {name: [list(row) for row in GOOD[name]] for name in GOOD if name in needed}
    if value is None:
        tokens[column][1].pop()
    else:
        tokens[column][0][1] = value
    mask = [[1, 1], [1, 1]]
    return columns(**tokens, mask=mask, advantages=advantages or [1.0, -1.0])


def log_probs() -> Iterator[tuple[str, Vector]]:
    faults = {
        "nan": (NAN, "is not a number", "log-prob-nan", ["zero-filled"]),
        "infinite": (INF, "is infinite", "log-prob-infinite", ["zero-filled"]),
        "positive": (0.5, "is above 0", "log-prob-positive", ["zero-filled"]),
        "short": (None, "is missing", "lengths-differ", ["lengths-differ"]),
    }
    for column, needs in NEEDS.items():
        for fault, (value, words, topic, flags) in faults.items():
            yield (
                FILES[column],
                Vector(
                    f"invalid-{column}-{fault}",
                    f"A log-prob that counts ({column}) {words}.",
                    flags,
                    given(column, value),
                    PLAIN | needs,
                    wanted=(),
                    refuses=topic,
                ),
            )


def settings() -> Iterator[tuple[str, Vector]]:
    good = given("new", -0.5)
    yield (
        "clip",
        Vector(
            "invalid-dual-clip",
            "A bound of dual clip below 1, which would cut ratios inside the band.",
            ["dual-clip-range"],
            good,
            PLAIN | {"dual_clip": 0.5},
            wanted=(),
            refuses="dual-clip-below-1",
        ),
    )
    yield (
        "kl",
        Vector(
            "invalid-no-reference",
            "A KL coefficient and no reference.",
            ["kl-dropped"],
            good,
            PLAIN | {"kl": "k3", "beta": 0.25},
            wanted=(),
            refuses="reference-missing",
        ),
    )


def rewards() -> Iterator[tuple[str, Vector]]:
    for name, values, topic in (
        ("nan", [1.0, NAN, 0.0], "reward-nan"),
        ("infinite", [1.0, INF, 0.0], "reward-infinite"),
    ):
        yield (
            "advantage",
            Vector(
                f"invalid-reward-{name}",
                "A reward that is not a finite number.",
                ["zero-filled"],
                scored(values),
                {"advantage": "group-mean"},
                wanted=(),
                refuses=topic,
                same_under={"advantage": ["leave-one-out"]},
            ),
        )


CASES = [*log_probs(), *settings(), *rewards()]
"""(file, vector): each stands at the end of the file whose stage it is about."""
