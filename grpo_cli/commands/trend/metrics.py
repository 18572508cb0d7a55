"""The table of metrics: what each is called, what it is made of, and how it is computed.

A new column of ``grpo trend`` is a line here. Order is the order in which they are printed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.responses import Responses
from grpo_cli.commands.trend.sums import (
    MOST_ENVIRONMENTS,
    OF_ENVIRONMENT,
    OF_SPREAD,
    PROMPT,
    Ragged,
    StepSums,
    environments_by_field,
    quantiles,
)
from grpo_cli.objective.terms import ENTROPY, KL, POLICY

Read = Callable[["StepValues"], F64]
"""[S] a number of each step; NaN where it has none."""


class Metric(NamedTuple):
    """One column.

    Attributes:
        name: what it is called in every format and flag.
        family: "signal" (what comes in), "update" (what is done with it), or "mismatch".
        read: its values.
        spare: when a narrow terminal goes without it: the greatest first; 0: never.
        worst: where to look when it goes wrong, of ``Step.worst``.
        whole: whether it is a whole number.
        needs: what records must have for it.
    """

    name: str
    family: str
    read: Read
    spare: int = 0
    worst: str | None = None
    whole: bool = False
    needs: str = ""

    @property
    def usual(self) -> bool:
        """Whether it is shown unasked."""
        return self.spare < _ASKED


_ASKED = 25
"""The ``spare`` from which a column is shown only where it is asked for."""


class StepValues:
    """The sums of S steps as numbers, and their responses; all [S], NaN where there is none."""

    def __init__(self, sums: StepSums) -> None:
        self.table, self._known = sums, dict[str, F64]()
        self.responses = Responses(sums.family("row"))
        self.evaluated = sums.count("evaluated_tokens") > 0

    def sum(self, name: str) -> F64:
        """A sum, rounded once."""
        if name not in self._known:
            self._known[name] = self.table.sum(name)
        return self._known[name]

    def count(self, name: str) -> F64:
        """A count; NaN in the place of 0, which nothing is divided by."""
        counts = self.table.count(name).astype(np.float64)
        return np.where(counts, counts, np.nan)

    def mean(self, name: str, over: str) -> F64:
        """A sum divided by a count."""
        return self.sum(name) / self.count(over)

    def share(self, part: str, whole: str) -> F64:
        """A count divided by another."""
        return self.table.count(part).astype(np.float64) / self.count(whole)

    def clipped(self, side: str) -> F64:
        """The share of tokens that the clip bound on a side."""
        return self.share(f"clipped_{side}", "evaluated_tokens")

    def extreme(self, name: str) -> F64:
        """The largest number of a name."""
        found = self.table.columns.get(("largest", name))
        return np.full(len(self.table), np.nan) if found is None else found.reduced(np.fmax, np.nan)

    def quantile(self, name: str, share: float) -> F64:
        """A quantile of a distribution, which is no larger than the largest number."""
        found, largest = self.table.columns.get(("bins", name)), self.extreme(name)
        return largest if found is None else quantiles(found, share, largest)

    # ---- the objective ----------------------------------------------------------------------

    def _counted(self, term: str) -> F64:
        """What a term's sum is divided by."""
        counts = self.table.count(f"counted/{term}").astype(np.float64)
        return np.where(counts, counts, 1.0)

    def _term(self, name: str) -> tuple[F64, F64]:
        """Σ w·value of a term, NaN where a step has none; and what that adds to J."""
        column = self.table.columns.get(("term", name))
        if column is None:
            return np.full(len(self.table), np.nan), np.zeros(len(self.table))
        steps, coefficients, numbers = column.by_coefficient()
        sums, widths = numbers.sums(), np.bincount(steps, minlength=len(self.table))
        parts = np.where(coefficients, coefficients * sums, 0.0)
        whole, added, only = (Ragged(widths, one).sums() for one in (sums, parts, coefficients))
        count = self._counted(name)
        single = np.where(only, only * (whole / count), 0.0)
        return (
            np.where(widths, whole / count, np.nan),
            np.where(widths == 1, single, added / count),
        )

    def _if_evaluated(self, values: F64) -> F64:
        return np.where(self.evaluated, values + 0.0, np.nan)

    @cached_property
    def _terms(self) -> dict[str, tuple[F64, F64]]:
        return {name: self._term(name) for name in (POLICY, KL, ENTROPY)}

    @cached_property
    def objective(self) -> F64:
        """J of the step."""
        parts = [part for _, part in self._terms.values()]
        return self._if_evaluated(parts[0] + parts[1] + parts[2])

    @property
    def kl(self) -> F64:
        """The KL term, where every record of the step has one."""
        known = self.table.count("kl_unknown") == 0
        return self._if_evaluated(np.where(known, self._terms[KL][0], np.nan))

    @property
    def gradient_norm(self) -> F64:
        """‖∂J/∂log π_θ‖ over all tokens."""
        found = self.table.family("product")
        square, mixed = np.zeros((2, len(self.table)))
        for first, second in sorted(found, key=lambda pair: pair[0] != pair[1]):
            product = found[first, second]
            mixed += (product.widths > 0) & ((first, second) != (POLICY, POLICY))
            size = self._counted(first) * self._counted(second)
            square += (1.0 if first == second else 2.0) * product.sums() / size
        own = found.get((POLICY, POLICY))
        norm = np.sqrt(np.maximum(square, 0.0))
        if own is not None:
            norm = np.where(mixed, norm, np.sqrt(own.sums()) / self._counted(POLICY))
        return self._if_evaluated(norm)


