"""The table of what is watched: which way a metric goes wrong, on which scale, and its limits.

Findings, charts, the page and logs read it. Rows are in the order in which faults spread, which
``_event`` of ``events.py`` uses. A new metric or another name in logs is a change here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.sums import OF_ENVIRONMENT, OF_SPREAD

UP, DOWN, BOTH = "up", "down", "up, down"
PRACTICE = "practice"
"""The source of a limit that no framework publishes."""


class Limit(NamedTuple):
    """A bound that is passed where three of five steps pass it.

    Attributes:
        bound: in the metric's unit.
        source: who publishes it, or ``PRACTICE``.
        above: whether larger values pass it.
        room: of a share, the most that may be left of 1 − the level before, so that a run that
            always was near its bound does not pass it.
        later: whether a run that passes it in its first step never passes it.
    """

    bound: float
    source: str = PRACTICE
    above: bool = True
    room: float | None = None
    later: bool = False


class Steady(NamedTuple):
    """How far a metric may go one way from the first step on: healthy runs go that way less far.

    Attributes:
        way: the way that harms.
        factor: from the beginning to the end, from which on it is a finding.
        source: the runs in which it went so far, or who publishes that it harms.
    """

    way: str
    factor: float
    source: str


class Watch(NamedTuple):
    """How a metric is watched.

    Attributes:
        name: the metric, or the prefix of several that ends with "/".
        shift, drift: the ways in which a new level, and a slope, are a finding; a level that
            shifts the other way is information.
        scale: "linear"; "log" for what is positive; "growth" for what a healthy run accumulates
            (by the logarithm of its share of the steps so far); "below 1" for the logarithm of the
            distance from 1; "share" for an angle that makes the noise of shares
            even, "correlation" for Fisher's z (1915), which does so for correlations.
        limits: bounds.
        least: what a level ("below 1": its distance from 1) has to reach to be a finding; if
            that is the largest possible value, for the first time in the steps compared.
        span: the possible values.
        spikes: the factor of what was usual from which a single step may be a finding; 0: none.
        bounds: the shares of the onset tests' bounds from which on a rise, and a fall, is
            sure: less than 1 where the metric of a healthy run is steady.
        stays: that of a fall which more than twelve steps show; 0: at least 0.7.
        rise: of what is positive, the least share of its level before that a rise of less than ten
            standard errors adds.
        jumps: the ways in which a level that is reached at once is a finding; in the first ten
            steps these of ``shift`` as well.
        jump: of what is positive, the least size of that as a logarithm, and in robust deviations
            of the moves from value to value.
        stuck: the value at which nothing is learnt, if it is that from the first step on.
        gone: the value that it does not exceed where it is gone, as it may be at single steps.
        gone_after: how many values there must be before.
        steady: how far it may go one way all along; None: as far as it likes.
        logged: other names, in logs: a whole name, or its end after a slash.
        fix: what to do about it, where only a log is there.
        rose, fell: what its rise, and its fall, means in plain words.
    """

    name: str
    shift: str = ""
    drift: str = ""
    scale: str = "linear"
    limits: tuple[Limit, ...] = ()
    least: float = 0.0
    span: tuple[float, float] = (-np.inf, np.inf)
    spikes: float = 0.0
    bounds: tuple[float, float] = (1.0, 1.0)
    stays: float = 0.0
    rise: float = 0.06
    jumps: str = ""
    jump: tuple[float, float] = (math.log(3.0), 2.5)
    stuck: float | None = None
    gone: float | None = None
    gone_after: int = 10
    steady: Steady | None = None
    logged: tuple[str, ...] = ()
    fix: str = ""
    rose: str = ""
    fell: str = ""

    @property
    def is_log(self) -> bool:
        """Whether a chart has a logarithmic axis."""
        return self.scale in ("log", "growth")

    @property
    def is_compared(self) -> bool:
        """Whether its values are compared with those before, beyond limits."""
        ways = self.shift or self.drift or self.spikes or self.jumps
        return bool(ways) or self.gone is not None

    def meaning(self, direction: str) -> str:
        """What a change means, in plain words; "" where there are none."""
        return self.fell if direction == DOWN else self.rose

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """The shares of the bounds as ``onsets`` takes them."""
        rise, fall = (max(one, _LATER) for one in self.bounds)
        return (*self.bounds, rise, self.stays or fall)

    def scaled(self, values: F64) -> F64:
        """[n] the values as detectors compare them; as they are where the scale cannot be used."""
        if self.scale == "share" and ((values >= 0.0) & (values <= 1.0)).all():
            return np.arcsin(np.sqrt(values))
        if self.scale == "correlation":
            return np.arctanh(values.clip(-_NEAR_ONE, _NEAR_ONE))
        if self.scale in ("linear", "share"):
            return values
        distance = 1.0 - values if self.scale == "below 1" else values
        distance = np.where(np.abs(distance) < ROUNDING, 0.0, distance)
        if (distance < 0).any() or not distance.any():
            return values
        if self.scale == "below 1":
            return -_logarithms(distance)
        found = _logarithms(values)
        return (
            found - np.log(np.arange(1.0, len(values) + 1).clip(_EARLY))
            if self.scale == "growth"
            else found
        )

    def is_small(self, level: float, *, up: bool) -> bool:
        """Whether a level is too small in itself to be a finding, whatever it was before."""
        return 1.0 - level < self.least if self.scale == "below 1" else up and level < self.least

    def noise(self, values: F64) -> F64:
        """[n] the least noise of the scaled values, of shares from how fine those so far are."""
        if self.scale == "share":  # of counts of a sample, whose size is that of its least share
            parts = np.concatenate([values[None], 1.0 - values[None]])
            least = np.where(parts > 0.0, parts, np.inf).min(axis=0)
            least = np.minimum(least, _largest_gap(values))
            return np.sqrt(np.minimum.accumulate(np.minimum(least, 1.0))) / 2
        return np.zeros(len(values))


_LATER = 0.7
"""The least share of a bound for what more than twelve steps show."""
ROUNDING = 1e-12
"""Of a number: what rounding leaves."""
_NEAR_ONE = 0.995
"""Where a correlation's z ends, as that of 1 is infinite."""
_EARLY = 12
"""Steps from which on what a healthy run accumulates is a share of the steps so far."""


