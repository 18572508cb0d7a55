"""Why a run changed, where the numbers of its steps say so: of which column, or of what else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.columns import changed_column
from grpo_cli.commands.trend.findings import COPIED_REFERENCE, level_of
from grpo_cli.commands.trend.onsets import (
    FARTHEST,
    FUTURE,
    LEAST_FUTURE,
    PAST,
    SETTINGS,
    SHIFT,
    STUCK,
    kink,
    mann_kendall,
    mean_change,
    medians,
)
from grpo_cli.commands.trend.step import WARNING, Finding, Steps
from grpo_cli.commands.trend.sums import OF_ENVIRONMENT
from grpo_cli.commands.trend.watched import DOWN, UP, meaning, remedy, watch

KL, LENGTH = "kl_k3", "length_mean"
_REWARD = "reward_mean"
_REWARDS = ("reward_std", _REWARD, "reward_group_std")
_OF_KL = {KL, "loss", "gradient_norm"}
"""What changes with the reference alone."""
_OF_COLUMNS = ("mismatch.mean_abs", "mismatch.k3", "mismatch.p999", "ratio_p999", "ess")
"""What shows that log-probs of a column changed against another's."""
_SETTINGS = "if the settings were not changed on purpose, compare them before and after that step"
_OPPOSITE = "the advantages have the opposite sign of the rewards"
_SIGN = "find what reversed the sign of the advantages: training makes right answers less likely"
_OF_UPDATES = "reward_ratio_corr"
_REVERSED = "the updates make responses with more reward less likely"
_SIGN_OF_LOSS = (
    "find what reverses the sign of the loss or of the advantages (optimisers minimise the loss "
    "−J), or gives rewards to other responses"
)
_SURE = 3.0
"""Standard errors from which on a mean is below 0."""
_FOLLOWS = 0.8
"""The least correlation of advantages that follow the rewards."""
_CORRUPT = "look at these tokens in the trainer's dump; leave that step out"
_REFERENCE = (
    "if the reference was not replaced on purpose, compare its weights before and after that step; "
    "no series of the policy changed with the KL"
)
_INITIAL = (
    "compute the reference with the initial weights: look for an adapter that is no longer "
    "disabled, a reference that is synchronised at every step, or a column that is copied"
)
_OVERWRITTEN = (
    "if the run's settings did not change, look for code that writes one column over the other: "
)
EQUAL_COLUMNS = {
    "ess": (
        *(1.0, "log_probs_old equals log_probs_new at all tokens"),
        f"{_OVERWRITTEN}log_probs_old has to be stored before the update",
    ),
    KL: (0.0, "log_probs_ref equals log_probs_new at all tokens", _INITIAL),
    "mismatch.mean_abs": (
        *(0.0, "log_probs_rollout equals the trainer's log-probs at all tokens"),
        f"{_OVERWRITTEN}log_probs_rollout has to be what the engine returned",
    ),
}
"""The value of a metric that says so, what it says, and what to do."""
_SYNC = (
    "update the engine's weights more often, or mask old responses: the mismatch grows from step "
    "to step and is gone after each update of the weights"
)
_NO_SYNC = (
    "check whether the engine still gets new weights (if not, the mismatch grows from step to "
    "step); then compare precision and temperature of engine and trainer"
)
_SCALED = "look for a change of the reward's scale or weights: its mean and spread changed alike"
_ROSE = (
    "read responses with high rewards from before and after that step: a policy learns over "
    "several steps, so look for another reward function, other prompts, or answers in the prompt"
)
_EQUAL = "groups_equal"
_OF_EQUAL = {*_REWARDS[::2], _EQUAL, "groups_all_0", "groups_all_1", "loss", "gradient_norm"}
"""What changes where the rewards of a group become equal, while their mean stays."""
_LOOK_AT_REWARDS = (
    "compare the rewards of one prompt's responses before and after that step: look for a reward "
    "that is computed once for each prompt, a cache, or a verifier that always gives one answer"
)
_SAMPLING = (
    "first compare the sampling temperature (and top_p, top_k) before and after that step: a "
    "policy changes over several steps; if sampling did not change, "
)
_OF_SAMPLES = {"nll", "entropy", "repetition", "ratio_mean", "loss", LENGTH, "truncated"}
_OF_SAMPLES |= {*_REWARDS, *_OF_EQUAL, "pass_at_k"}
"""What may change with the sampling alone."""
_AT_ONCE, _AFTER, _SIDE = 0.6, 0.25, 3
"""The least share of a change that is made between the medians of so many steps on either side, and
the largest that the steps after these add."""
_LOOK = "read the longest responses to see what is rewarded; then cap or penalise length"
_LEAST_GAIN, _AROUND, _LEAST_SIDE = 4.0, 20, 5
"""Standard errors by which the reward rose; the steps before and after that are compared, at most
and at least."""
_NEAR = 4
"""Steps around a change that show it."""
_TOKENS, _SHARE = 8.0, 0.1
"""The most tokens, and the largest part of a step's tokens, that a few may be."""
_ALIKE, _LEAST_FACTOR = 0.35, 0.25
"""By how much logarithms of factors may differ, and the least of one, where rewards are scaled."""
_FALLS, _LOW, _RISES, _LEAST_STEPS, _GROWS = 0.5, 0.35, 0.75, 3, 4.0
"""Of a stale engine: the least fall at an update of the weights, and the most that is left, as
shares of the mismatch's range; the least share of steps that rise; steps between updates;
and Mann and Kendall's z of an engine that is never updated."""