def _ratio_tail(step: StepValues) -> F64:
    logarithms = step.quantile("log_ratio", 0.999).tolist()
    return np.array([math.exp(one) if not one >= 700 else math.inf for one in logarithms])


def _mismatch_k3(step: StepValues) -> F64:
    """Mean of e^d − 1 − d: of KL(engine ‖ trainer), with d = log π_trainer − log π_engine."""
    return (step.sum("mismatch_excess") - step.sum("mismatch_d")) / step.count("mismatch")


def mean_of(name: str, over: str = "", *, sign: int = 1) -> Read:
    """Reads a sum divided by a count, that of its own name if no other is given."""
    if sign < 0:
        return lambda step: 0.0 - step.mean(name, over or name)
    return lambda step: step.mean(name, over or name)


def _share_of(part: str, whole: str) -> Read:
    return lambda step: step.share(part, whole)


def _effective(total: F64, squares: F64, count: F64) -> F64:
    """(Σ w)² / (N·Σ w²), the share of a sample that is left when it is weighted."""
    known = np.isfinite(total) & np.isfinite(squares) & (squares != 0.0)
    return np.where(known, total / count * (total / squares), np.nan)


def _ratio_ess(step: StepValues) -> F64:
    return _effective(step.sum("ratio"), step.sum("ratio_squared"), step.count("evaluated_tokens"))


def _unmoved(step: StepValues) -> F64:
    """The share of tokens with a ratio of exactly 1; NaN where nothing was updated."""
    moved = step.share("moved", "evaluated_tokens")
    return np.where(moved > 0.0, 1.0 - moved, np.nan)


def _mismatch_ess(step: StepValues) -> F64:
    """Of the weights w = e^d, of which Σ (w − 1) and Σ (w² − 1) are known.

    NaN where the mean of w² is below 1e-8: its digits are lost in the sum of w² − 1.
    """
    count = step.count("mismatch")
    total, squares = (count + step.sum(f"mismatch_{name}") for name in ("excess", "square_excess"))
    return np.where(squares >= 1e-8 * count, _effective(total, squares, count), np.nan)


def _of_responses(name: str) -> Read:
    return lambda step: getattr(step.responses, name)


OBJECTIVE = "the columns of the objective"
"""What the numbers of the update need; which of them is missing, the evaluation says."""


def _columns(
    family: str, needs: str, worst: str | None = None, prefix: str = ""
) -> Callable[..., Metric]:
    """A constructor of metrics of one family that need the same columns of records."""

    def make(name: str, read: Read, spare: int, **more: Any) -> Metric:
        return Metric(prefix + name, family, read, spare, worst=worst, needs=needs, **more)

    return make