def _largest_gap(values: F64) -> F64:
    """[n] the largest gap of the different values so far, if all are multiples of one."""
    new = np.zeros(len(values))
    new[np.unique(values, return_index=True)[1]] = 1.0
    span = np.maximum.accumulate(values) - np.minimum.accumulate(values)
    gaps = np.cumsum(new) - 1.0
    return np.where(gaps > 0.0, span / np.maximum(gaps, 1.0), np.inf)


def _logarithms(values: F64) -> F64:
    """Zeros as a twentieth of the least that came so far: no noise makes several of them."""
    least = np.minimum.accumulate(np.where(values > 0.0, values, np.inf))
    least = np.where(np.isfinite(least), least, values[values > 0.0][0])
    return np.log(np.maximum(values, least / 20))


_STEADY, _STEADIER = (0.8, 0.8), (1.0, 0.66)
_SHARE = (0.0, 1.0)
_POSITIVE = (0.0, np.inf)
_NEMO = "NeMo-RL's documentation"  # docs/guides/dtensor-tp-accuracy.md:31
_VERL = "verl's documentation"  # docs/algo/rollout_corr.md:1068, :1001

_COLLAPSES = Steady(DOWN, 1.8, "arXiv:2505.22617, arXiv:2505.22312")
"""Without a remedy the entropy of 11 models falls by 73 % in the first 200 of 2,400 steps, and the
scores then rise no more; of healthy simulated runs it fell by less."""
_GROWS = Steady(UP, 2.0, "thinking-machines-lab/tinker-feedback#22, sail-sg/Precision-RL#10")
"""From 0.05 to 0.1 in 20 steps, and from 0.001 to 1 before the run collapsed."""

_ENGINE = (
    "compare precision, temperature and weights of engine and trainer; until then, mask or "
    "truncate the ratio between them"
)
GO_BACK = "; go back to the last good step"
AHEAD = f"lower the learning rate or the number of updates per batch{GO_BACK}"
NOT_FINITE = (
    "go back to the checkpoint before that step; look at that step for a log of 0, a mean over no "
    "tokens, or weights that have been NaN since an earlier update"
)
_GRADIENT = (
    "if the norm falls, look for groups of equal rewards, longer responses and another formula of "
    f"the advantages; if it rises, {AHEAD}"
)
_ENTROPY = (
    "if entropy falls, raise ε_high (clip higher) or add an entropy bonus; if it rises, lower the "
    "learning rate"
)
LIMIT_OF_LENGTH = (
    "compare max_tokens and the loader's limit before and after that step, or mask cut responses"
)
VERIFIER = "check the verifier of this environment or prompt, and what it compares answers with"
_GROUPS = (
    "if all answers are right, use harder prompts; if all are wrong, use easier prompts or "
    "larger groups, or check the verifier; or filter groups of equal rewards"
)