_LARGE, _HUGE = 1e3, 1e9
"""From which on a number has no digits after the point, and from which on a power of ten."""


class Cause(NamedTuple):
    """What explains an event.

    Attributes:
        words: what happened.
        is_certain: whether the numbers prove it; else it is a guess, and headlines call it likely.
        fix: what to do about it.
        first: the finding that shows it best.
        numbers: what changed, in numbers, in the place of the findings'; or "".
        longest: a finding whose response is shown too.
        step: where it began; None: where ``first`` did.
        has_reason: whether what ``grpo check`` finds there may be why it happened.
    """

    words: str
    fix: str
    is_certain: bool = True
    first: Finding | None = None
    numbers: str = ""
    longest: Finding | None = None
    step: int | None = None
    has_reason: bool = False

    @property
    def onset(self) -> int | None:
        """The step at which it began; None: not known."""
        return self.first.onset if self.step is None and self.first is not None else self.step


def cause_of(first: Finding, found: Sequence[Finding], steps: Steps) -> Cause | None:
    """The surest cause that explains an event; None where none does.

    Args:
        first: the finding that likely is the cause of the others.
        found: all of the event.
        steps: of the run.
    """
    wrong = [one for one in found if one.severity == WARNING]
    possible = [_few_tokens, _one_column] if first.is_single else _CAUSES
    causes = (cause(wrong, steps) for cause in possible if wrong)
    last = min((one.onset for one in wrong), default=0) + LEAST_FUTURE  # later it is another event
    known = (one for one in causes if one is not None)
    return next((one for one in known if one.onset is None or one.onset <= last), None)


def _named(found: Sequence[Finding], *names: str) -> Iterator[Finding]:
    """The findings on metrics of these rows of ``watched.TABLE``."""
    return (one for one in found if one.row is not None and one.row.name in names)


def _other_settings(found: Sequence[Finding], _: Steps) -> Cause | None:
    """The records have other settings."""
    one = next((one for one in found if one.kind == SETTINGS), None)
    if one is None or one.onset > min(each.onset for each in found) + 1:
        return None
    words = one.sentence.replace(f" at step {one.onset}", "", 1)
    return Cause(words, _SETTINGS, first=one)


def _opposite_advantages(found: Sequence[Finding], _: Steps) -> Cause | None:
    """The advantages follow the rewards with the sign turned."""
    for one in _named(found, "reward_advantage_corr"):
        if one.after is not None and one.after < -_FOLLOWS < _FOLLOWS < (one.before or 0.0):
            return Cause(_OPPOSITE, _SIGN, first=one)
    return None