_of_reward = _columns("signal", "rewards")
_of_groups = _columns("signal", "groups of at least two rewards")
_of_answers = _columns("signal", "rewards of 0 or 1")
_of_length = _columns("signal", "tokens", "length")
_of_update = _columns("update", OBJECTIVE)
_of_gradient = _columns("update", OBJECTIVE, "gradient")
_of_kl = _columns("update", "log_probs_ref", "kl")
_of_ratio = _columns("update", OBJECTIVE, "ratio")
_of_mismatch = _columns("mismatch", "log_probs_rollout", "mismatch", "mismatch.")

ALL = (
    # ---- what comes in
    _of_reward("reward_mean", _of_responses("reward_mean"), 0),
    _of_reward("reward_std", _of_responses("reward_std"), 16),
    _of_groups("reward_group_std", _of_responses("reward_group_std"), 14),
    _columns("signal", "rewards and lengths that vary within a group")(
        "reward_length_corr", _of_responses("reward_length_corr"), 13
    ),
    _columns("signal", "rewards and advantages that vary within a group")(
        "reward_advantage_corr", _of_responses("reward_advantage_corr"), 31
    ),
    _columns("signal", "log_probs_old, and 24 rewards that vary within groups")(
        "reward_ratio_corr", _of_responses("reward_ratio_corr"), 32
    ),
    _of_groups("groups_equal", lambda step: step.responses.share_of_groups(), 12),
    _of_answers("groups_all_0", _of_responses("all_wrong"), 28),
    _of_answers("groups_all_1", _of_responses("all_right"), 27),
    _of_answers("pass_at_1", _of_responses("pass_at_1"), 30),
    _of_answers("pass_at_k", _of_responses("pass_at_k"), 15),
    _of_length("length_mean", _of_responses("length_mean"), 6),
    _of_length("length_p95", lambda step: step.responses.length_quantile(0.95), 26, whole=True),
    _of_length("at_longest", _of_responses("at_longest"), 29),
    _columns("update", "token_ids, and prompts that come again", "kl")(
        "ref_moved", _of_responses("reference_moved"), 38
    ),
    _columns("signal", "log_probs_new")("copies", _of_responses("copies"), 26),
    _columns("signal", "finish_reasons")("truncated", _share_of("cut_off", "endings"), 11),
    _columns("signal", "tokens or token_ids")("repetition", mean_of("repetition"), 24),
    _columns("signal", "entropies", "nll")("entropy", mean_of("entropy"), 4),
    _columns("signal", "log_probs_new", "nll")("nll", mean_of("log_prob", sign=-1), 5),
    # ---- what is done with it
    _of_update("objective", lambda step: step.objective, 35),
    _of_gradient("loss", lambda step: 0.0 - step.objective, 1),
    _of_kl("kl", lambda step: step.kl, 33),
    _of_kl("kl_k1", mean_of("kl_k1", "kl"), 34),
    _of_kl("kl_k3", mean_of("kl_k3", "kl"), 2),
    _of_ratio("clip_low", lambda step: step.clipped("low"), 17),
    _of_ratio("clip_high", lambda step: step.clipped("high"), 3),
    _of_ratio("clip_fraction", lambda step: step.clipped("low") + step.clipped("high"), 36),
    _of_update("gradient_norm", lambda step: step.gradient_norm, 7),
    _of_ratio("ratio_mean", mean_of("ratio", "evaluated_tokens"), 21),
    _of_ratio("ratio_p999", _ratio_tail, 18),
    _of_ratio("ess", _ratio_ess, 20),
    _of_ratio("unmoved", _unmoved, 37),
    # ---- the trainer against the engine
    _columns("mismatch", "weight_versions")("staleness", _share_of("lag", "versions"), 22),
    _of_mismatch("k1", mean_of("mismatch_d", "mismatch", sign=-1), 19),
    _of_mismatch("k3", _mismatch_k3, 8),
    _of_mismatch("chi2", mean_of("mismatch_square_excess", "mismatch"), 31),
    _of_mismatch("ess", _mismatch_ess, 25),
    _of_mismatch("mean_abs", mean_of("mismatch_size", "mismatch"), 10),
    _of_mismatch("mult", mean_of("mismatch_both", "mismatch"), 32),
    _of_mismatch("p999", lambda step: step.quantile("mismatch", 0.999), 9),
)
LEFT_OUT = Metric("left_out", "signal", lambda step: step.count("left_out"), whole=True)
"""Records that hold NaN: a column only where there are any."""
MASKED_START = Metric("masked_start", "signal", _share_of("masked_start", "samples"), _ASKED)
"""The share of responses whose first token the mask leaves out: a column only if there are any."""
RECORDED_LOSS = Metric("recorded_loss", "update", mean_of("recorded_loss"), 8)
"""The mean of the losses that the records hold: a column only where there are any."""
LOSS_NOISE = 1e-5
"""More than what single precision leaves of a loss whose terms of about 1 cancel."""
_IF_ANY = LEFT_OUT, MASKED_START, RECORDED_LOSS
METRICS: Mapping[str, Metric] = {one.name: one for one in (*ALL, *_IF_ANY)}