_DIVERGED = "the log-probs of engine and trainer diverged"
_NEARER = "the log-probs of engine and trainer came nearer to each other"
_mismatch = partial(Watch, fix=_ENGINE, rose=_DIVERGED, fell=_NEARER)
_MOVED = "the ratios π_θ/π_old moved away from 1"
_LESS_SURE = "the policy became less sure of its tokens"
_TOO_SURE = "the policy became too sure of its tokens"

TABLE = (
    Watch("staleness", BOTH, UP, fix="update the engine's weights more often",
          rose="the engine's weights fell behind the trainer's weights"),
    _mismatch(
        "mismatch.k3", UP, UP, "log", spikes=9.0, bounds=_STEADY,  # 3² of mean_abs
        steady=_GROWS, least=1e-10,
        logged=("rollout_corr/k3_kl", "gen_kl_error", "mismatch_kl/all/mean", "mismatch_kl",
                "policy_kl_error"),
    ),
    _mismatch(
        "mismatch.mean_abs", UP, UP, "log", bounds=_STEADY, span=_POSITIVE, spikes=3.0,
        steady=_GROWS, least=1e-5,
        logged=("sampling/sampling_logp_difference/mean", "train_rollout_logprob_abs_diff",
                "rollout_probs_diff_mean", "sampling_logp_difference"),
    ),
    _mismatch("mismatch.p999", UP, "", "log", bounds=_STEADY, span=_POSITIVE, steady=_GROWS),
    _mismatch("mismatch.k1", BOTH, UP, bounds=_STEADY, logged=("rollout_corr/kl",)),
    _mismatch("mismatch.mult", limits=(Limit(1.05, _NEMO),), span=_POSITIVE,
          logged=("token_mult_prob_error",)),
    _mismatch("mismatch.chi2", limits=(Limit(1.0, _VERL),), logged=("rollout_corr/chi2_token",)),
    _mismatch("mismatch.ess", DOWN, DOWN, "below 1", bounds=_STEADY, span=_SHARE,
          least=0.01, limits=(Limit(0.3, _VERL, above=False),),
          logged=("rollout_is_eff_sample_size",), rose=_NEARER, fell=_DIVERGED),
    Watch("ratio_p999", UP, UP, "log", span=_POSITIVE, spikes=1.6, fix=AHEAD,
          rose=_MOVED, fell=_MOVED),
    Watch("ratio_mean", BOTH, fix=AHEAD, logged=("probs_ratio",), rose=_MOVED, fell=_MOVED),
    Watch("ess", DOWN, DOWN, "below 1", least=0.02, span=_SHARE, spikes=30.0, fix=AHEAD,
          rose=_MOVED, fell=_MOVED),
    Watch(
        "unmoved", gone=0.1, span=_SHARE,
        fix="compare precision, dropout and temperature of the forward passes that give "
            "log_probs_old and log_probs_new; more updates per batch lower it as well",
        fell="fewer ratios are exactly 1: log_probs_old come from another forward pass",
    ),
    Watch("clip_low", UP, UP, "share", least=0.05, span=_SHARE, fix=AHEAD,
          logged=("clip_ratio/low_mean", "pg_clipfrac_lower"), rose="more tokens were clipped"),
    Watch("clip_high", UP, UP, "share", least=0.05, span=_SHARE, fix=AHEAD,
          logged=("clip_ratio/high_mean", "clip_ratio/region_mean", "clip_ratio", "pg_clipfrac",
                  "clipfrac", "clip_frac", "clip_fraction", "policy/clipfrac"),
          rose="more tokens were clipped"),
    Watch(
        "reward_length_corr", UP, "", "correlation", least=0.5, span=(-1.0, 1.0),
        fix="read the longest responses; normalise the reward by length, or cap or penalise length",
        rose="within groups, longer responses got more reward",
    ),
    Watch(
        "reward_advantage_corr", DOWN, "", "correlation", span=(-1.0, 1.0),
        fix="look for a change of what computes the advantages: their sign, order, groups or mask",
        fell="the advantages no longer follow the rewards",
    ),
    Watch(
        "reward_ratio_corr", "", "", "correlation", (Limit(-0.5, above=False),), jumps=DOWN,
        span=(-1.0, 1.0),
        fix="look for what gives the rewards, advantages or log-probs of a response to another: "
            "code that sorts, gathers or joins rows",
        fell="the updates no longer follow the rewards",
    ),
    Watch("gradient_norm", BOTH, UP, "log", bounds=_STEADY, span=_POSITIVE, spikes=3.0,
          fix=_GRADIENT, stuck=0.0, logged=("grad_norm", "optim/grad_norm", "gradient_norm"),
          rose="the gradient grew", fell="the gradient became small"),
    Watch("loss", spikes=3.0, least=1e-5, fix=AHEAD,
          logged=("pg_loss", "policy_loss", "loss/mean", "train_loss")),
    Watch(
        "ref_moved", jumps=UP, least=0.02, span=_POSITIVE,
        rose="log_probs_ref of the first tokens of known prompts changed",
    ),
    Watch(
        "kl_k3", UP, UP, "growth", bounds=(0.6, 0.55), rise=1.5, jumps=BOTH,
        span=_POSITIVE, spikes=3.0,
        logged=("kl", "kl_loss", "kl/mean", "kl_ent_ratio/mean", "objective/kl", "kl_div"),
        fix=f"raise β or lower the learning rate{GO_BACK}",
        rose="the KL from the reference rose", fell="the KL from the reference fell",
    ),
    Watch(
        "entropy", BOTH, BOTH, "log", steady=_COLLAPSES, bounds=(0.7, 0.66),
        span=_POSITIVE, spikes=3.0, logged=("entropy/all/mean", "entropy/mean", "policy_entropy"),
        fix=_ENTROPY,
        rose=_LESS_SURE, fell=_TOO_SURE,
    ),
    Watch("nll", BOTH, BOTH, "log", steady=_COLLAPSES, bounds=(0.7, 0.74), span=_POSITIVE,
          spikes=3.0, jumps=BOTH, jump=(0.05, 6.0), fix=_ENTROPY, rose=_LESS_SURE,
          fell=_TOO_SURE),
    Watch(
        "repetition", UP, UP, "share", least=0.15, span=_SHARE,
        fix="stop loops: penalise repetition or truncated responses, or lower the learning rate",
        rose="responses began to repeat themselves",
    ),
    Watch(
        "masked_start", jumps=BOTH, least=0.05, span=_SHARE,
        fix="look at what aligns the mask with the tokens: the mask of the response alone, without "
            "the prompt's, and no shift by the labels",
        rose="the mask leaves out the first tokens of more responses",
        fell="the mask counts first tokens that it left out before",
    ),
    Watch(
        "truncated", UP, UP, "share", (Limit(0.3, room=0.75),), least=0.1, span=_SHARE, stuck=1.0,
        bounds=_STEADY,
        logged=("completions/clipped_ratio", "response_length/clip_ratio", "truncated_ratio",
                "is_truncated/all/mean", "is_truncated/mean", "truncation_rate", "truncated"),
        fix="mask truncated responses, or allow longer ones",
        rose="more responses were cut off",
    ),
    Watch(
        "at_longest", UP, "", "share", least=1.0, span=_SHARE,
        fix="if they are cut at max_tokens, allow longer responses or mask these; if not, mask the "
            "padding after their end",
        rose="all responses of a step have one length: cut off, or with padding",
    ),
    Watch(
        "length_p95", jumps=DOWN, scale="log", jump=(0.4, 6.0), span=_POSITIVE,
        fix=LIMIT_OF_LENGTH,
        fell="the longest responses became shorter at once",
    ),
    Watch(
        "copies", limits=(Limit(0.3, later=True),), jumps=UP, least=0.2, span=_SHARE,
        fix="look for a sampler or a loader that gives a response twice: requests with one seed, "
            "a cache, rows that were written twice",
        rose="more responses are copies of others of the step",
    ),
    Watch(
        "length_mean", BOTH, BOTH, "log", bounds=(0.64, 1.0), span=_POSITIVE, spikes=3.0,
        jump=(0.4, 6.0),
        logged=("completions/mean_length", "response_length/mean", "response_length",
                "response_len/mean", "completion_length", "seq_len/all/mean"),
        fix="check whether the reward favours length (reward_length_corr; each response: grpo "
            "eval RUN --level response -f csv); normalise the loss by tokens",
        rose="responses became longer", fell="responses became shorter",
    ),
    Watch(
        "groups_equal", UP, UP, "share", (Limit(0.7, room=0.3),), least=0.5, span=_SHARE, stuck=1.0,
        jumps=UP,
        bounds=_STEADY, fix=_GROUPS,
        logged=("frac_reward_zero_std", "zero_var_group_frac", "zero_std_frac"),
        rose="more groups had equal rewards (no policy gradient)",
    ),
    Watch("groups_all_0", UP, "", "share", least=0.3, bounds=(0.5, 0.8), span=_SHARE,
          fix=_GROUPS, rose="more groups had no right answer"),
    Watch("groups_all_1", span=_SHARE, fix=_GROUPS),
    Watch("reward_group_std", DOWN, bounds=_STEADIER, span=_POSITIVE, fix=_GROUPS,
          fell="rewards within a group became more equal"),
    Watch("reward_std", span=_POSITIVE, jumps=BOTH, logged=("score/std", "rewards/std"),
          fix="check what the reward function has returned since then",
          rose="rewards became less equal", fell="rewards became more equal"),
    Watch("pass_at_k", span=_SHARE),
    Watch(
        "reward_mean", DOWN, DOWN, spikes=3.0,
        bounds=_STEADIER, stays=0.5, jumps=BOTH,
        fix="check what the reward function has returned since then",
        logged=("reward", "critic/score/mean", "critic/rewards/mean", "reward/all/mean",
                "raw_reward", "reward/mean", "rewards/mean"),
        fell="the reward fell",
    ),
    Watch("eval/", DOWN, DOWN, bounds=_STEADIER,
          fix="go back to the previous checkpoint; the reward may be hacked: read the responses "
              "that it favours", fell="the score on held-out data fell"),
    Watch("rewards/", DOWN, DOWN, bounds=_STEADY,
          fix="check what this reward function has returned since then"),
    Watch(OF_ENVIRONMENT, gone=0.0,
          fix=VERIFIER),
    Watch(OF_SPREAD, gone=0.0, gone_after=4, fix=VERIFIER,
          fell="the rewards of a prompt became equal"),
)  # fmt: skip

