"""Why a run changed, where the numbers of its steps say so."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Batch
from grpo_cli.commands.check.record_view import name_token
from grpo_cli.commands.show.batch import show_rows
from grpo_cli.commands.trend.findings import COPIED_REFERENCE
from grpo_cli.commands.trend.measure import rewards_of
from grpo_cli.commands.trend.metrics import worst_kind
from grpo_cli.commands.trend.onsets import (
    FUTURE,
    LEAST_FUTURE,
    PAST,
    SHIFT,
    mann_kendall,
    medians,
)
from grpo_cli.commands.trend.step import SURE, WARNING, Finding, Steps
from grpo_cli.commands.trend.sums import OF_ENVIRONMENT, OF_SPREAD, PROMPT
from grpo_cli.commands.trend.watched import DOWN, LIMIT_OF_LENGTH, RANKS, UP, VERIFIER
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.objective.kl import k3
from grpo_cli.terminal.numbers import counted, record_name
from grpo_cli.variants.plan import Plan

KL, LENGTH = "kl_k3", "length_mean"
_REWARD = "reward_mean"
_OF_ENGINE = ("mismatch.k3", "mismatch.mean_abs")
_OF_KL = {KL, "loss", "gradient_norm"}
"""What changes with the reference alone."""
_OPPOSITE = "the sign of the advantages is reversed"
_SIGN = "find what reversed the sign of the advantages: training makes right answers less likely"
_OF_UPDATES = "reward_ratio_corr"
_REVERSED = "the updates make responses with more reward less likely"
_SIGN_OF_LOSS = (
    "find what reverses the sign of the loss or of the advantages (optimisers minimise the loss "
    "−J), or gives rewards to other responses"
)
_SURE = 3.0
"""Standard errors from which on a mean is below 0."""
_FOLLOWS, _STILL = 0.5, 0.8
"""The least correlation of advantages that follow the rewards, and the least share of it that it
has with the other sign where they are reversed."""
_REPLACED = "the reference was replaced"
_REFERENCE = (
    "if the reference was not replaced on purpose, compare its weights, and the template of the "
    "prompts, before and after that step"
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
_NO_SYNC = (
    "check whether the engine still gets new weights (if not, the mismatch grows from step to "
    "step); then compare precision and temperature of engine and trainer"
)
_ROSE = (
    "read responses with high rewards from before and after that step: a policy learns over "
    "several steps, so look for another reward function, other prompts, or answers in the prompt"
)
_ONE_UPDATE = (
    "look at the learning rate and the gradient's norm at that step, and clip the gradient; go "
    "back to the last good step"
)
_CUT = 0.1
"""The least share of responses that end at a limit."""
_OF_POLICY = {KL, "entropy"}
"""What does not change at once where other tokens are sampled."""
_SAMPLED = "tokens are sampled with other settings than before (temperature, top-p, top-k)"
_SAMPLER = (
    "compare the engine's sampling settings, and the prompts, before and after that step: engine "
    "and trainer agree on the log-probs, and the KL did not jump"
)
_MOST_OF_ONE = 0.6
"""The share of its own fall by which one environment, or prompt, lowers the mean of a run."""
_LOW, _GROWS = 0.35, 4.0
"""Of an engine that is never updated: the most of the mismatch's range that its first step has, and
the least z of Mann and Kendall of its steps."""


class Cause(NamedTuple):
    """What explains an event.

    Attributes:
        words: what happened.
        is_certain: whether the numbers prove it; else it is a guess, and headlines call it likely.
        fix: what to do about it.
        first: the finding that shows it best.
        has_reason: whether what ``grpo check`` finds there may be why it happened.
        explains: the rule of ``grpo check`` whose findings there follow from it.
    """

    words: str
    fix: str
    is_certain: bool = True
    first: Finding | None = None
    has_reason: bool = False
    explains: str = ""


def cause_of(first: Finding, found: Sequence[Finding], steps: Steps) -> Cause | None:
    """The surest cause that explains an event; None where none does, or it is of a single step.

    Args:
        first: the finding that likely is the cause of the others.
        found: all of the event.
        steps: of the run.
    """
    wrong = [one for one in found if one.severity == WARNING]
    if first.is_single or not wrong:
        return _large_update(wrong, steps)
    last = min(one.onset for one in wrong) + LEAST_FUTURE  # later it is another event
    last = min([last, *(one.onset + SURE for one in wrong if one.is_clear)])
    causes = (cause(wrong, steps) for cause in _CAUSES)
    known = (one for one in causes if one is not None)
    return next((one for one in known if one.first is None or one.first.onset <= last), None)


def _named(found: Sequence[Finding], *names: str) -> Iterator[Finding]:
    """The findings on metrics of these rows of ``watched.TABLE``."""
    return (one for one in found if one.row is not None and one.row.name in names)


def _opposite_advantages(found: Sequence[Finding], _: Steps) -> Cause | None:
    """The advantages follow the rewards with the sign turned."""
    for one in _named(found, "reward_advantage_corr"):
        before = one.before or 0.0
        if one.after is not None and before > _FOLLOWS and -one.after > _STILL * before:
            return Cause(_OPPOSITE, _SIGN, first=one)
    return None


def _decisive_metric(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """Updates that follow the rewards with the sign turned, or responses that have one length."""
    for one in _named(found, _OF_UPDATES, "at_longest", "copies", "unmoved"):
        if one.row is not None:
            words, fix = one.row.meaning(one.direction), one.row.fix
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


def _no_reward(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """Environments or prompts whose responses had rewards have none, or only equal ones.

    Where the engine changed too, they follow from that. Where the reward fell at several, or by
    more than one of them explains, that is what happened.
    """
    rows = (one for name in (OF_ENVIRONMENT, OF_SPREAD) for one in _named(found, name))
    gone: dict[str, Finding] = {}
    for one in () if any(_named(found, *_OF_ENGINE)) else rows:
        if one.after == 0.0:
            gone.setdefault(one.metric.partition("/")[2], one)
    if not gone:
        return None
    which, first = min(gone.items(), key=lambda one: steps.numbers.index(one[1].onset))
    others = sum(_are_near(first, one) for one in gone.values()) - 1
    falls = (one for one in _named(found, _REWARD) if one.direction == DOWN)
    fell = next((one for one in falls if _are_near(first, one)), None)
    if fell is not None and fell.row is not None and (others or _is_larger(fell, first, steps)):
        equal = (one for one in _named(found, "groups_equal") if _are_near(first, one))
        kind = "prompts" if which.startswith(PROMPT) else "environments"
        many = "all prompts" if any(one.after == 1.0 for one in equal) else f"{others + 1} {kind}"
        words = f"the rewards fell at {many}" if others else "the reward fell"
        return Cause(words, fell.row.fix, first=fell)
    at, end = (
        None if one is None else steps.numbers.index(one) for one in (first.onset, first.end)
    )
    since = steps.metrics[OF_ENVIRONMENT + which][at:end]
    what = "equal" if np.nan_to_num(since).any() else "0"
    if what == "equal" and not others and any(_named(found, "groups_equal")):
        return None  # more groups than those of this prompt are equal
    more = f" and {counted(others, 'other')}" if others else ""
    return Cause(f"all rewards of {which}{more} are {what}", VERIFIER, first=first)


def _are_near(first: Finding, second: Finding) -> bool:
    """Whether they began together."""
    return abs(first.onset - second.onset) <= LEAST_FUTURE


def _is_larger(fell: Finding, gone: Finding, steps: Steps) -> bool:
    """Whether the reward of the run fell by more than an environment, or a prompt, explains."""
    means = steps.metrics[OF_ENVIRONMENT + gone.metric.partition("/")[2]]
    at = steps.numbers.index(gone.onset)
    own = float(np.nanmean(means[max(at - PAST, 0) : at]) - np.nanmean(means[at:]))
    return (fell.before or 0.0) - (fell.after or 0.0) > _MOST_OF_ONE * own


def _equal_columns(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """Two columns that differed are equal from a step on; of no gradient the policy is the old."""
    for name, (value, words, fix) in EQUAL_COLUMNS.items():
        still = name == "ess" and any(_named(found, "gradient_norm", "groups_equal"))
        for one in () if still else _named(found, name):
            if one.kind == SHIFT and one.after == value and not steps.logged:
                return Cause(words, fix, first=one)
    return None


def _copied_reference(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """The reference has the log-probs of the old policy."""
    copied = steps.copied_reference
    for one in () if copied is None else _named(found, KL):
        if one.onset == steps.numbers[copied]:
            return Cause(COPIED_REFERENCE, _INITIAL, first=one)
    return None


def _other_reference(found: Sequence[Finding], _: Steps) -> Cause | None:
    """It moved first tokens; or the KL changed at once, and nothing else of the policy did."""
    for one in _named(found, "ref_moved"):
        return Cause(_REPLACED, _REFERENCE, is_certain=False, first=one, has_reason=True)
    at_once = next((one for one in _named(found, KL) if one.at_once), None)
    if at_once is None:
        return None
    near = (one for one in found if abs(one.onset - at_once.onset) <= LEAST_FUTURE)
    if any(one.row is None or one.row.name not in _OF_KL for one in near):
        return None
    nearer = "nearer to" if at_once.direction == DOWN else "farther from"
    words = f"{_REPLACED} by one {nearer} the policy"
    return Cause(words, _REFERENCE, is_certain=False, first=at_once, has_reason=True)


def _stale_engine(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """The mismatch grows from step to step, as where the engine gets no new weights."""
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
    return None


def _better_at_once(found: Sequence[Finding], _: Steps) -> Cause | None:
    """The reward rose from one step to the next, maybe since it pays for length."""
    rose = (one for one in _named(found, _REWARD) if one.at_once and one.direction == UP)
    one = next(rose, None)
    if one is None:
        return None
    for paid in _named(found, "reward_length_corr"):
        if _are_near(one, paid) and paid.row is not None:
            return Cause("the reward began to favour longer responses", paid.row.fix, first=one)
    return Cause("the reward rose at once", _ROSE, first=one)


def _new_limit(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """Many responses end at one length, which is shorter than any longest one before."""
    for one in _named(found, LENGTH, "length_p95") if not steps.logged else ():
        at = steps.numbers.index(one.onset)
        longest, share = (steps.metrics[name] for name in ("length_p95", "at_longest"))
        before, since = longest[max(at - PAST, 0) : at], longest[at:][:FUTURE]
        many = float(medians(share[at:][:FUTURE]))
        cut = since[:LEAST_FUTURE].min(initial=math.inf) == since.max(initial=0)
        if cut and before.min(initial=math.inf) > since[0] and many > _CUT:
            words = f"responses have a new limit of {since[0]:,.0f} tokens, at which {many:.0%} end"
            return Cause(words, LIMIT_OF_LENGTH, first=one)
    return None


def _other_sampler(found: Sequence[Finding], steps: Steps) -> Cause | None:
    """Tokens are as likely as never before from one step to the next, by an equal policy.

    Engine and trainer agree on them, and the policy did not leave the reference at that step.
    """
    surer = next((one for one in _named(found, "nll") if one.at_once), None)
    needed = map(steps.series_of, ("mismatch.mean_abs", KL))
    if surer is None or any(values is None for values in needed):
        return None
    near = [one for one in found if one is not surer and abs(one.onset - surer.onset) <= SURE]
    rows = [one.row.name for one in near if one.row is not None]
    if any(row in _OF_POLICY or RANKS[row] < RANKS["reward_length_corr"] for row in rows):
        return None
    return Cause(_SAMPLED, _SAMPLER, is_certain=False, first=surer)


def _large_update(found: Sequence[Finding], _: Steps) -> Cause | None:
    """The ratios are off at one step, and the policy is farther from the reference since.

    Not where the engine disagrees too, or the responses are of another length or all of one.
    """
    if any(_named(found, *_OF_ENGINE, "at_longest", "masked_start")):
        return None
    levels = [one for one in _named(found, KL) if not one.is_single and one.direction == UP]
    for one in _named(found, "ratio_p999", "ess"):
        if one.is_single and any(0 <= each.onset - one.onset <= SURE for each in levels):
            words = "one update moved the policy too far"
            return Cause(words, _ONE_UPDATE, first=one, explains="temperature")
    return None


_CAUSES: Sequence[Callable[[Sequence[Finding], Steps], Cause | None]] = (
    _opposite_advantages,
    _copied_reference,
    _decisive_metric,
    _large_update,
    _no_reward,
    _equal_columns,
    _other_reference,
    _stale_engine,
    _new_limit,
    _other_sampler,
    _better_at_once,
)
"""The surest first."""


# ---- at one token ------------------------------------------------------------------------------

_KINDS = {"kl": "the KL", "ratio": "Σ |log ratio|", "mismatch": "the mismatch"}
"""What is largest at a place of this kind (``Metric.worst``)."""
_HALF, _LEAST_TOKENS = 0.5, 8
"""The share beyond which one token has most of it, and the tokens a response has at least, on
average: of short ones every token has much."""
_TOKEN_FIX = (
    "look at these tokens: whether a template, a special token or a mask put them there, and which "
    "column changed at them"
)


def at_one_token(found: Sequence[Finding], now: Reader, before: Reader) -> Cause | None:
    """The token that has most of what changed at a step, and had not before.

    Args:
        found: the findings of an event, the first that is likely the cause first.
        now, before: the records of the step at which it began, and of the one before.
    """
    kinds = (worst_kind(one.metric) for one in found if one.severity == WARNING)
    kind = next((one for one in kinds if one in _KINDS), None)
    if kind is None or (shares := _shares(now, kind)) is None:
        return None
    tokens, texts = shares
    token = max(tokens, key=tokens.__getitem__, default=None)
    share = tokens.get(token, 0.0)
    if share <= _HALF or (usual := _shares(before, kind)) is None:
        return None
    if usual[0].get(token, 0.0) > _HALF:
        return None
    named = (token, texts.get(token)) if isinstance(token, int) else (None, token)
    return Cause(f"{share:.0%} of {_KINDS[kind]} is at {name_token(*named)}", _TOKEN_FIX)


_MOST_VALUES = 8
"""Values of rewards, beyond which they are continuous."""
_REWARDED = (
    "look for a change of the reward function, its scale or its weights: no reward but 0 is one of "
    "those before"
)


def other_rewards(now: Reader, before: Reader) -> Cause | None:
    """The rewards of a step have a few values, none of which but 0 an earlier step had."""
    every = [*map(_values, (now, before))]
    new, old = (sorted(one - {0.0}) for one in every)
    if min(map(len, every)) < 2 or max(map(len, every)) > _MOST_VALUES or {*new} & {*old}:
        return None
    factors = {f"{x / y:.4g}" for x, y in zip(new, old, strict=False)}
    if len(factors) == 1 and len(new) == len(old):
        return Cause(f"rewards are {factors.pop()} times what they were", _REWARDED)
    is_now, was = (", ".join(f"{x:.4g}" for x in one) for one in (new, old))
    return Cause(f"rewards are {is_now} instead of {was}", _REWARDED)


def _values(reader: Reader) -> set[float]:
    """The rewards, each once."""
    found = set[float]()
    with suppress(InputError):
        for chunk in reader.chunks():
            rewards = rewards_of(chunk, None)
            found.update(() if rewards is None else np.unique(rewards).tolist())
    return found


_OLD = "log_probs_old changed, not the engine: log_probs_rollout is nearer to log_probs_new"
_OLD_FIX = (
    "look at what computes, stores, sorts or shifts log_probs_old: they no longer are what "
    "log_probs_new were before the update"
)
_FARTHER = 1.5
"""How many times as far from the engine the old policy is as the new one, where it is wrong: an
update moves the new policy away from the engine, never the old one."""


def old_is_off(now: Reader) -> Cause | None:
    """The old policy is farther from the engine than the new one, at a step."""
    sums = np.zeros(2)
    with suppress(InputError):
        for batch in (chunk.batch for chunk in now.chunks()):
            new, old, engine = batch.log_probs_new, batch.log_probs_old, batch.log_probs_rollout
            if new is not None and old is not None and engine is not None:
                sums += [np.abs(one - engine).sum() for one in (new, old)]
    return Cause(_OLD, _OLD_FIX, has_reason=True) if sums[1] > _FARTHER * sums[0] else None


_ONE_FIX = (
    "look at this token: whether one of its two log-probs was overwritten or is of another token "
    "or prompt; all other ratios of the step are usual"
)
_CLEARLY = 1.5
"""How many times as large as any before a |log ratio| is that is alone."""


def at_one_place(now: Reader, plan: Plan, usual: float) -> Cause | None:
    """The only token of a step whose |log ratio| is larger than any before, which is ``usual``."""
    try:
        rows = show_rows(now, plan, by="ratio", top=2)[0].rows
    except GrpoError:
        return None
    size, rest = [*(abs(one["log_ratio"]) for one in rows), 0.0, 0.0][:2]
    if not rest <= usual < size / _CLEARLY:
        return None
    row = rows[0]
    number, text = row["token_id"], row["token"]
    named = "" if number is None and text is None else f"{name_token(number, text)} at "
    place = f"position {row['position']} of response {row['response']}"
    record = record_name(row["id"], row["line"])
    words = f"one |log ratio| alone is larger than before, {size:.3g}: {named}{place} in {record}"
    return Cause(words, _ONE_FIX)


def _shares(reader: Reader, kind: str) -> tuple[dict[Any, float], dict[Any, str]] | None:
    """The share of each token, by its id or text, and texts of ids; None without enough tokens."""
    tokens, total, largest, counts = Counter[Any](), 0.0, 0.0, np.zeros(2)
    texts: dict[Any, str] = {}
    try:
        for chunk in reader.chunks():
            sizes = _sizes(chunk.batch, kind)
            if sizes is None or not len(sizes):
                continue
            total, largest = total + float(sizes.sum()), max(largest, float(sizes.max()))
            counts += len(sizes), chunk.batch.responses.count
            if (words := _words(chunk)) is not None:
                found, places = np.unique(words, return_inverse=True)
                sums = np.bincount(places, sizes).tolist()
                tokens.update(dict(zip(found.tolist(), sums, strict=True)))  # adds them up
                for one in chunk.records:
                    if one.token_ids and one.tokens:
                        both = chain(*one.token_ids), chain(*one.tokens)
                        texts.update(zip(*both, strict=False))
    except InputError:
        return None
    if not largest or largest > _HALF * total or counts[0] < _LEAST_TOKENS * counts[1]:
        return None
    return {one: size / total for one, size in tokens.items()}, texts


def _sizes(batch: Batch, kind: str) -> F64 | None:
    """How large it is at each token; None where records lack what it is made of."""
    new, old = batch.log_probs_new, batch.log_probs_old
    if kind == "mismatch":
        first, second = new if old is None else old, batch.log_probs_rollout
    else:
        first, second = new, batch.log_probs_ref if kind == "kl" else old
    if first is None or second is None:
        return None
    with np.errstate(over="ignore"):
        return k3(first - second)[0] if kind == "kl" else np.abs(first - second)


def _words(chunk: Chunk) -> NDArray[Any] | None:
    """The id of each token, or else its text; None where records have neither."""
    rows = [row for one in chunk.records for row in one.token_ids or one.tokens or ()]
    responses, inside = chunk.batch.responses, chunk.batch.positions
    if len(rows) != responses.count:
        return None
    inside = responses.positions if inside is None else inside
    places = zip(responses.index.tolist(), inside.tolist(), strict=True)
    return np.array([rows[at][n] for at, n in places])