MEAN = "/mean"
_FUNCTION = re.compile(r"rewards/(.+)/mean")


def metric(name: str) -> Metric | None:
    """The column of that name: of the table, or the mean of one of several reward functions."""
    if name in METRICS:
        return METRICS[name]
    if name.startswith((OF_ENVIRONMENT, OF_SPREAD)):
        return Metric(name, "signal", mean_of(name), _ASKED)
    if not _FUNCTION.fullmatch(name):
        return None
    return Metric(name, "signal", mean_of(name.removesuffix(MEAN)))


def worst_kind(name: str) -> str | None:
    """Where to look when a column goes wrong, of ``Step.worst``; None where no place shows it."""
    return METRICS[name].worst if name in METRICS else None


def functions(step: Mapping[str, object]) -> list[str]:
    """The columns of a step that are of single reward functions, as TRL calls them."""
    return [name for name in step if _FUNCTION.fullmatch(name) and name not in METRICS]


def values(step: StepValues) -> dict[str, F64]:
    """Every metric of the steps, then those of single reward functions."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = {one.name: one.read(step) for one in ALL}
        for one in _IF_ANY:
            if step.table.count(one.name).any():
                found[one.name] = one.read(step)
        for name in step.table.functions:
            found[name + MEAN] = step.mean(name, name)
        for names in environments_by_field(step.table):
            if len(names) <= MOST_ENVIRONMENTS:
                found |= {name: step.mean(name, name) for name in names}
        dead = [*step.responses.dead_prompts()]
        for prompt, mean, spread in dead if len(dead) <= MOST_ENVIRONMENTS else ():
            named = f"{PROMPT}{_short(str(prompt))}"
            found[f"{OF_ENVIRONMENT}{named}"] = mean
            found[f"{OF_SPREAD}{named}"] = spread
    return found


def _short(prompt: str) -> str:
    """A prompt on one line; of a long one the beginning, and a hash that prompts differ by."""
    line = " ".join(prompt.split())
    digest = blake2b(prompt.encode("utf-8", "replace"), digest_size=3).hexdigest()
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…{digest}"


_LONGEST = 40
"""Characters of a prompt that name its series."""


# ---- what they are -----------------------------------------------------------------------------

LEGEND: Mapping[str, Sequence[str]] = json.loads(
    files(__package__).joinpath("legend.json").read_text(encoding="utf-8")
)
"""Column of ``trend`` → what it is, and how it is computed where that does not say so."""


def described(name: str) -> str:
    """What a column is, with its formula; "" of one that ``trend`` has not."""
    return ": ".join(LEGEND.get(name, [legend(name)]))


def unit(name: str) -> str:
    """The unit of a column, for its axis; "" where it has none, or its name says it."""
    about = legend(name)
    found = re.search(r"in (nats per token|nats|tokens)\b", about)
    return found[1] if found else "share" if about.startswith("share ") else ""


def legend(name: str) -> str:
    """What a column is; "" of one that a log has under another name."""
    if name.startswith(OF_ENVIRONMENT):
        return f"mean reward of the responses with {name.removeprefix(OF_ENVIRONMENT)}"
    if found := re.fullmatch(r"rewards/(.+)/mean", name):
        return f"mean reward of the function {found[1]}"
    return LEGEND.get(name, [""])[0]