def _telling_metric(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """Updates that follow the rewards with the sign turned, or responses that have one length."""
    for one in _named(found, _OF_UPDATES, "at_longest", "copies", "unmoved"):
        if one.row is not None:
            words, fix = meaning(one.row, one.direction), one.row.fix
            if one.row.name == _OF_UPDATES and _is_negative(one, steps):
                words, fix = _REVERSED, _SIGN_OF_LOSS
            return Cause(words, fix, first=one, has_reason=True)
    return None


def _is_negative(finding: Finding, steps: Steps) -> bool:
    """Whether the mean of a metric since a finding's onset is below 0 beyond chance."""
    at, end = steps.numbers.index(finding.onset), finding.end
    since = steps.metrics[finding.metric][at : None if end is None else steps.numbers.index(end)]
    since = since[~np.isnan(since)][:FUTURE]
    error = since.std(ddof=1) / math.sqrt(len(since)) if len(since) > 1 else math.inf
    return bool(since.mean() < -_SURE * error)


def _no_reward(found: Sequence[Finding], _: Steps) -> Cause | None:
    """An environment whose responses had rewards has none."""
    for one in _named(found, OF_ENVIRONMENT):
        if one.row is not None and one.after == 0.0:
            which = one.metric.removeprefix(OF_ENVIRONMENT)
            return Cause(f"all rewards of {which} are 0", one.row.fix, first=one)
    return None


def _equal_columns(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """Two columns that differed are equal from a step on; of no gradient the policy is the old."""
    for name, (value, words, fix) in EQUAL_COLUMNS.items():
        still = name == "ess" and any(_named(found, "gradient_norm", "groups_equal"))
        for one in () if still else _named(found, name):
            if one.kind == SHIFT and one.after == value and not steps.logged:
                return Cause(words, fix, first=one)
    return None


def _few_tokens(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """A few tokens make all that is wrong at a step."""
    if steps.logged or not all(one.is_single and one.onset == found[0].onset for one in found):
        return None
    at = steps.numbers.index(found[0].onset)
    worst, tokens = steps[at].worst, float(steps.counted("tokens")[at])
    ratio, engine = worst.get("ratio"), worst.get("mismatch")
    names, column, count = {one.metric.partition(".")[0] for one in found}, "", np.inf
    if engine is not None and "mismatch" in names:
        sizes = steps.metrics["mismatch.mean_abs"]
        count = tokens * (sizes[at] - np.nanmedian(sizes[max(at - PAST, 0) : at])) / engine.value
        column = "log_probs_rollout"
    if ratio is not None and {"ess", "ratio_p999"} & names:
        count = min(count, tokens * steps.metrics["ess"][at])
        column = "log_probs_new" if engine is not None and not column else "log_probs_old"
    if not column or not count <= min(_TOKENS, _SHARE * tokens):
        return None
    where = "1" if count < 1.5 else "a few"
    words = f"{column} is far off at {where} of {tokens:,.0f} tokens"
    return Cause(words, _CORRUPT, is_certain=False)


def _copied_reference(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """The reference has the log-probs of the old policy."""
    copied = steps.copied_reference
    for one in () if copied is None else _named(found, KL):
        if one.onset == steps.numbers[copied]:
            return Cause(COPIED_REFERENCE, _INITIAL, first=one)
    return None


def _one_column(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """One column of log-probs changed against all others, or two were exchanged."""
    alike = [*_named(found, *_OF_COLUMNS)]
    if steps.logged or not alike:
        return None
    first = min(alike, key=lambda one: one.onset)
    at = steps.numbers.index(first.onset)
    changed = changed_column(steps, at, single=first.is_single)
    if changed is None:
        return None
    moved = (
        f"{' − '.join(pair)} {' → '.join(map(rounded, map(math.sqrt, sides)))}"
        for pair, sides in changed.squares.items()
    )
    return Cause(
        changed.words,
        changed.fix,
        first=first,
        numbers=f"RMS of {', '.join(moved)}",
        has_reason=not changed.is_exchange,
    )


def _other_reference(found: Sequence[Finding], _: Steps) -> Cause | None:
    """The KL changed at once, and nothing else of the policy did."""
    at_once = next((one for one in _named(found, KL) if one.at_once), None)
    if at_once is None:
        return None
    near = (one for one in found if abs(one.onset - at_once.onset) <= LEAST_FUTURE)
    if any(one.row is None or one.row.name not in _OF_KL for one in near):
        return None
    nearer = "nearer to" if at_once.direction == DOWN else "farther from"
    words = f"the reference was replaced by one {nearer} the policy"
    return Cause(words, _REFERENCE, is_certain=False, first=at_once)


def _stale_engine(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """The mismatch grows, and is gone again at each update of the engine's weights."""
    values, alike = steps.series_of("mismatch.mean_abs"), [*_named(found, "mismatch.mean_abs")]
    values = steps.series_of("mismatch.k3") if values is None else values
    alike = alike or [*_named(found, "mismatch.k3", "mismatch.p999")]
    if values is None or not alike:
        return None
    at = steps.numbers.index(min(one.onset for one in alike))
    before, since = values[:at][~np.isnan(values[:at])], values[at:][~np.isnan(values[at:])]
    if not len(before) or not len(since):
        return None
    low = float(medians(before[-PAST:]))
    size = float(np.quantile(since, 0.9)) - low
    ((growth, *_),) = mann_kendall(since[None], np.array([len(since)]))
    if since[0] - low < _LOW * size and growth > _GROWS:
        words = "the log-probs of engine and trainer diverge further at each step"
        return Cause(words, _NO_SYNC)
    moves = np.diff(since)
    updates = np.flatnonzero(moves < -_FALLS * size)
    gaps = np.diff(updates)
    if not len(gaps) or np.median(gaps) < _LEAST_STEPS:
        return None
    rises = float((np.delete(moves, updates) > 0.0).mean())
    back = float(np.median(since[updates + 1])) - low
    if rises < _RISES or back > _LOW * size:
        return None
    every = f", every {gaps[0]} steps" if (gaps == gaps[0]).all() else ""
    return Cause(
        f"the engine is stale: the mismatch grows between updates of its weights{every}",
        _SYNC,
        is_certain=False,
        first=min(alike, key=lambda one: one.onset),
    )


def _scaled_rewards(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """Mean and spread of the rewards have one factor."""
    changed = [one for name in _REWARDS for one in _named(found, name)]
    if not changed:
        return None
    sides = [_around(steps, name, changed[0].onset) for name in _REWARDS]
    if None in sides[:2]:
        return None
    means = [(before.mean(), after.mean()) for before, after in filter(None, sides)]
    if min(map(min, means)) <= 0.0:
        return None
    sizes = np.log([after / before for before, after in means])
    if np.ptp(sizes) > _ALIKE or abs(sizes[0]) < _LEAST_FACTOR:
        return None
    factor = float(np.exp(sizes[0]))
    return Cause(f"rewards are {factor:.2g} times what they were", _SCALED, first=changed[0])


def _longer(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """Responses became longer before the gradient of a mean over their tokens became smaller."""
    longer = next((one for one in _named(found, LENGTH) if one.direction == UP), None)
    smaller = next((one for one in _named(found, "gradient_norm") if one.direction == DOWN), None)
    if longer is None or longer.earliest is None or smaller is None:
        return None
    if smaller.onset >= longer.onset or any(_named(found, *_OF_EQUAL - {"gradient_norm"})):
        return None
    values, seen = steps.metrics[longer.metric], steps.numbers.index(longer.seen) + 1
    first = max(seen - PAST - FARTHEST, 0)
    past = values[first : seen + FUTURE]
    if np.isnan(past).any() or (past <= 0.0).any() or len(past) < 2 * LEAST_FUTURE:
        return None
    place = kink(np.log(past))
    if place is None or steps.numbers[first + place] > smaller.onset + LEAST_FUTURE:
        return None
    step = min(steps.numbers[first + place], smaller.onset)
    row = watch(LENGTH)
    assert row is not None
    return Cause(meaning(row, UP), row.fix, first=longer, step=step)


def _other_sampling(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """The sampled tokens became more, or less, probable at once, and no distance of columns did.

    Of a log that has entropies alone, these are looked at.
    """
    name = "entropy" if steps.series_of("nll") is None else "nll"
    one = next((one for one in _named(found, name) if one.kind == SHIFT), None)
    values = None if one is None else steps.metrics[one.metric]
    if one is None or values is None or one.row is None or one.before is None or one.after is None:
        return None
    together = (each for each in found if abs(each.onset - one.onset) <= LEAST_FUTURE)
    if any(each.row is None or each.row.name not in _OF_SAMPLES for each in together):
        return None
    if any(each.direction == one.direction for each in _named(found, _REWARD)):
        return None  # likelier tokens get more reward
    at = steps.numbers.index(one.onset)
    near = (values[max(at + by, 0) : at + by + _SIDE] for by in (-_SIDE, 0, _SIDE))
    before, after, later = (level_of(side) for side in near)
    change = abs(one.after - one.before)
    if not abs(after - before) > _AT_ONCE * change or abs(later - after) > _AFTER * change:
        return None  # NaN: no step is there
    what = "the entropy" if name == "entropy" else "−log π of the sampled tokens"
    words = f"{what} {'fell' if one.direction == DOWN else 'rose'} at once"
    return Cause(words, f"{_SAMPLING}{remedy(one.row, one.direction)}", first=one, has_reason=True)


def _better_at_once(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """The reward rose from one step to the next."""
    rose = (one for one in _named(found, _REWARD) if one.at_once and one.direction == UP)
    if (one := next(rose, None)) is None:
        return None
    spread, at = steps.series_of("reward_std"), steps.numbers.index(one.onset)
    numbers = _in_numbers(one.metric, _around(steps, _REWARD, one.onset) or ())
    if spread is not None and not spread[at : at + _NEAR].any():
        numbers += "; all rewards of a step are equal, so the policy gradient is 0"
    return Cause("the reward rose at once", _ROSE, first=one, numbers=numbers)


def _equal_rewards(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """From a step on all groups have equal rewards, and only what follows from that changed."""
    one, values = next(_named(found, _EQUAL), None), steps.series_of(_EQUAL)
    if one is None or one.kind == STUCK or values is None:
        return None
    others = {each.row and each.row.name for each in found} - _OF_EQUAL
    since = values[steps.numbers.index(one.onset) :]
    if others or len(since) < LEAST_FUTURE or not (since == 1.0).all():
        return None
    return Cause("all rewards of each group are equal", _LOOK_AT_REWARDS, first=one)


def _around(steps: Steps, name: str, onset: int) -> tuple[F64, F64] | None:
    """The values of a row of ``watched.TABLE`` before and after a step; None of too few values."""
    values = steps.series_of(name)
    return None if values is None else _sides(values, steps.numbers.index(onset))


def _sides(values: F64, at: int) -> tuple[F64, F64] | None:
    before, after = values[max(at - _AROUND, 0) : at], values[at : at + _AROUND]
    before, after = before[~np.isnan(before)], after[~np.isnan(after)]
    return (before, after) if min(len(before), len(after)) >= _LEAST_SIDE else None


def _gain(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """The reward and the length rose together."""
    longer = next((one for one in _named(found, LENGTH) if one.direction == UP), None)
    onset = min(one.onset for one in found)
    names = [steps.name_of(name) for name in (_REWARD, LENGTH)]
    sides = [_around(steps, name, onset) for name in (_REWARD, LENGTH)]
    known = [one for one in sides if one is not None]
    gains = [change > _LEAST_GAIN * error for change, error in (mean_change(*one) for one in known)]
    if longer is None or len(known) < 2 or not all(gains):
        return None
    kl = watch(KL) if any(one.direction == UP for one in _named(found, KL)) else None
    fix = _LOOK if kl is None else f"{_LOOK}; {kl.fix}"
    numbers = ", ".join(map(_in_numbers, names, known))
    return Cause("reward and length rise together", fix, numbers=numbers, longest=longer)


def _in_numbers(name: str, sides: Sequence[F64]) -> str:
    """The medians of a metric on both sides of a step."""
    return f"{name} {' → '.join(rounded(float(medians(side))) for side in sides)}"


def rounded(value: float) -> str:
    """A number with 3 significant digits, or all of a large one's before the point."""
    return f"{value:,.0f}" if _LARGE <= abs(value) < _HUGE else f"{value:.3g}"


_CAUSES: Sequence[Callable[[Sequence[Finding], Steps], Cause | None]] = (
    _other_settings,
    _opposite_advantages,
    _telling_metric,
    _no_reward,
    _equal_columns,
    _copied_reference,
    _one_column,
    _other_reference,
    _stale_engine,
    _scaled_rewards,
    _other_sampling,
    _gain,
    _longer,
    _better_at_once,
    _equal_rewards,
)
"""The surest first."""
