"""The names of every number that is printed, in the order in which they are printed."""

from __future__ import annotations

from typing import Literal, get_args

Level = Literal["batch", "record", "response", "token"]
LEVELS: tuple[Level, ...] = get_args(Level)

TOTAL_FIELDS = (
    "objective",
    "loss",
    "policy",
    "kl",
    "entropy",
    "denominator",
    "denominator_of",
    "records",
    "groups",
    "responses",
    "tokens",
    "clip_fraction",
    "clip_fraction_low",
    "clip_fraction_high",
    "ratio_mean",
    "ratio_min",
    "ratio_max",
    "gradient_norm",
    "dead_groups",
    "empty_responses",
    "on_policy_records",
)

RECORD_FIELDS = (
    "id",
    "source",
    "line",
    "objective",
    "loss",
    "policy",
    "kl",
    "entropy",
    "denominator",
    "denominator_of",
    "groups",
    "response_count",
    "tokens",
    "clip_fraction",
    "clip_fraction_low",
    "clip_fraction_high",
    "ratio_mean",
    "ratio_min",
    "ratio_max",
    "gradient_norm",
    "dead_groups",
    "signature",
)

RESPONSE_FIELDS = (
    "index",
    "group",
    "reward",
    "advantage",
    "length",
    "weight",
    "policy",
    "kl",
    "contribution",
    "clip_fraction",
    "clip_fraction_low",
    "clip_fraction_high",
    "ratio_mean",
    "ratio_min",
    "ratio_max",
    "gradient_norm",
)

TOKEN_FIELDS = (
    "token",
    "token_id",
    "position",
    "log_ratio",
    "ratio",
    "clip",
    "advantage",
    "surrogate",
    "kl",
    "correction",
    "weight",
    "contribution",
    "gradient",
)

RECORD_CONTEXT = ("id", "source", "line")
"""What a row of a response or token may say of its record."""

RESPONSE_CONTEXT = ("index", "group", "reward")
"""What a row of a token may say of its response."""

FIELDS: dict[Level, tuple[str, ...]] = {
    "batch": TOTAL_FIELDS,
    "record": RECORD_FIELDS,
    "response": (*RECORD_CONTEXT, *RESPONSE_FIELDS),
    "token": (*RECORD_CONTEXT, *RESPONSE_CONTEXT, *TOKEN_FIELDS),
}
"""The names that can be chosen at each level."""

COLUMNS: dict[Level, tuple[str, ...]] = {
    "batch": TOTAL_FIELDS,
    "record": RECORD_FIELDS,
    "response": ("id", *RESPONSE_FIELDS),
    "token": ("id", "index", *TOKEN_FIELDS),
}
"""The columns of a csv file at each level, unless others are chosen."""