_COMPARED = ("reward_std", "pass_at_k")
"""Their shifts are no findings unless they are at once: in 530 runs they never were the only one
of a fault, and were 3 of 12 false ones in 200 healthy runs."""
SIGNED = "mismatch.k1"
"""Near 0, on either side, where nothing is wrong."""
_IF_FALLS = " falls, "
_HELD_OUT = re.compile(r"(.*/)?(eval|val|test|validation)[-_/]")
_BETTER = re.compile(
    r"(reward|acc|accuracy|score)(/mean(@\d+)?)?$|(avg|mean|pass|best)@\d+(/mean)?$"
)
ROWS: Mapping[str, Watch] = {one.name: one for one in TABLE}
_LOGGED: Mapping[str, Watch] = {name: one for one in TABLE for name in (one.name, *one.logged)}
RANKS: Mapping[str, int] = {one.name: rank for rank, one in enumerate(TABLE)}


def watch(name: str) -> Watch | None:
    """How a metric of a dump is watched; None where it is not."""
    every = "rewards/", OF_ENVIRONMENT, OF_SPREAD
    prefixes = (one for one in every if name.startswith(one))
    return ROWS.get(name) or ROWS.get(next(prefixes, ""))


def remedy(row: Watch, direction: str) -> str:
    """What is usually done about a metric that fell, or rose, where these differ."""
    fall, either, rise = row.fix.partition("; if it rises, ")
    if not either or not direction or _IF_FALLS not in fall:
        return row.fix
    return fall.partition(_IF_FALLS)[2] if direction == DOWN else rise


def is_watched(name: str) -> bool:
    """Whether a metric of a dump is compared beyond limits: with its past, or with another run."""
    row = watch(name)
    return row is not None and bool(row.shift or row.spikes or row.jumps or name in _COMPARED)


@lru_cache(maxsize=4096)
def watch_logged(name: str) -> Watch | None:
    """How a series of a log is watched, by its name or its end in any case; None where it is not.

    Of held-out data only what is better where it is higher is watched.
    """
    name = name.lower()
    first, *rest = name.split("/")
    if _HELD_OUT.match(name):
        return ROWS["eval/"] if _BETTER.search(name) else None
    if name.startswith("rewards/") and name.endswith("/mean") and name not in _LOGGED:
        return ROWS["rewards/"]
    parts = [first, *rest]
    ends = ("/".join(parts[at:]) for at in range(len(parts)))
    return next((_LOGGED[end] for end in ends if end in _LOGGED), None)
