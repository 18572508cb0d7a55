"""The hyperparameters of the family: each one's name, what it may be, what others call it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from typing import NamedTuple

from grpo_cli.errors import GrpoError

Value = float | int | str | None

_MOST = 2**63 - 1
"""The greatest whole number that arrays and every output hold."""


class HyperparameterError(GrpoError):
    """A hyperparameter's value outside its meaning; the caller adds the place."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


class Hyperparameter(NamedTuple):
    """What a hyperparameter may be.

    Args:
        meaning: one line for ``grpo explain`` and for messages.
        low: the least value.
        open_low: whether ``low`` itself is excluded.
        high: the greatest value.
        integer: whether only whole numbers are allowed; without ``high``, those of 64 bits.
        words: the words it may be, for one that is not a number.
        several: whether it may be several of the words, or numbers, joined by commas; a list too.
        form: a regular expression of the texts that it may be instead of a number.
        said: what such a text is, for messages.
        optional: whether None ("off") is allowed.
        called: the frameworks' names for the same thing, in one text.
        counts: what of an optimiser step it counts, over all processes: "tokens", "responses",
            "microbatches", "ranks", the microbatches of a "generation", or the "tokens at a time"
            of the micro-batches that the ranks evaluate side by side; "" for none of it.
    """

    meaning: str
    low: float = -math.inf
    open_low: bool = False
    high: float = math.inf
    integer: bool = False
    words: tuple[str, ...] = ()
    several: bool = False
    form: str = ""
    said: str = ""
    optional: bool = False
    called: str = ""
    counts: str = ""

    @property
    def aliases(self) -> tuple[str, ...]:
        """The frameworks' names for the same thing."""
        return tuple(self.called.split())

    @property
    def wanted(self) -> str:
        """The allowed values in words."""
        if self.words:
            ending = ", or several joined by commas" if self.several else ""
            return "one of " + ", ".join(self.words) + ending
        kind = "a whole number" if self.integer else "a finite number"
        if self.low > -math.inf:
            kind += f" {'>' if self.open_low else '>='} {self.low:g}"
        if self.high < math.inf:
            high = self.high if isinstance(self.high, int) else f"{self.high:g}"
            kind += f"{' and' if self.low > -math.inf else ''} <= {high}"
        kind += f", or {self.said}" if self.form else ""
        return kind + (" or null" if self.optional else "")

    def check(self, name: str, value: object) -> Value:
        """Returns ``value`` if it is allowed.

        Raises:
            HyperparameterError: with what was expected and what came.
        """
        if value is None and self.optional:
            return None
        if self.form and self.several and isinstance(value, list | tuple):
            value = ",".join(map(_show, value))
        if self.words:
            if isinstance(value, bool):
                value = str(value).lower()
            given = value.split(",") if self.several and isinstance(value, str) else [value]
            if isinstance(value, str) and set(given) <= set(self.words):
                return value
        elif isinstance(value, str) and self.form and re.fullmatch(self.form, value):
            return ",".join(map(_shortest, value.split(","))) if self.several else value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            value = _within_floats(value)
            inside = self.low < value if self.open_low else self.low <= value
            if math.isfinite(value) and inside and value <= self.high:
                if not self.integer:
                    return float(value)
                if float(value).is_integer():
                    if value > _MOST and self.high == math.inf:
                        wanted = self._replace(high=_MOST).wanted
                        raise HyperparameterError(name, f"expected {wanted}, got {_show(value)}")
                    return int(value)
        raise HyperparameterError(name, f"expected {self.wanted}, got {_show(value)}")


def _within_floats(value: int | float) -> int | float:
    """The same number; an infinite one for an integer beyond all floats."""
    try:
        float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return value


def _shortest(number: str) -> str:
    """A number in its shortest text, so that 1 and 1.0 have one signature."""
    value = float(number)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _show(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return "NaN" if value != value else f"{value}"


_NUMBER = r"[0-9.]+(?:e[+-]?[0-9]+)?"
_SIGNED = rf"[+-]?{_NUMBER}"
_BOUNDS = rf"(?:{_NUMBER}_)?{_NUMBER}"

_positive = partial(Hyperparameter, low=0.0, open_low=True)
_at_least_0 = partial(Hyperparameter, low=0.0)
_count = partial(Hyperparameter, low=1, integer=True)

HYPERPARAMETERS: Mapping[str, Hyperparameter] = {
    "epsilon_low": _at_least_0(
        "lower clip range: the ratio is clipped at 1 − epsilon_low",
        called="clip_ratio_low eps_clip_low clip_range_low ratio_clip_min eps_low clip_lower",
    ),
    "epsilon_high": _at_least_0(
        "upper clip range: the ratio is clipped at 1 + epsilon_high",
        called="clip_ratio_high eps_clip_high clip_range_high "
        "ratio_clip_max eps_high clip_higher "
        "eps_clip_higher",
    ),
    "beta": _at_least_0(
        "coefficient of the KL penalty",
        called="kl_loss_coef kl_coef reference_policy_kl_penalty kl_tau kl_ctl",
    ),
    "kl_weight": Hyperparameter(
        "what multiplies each token's KL estimate: nothing, the ratio (unbiased KL), or the "
        "token's own ratio where the ratio stage has another",
        words=("none", "ratio", "token-ratio"),
    ),
    "entropy_coef": Hyperparameter(
        "coefficient of the entropy bonus", called="entropy_coeff entropy_loss_coef"
    ),
    "count_eps": _at_least_0("added to a response's count of tokens"),
    "std_ddof": Hyperparameter("degrees of freedom taken off in the std", low=0, integer=True),
    "std_eps": _at_least_0("added to the std before dividing by it"),
    "std_min": _at_least_0("a group whose std is below this has advantage 0"),
    "kl_input_clamp": _positive(
        "bound on |log π_θ − log π_ref| before the KL estimate",
        optional=True,
        called="kl_input_clamp_value",
    ),
    "kl_output_clamp": _positive(
        "bound on |KL estimate|", optional=True, called="kl_output_clamp_value"
    ),
    "delta": _positive(
        "upper bound on the ratio in the unclipped branch (two-sided clip)", optional=True
    ),
    "dual_clip": Hyperparameter(
        "the c of dual clip: where A < 0 the surrogate is at least c·A",
        low=1.0,
        open_low=True,
        optional=True,
        called="clip_ratio_c eps_clip_c ratio_clip_c c_clip",
    ),
    "log_ratio_clamp": _positive("bound on |log ratio| before it is exponentiated", optional=True),
    "max_completion_length": _positive("the constant length L that token sums are divided by"),
    "gradient_accumulation_steps": _count(
        "micro-batches per optimiser step; trainers divide their loss by it", counts="microbatches"
    ),
    "num_items_in_batch": _positive(
        "tokens of the whole generation batch, over all processes", optional=True, counts="tokens"
    ),
    "steps_per_generation": _count(
        "micro-batches per generation batch", optional=True, counts="generation"
    ),
    "loss_scale_factor": _positive("verl's constant that token sums are divided by", optional=True),
    "response_length": _positive("the padded width of the responses", optional=True),
    "global_batch_size": _positive(
        "responses of the whole mini-batch, over all processes", optional=True, counts="responses"
    ),
    "batch_num_tokens": _positive(
        "tokens of the whole mini-batch, over all processes", optional=True, counts="tokens"
    ),
    "dp_size": _count("verl's data-parallel size", counts="ranks"),
    "tau_pos": _positive(
        "SAPO's temperature where A > 0", called="sapo_temperature_pos sapo_tau_pos"
    ),
    "tau_neg": _positive(
        "SAPO's temperature where A <= 0", called="sapo_temperature_neg sapo_tau_neg"
    ),
    "log_ratio_max": Hyperparameter(
        "upper bound on a log ratio before it is exponentiated; below there is none"
    ),
    "dro_beta": _positive("DRO's coefficient of the squared log ratio"),
    "clip_cov_ratio": _positive("share of the tokens that Clip-Cov takes out", high=1.0),
    "clip_cov_lb": Hyperparameter("least covariance of a token that Clip-Cov takes out"),
    "clip_cov_ub": Hyperparameter("greatest covariance of a token that Clip-Cov takes out"),
    "clip_cov_seed": Hyperparameter(
        "seed of Clip-Cov's random choice of tokens",
        low=0,
        high=2**64 - 1,
        integer=True,
        called="seed",
    ),
    "kl_cov_ratio": _positive(
        "share of the tokens that KL-Cov penalises", high=1.0, called="kl_cov_frac"
    ),
    "ppo_kl_coef": _at_least_0("KL-Cov's coefficient of |log ratio|"),
    "gamma": _at_least_0("discount of the reward per token, or per turn", high=1.0),
    "turn_peers": Hyperparameter(
        "the turns that a turn is compared with: those of its number, or all of its group",
        words=("number", "group"),
    ),
    "turn_advantage_coef": _at_least_0(
        "what the advantage of a turn counts beside the outcome's: MT-GRPO's λ, GiGPO's ω",
        called="step_advantage_w",
    ),
    "outcome_unit": Hyperparameter(
        "what counts once in GiGPO's mean and std of outcomes", words=("trajectory", "turn")
    ),
    "gae_lambda": _at_least_0(
        "GAE's decay of later errors of the value", high=1.0, called="lam lambd"
    ),
    "num_processes": _count("data-parallel processes", counts="ranks"),
    "reward_bias": Hyperparameter("AReaL adds it to the reward before it scales it"),
    "reward_scaling": Hyperparameter("AReaL multiplies the reward by it"),
    "reward_clip": _positive(
        "bound on |reward|: OpenRLHF's after it is normalised in the group, AReaL's before",
        optional=True,
    ),
    "ipo_threshold": _at_least_0(
        "prime-rl's ipo (its eps) drops a token whose |π_θ − π_rollout| is above it", high=1.0
    ),
    "m2_threshold": _positive(
        "M2PO keeps the tokens whose mean (log π_old − log π_rollout)² is below it"
    ),
    "rho_mask_low": _at_least_0(
        "open-instruct drops a token whose π_old/π_rollout is below it",
        optional=True,
        called="rho_mask_lower_bound",
    ),
    "rho_mask_high": _at_least_0(
        "open-instruct drops a token whose π_old/π_rollout is above it",
        optional=True,
        called="rho_mask_upper_bound",
    ),
    "loss_denominator": _positive("open-instruct's constant that the token sum is divided by"),
    "is_low": _at_least_0(
        "lower bound on the ratio of the old policy to the engine that sampled",
        optional=True,
        called="tis_clip_low rho_clamp_lower_bound truncated_importance_sampling_ratio_min "
        "vllm_importance_sampling_clip_min",
    ),
    "is_high": _at_least_0(
        "upper bound on the ratio of the old policy to the engine that sampled",
        optional=True,
        called="tis_clip rho_clamp_upper_bound truncated_importance_sampling_ratio "
        "vllm_importance_sampling_clip_max vllm_importance_sampling_cap "
        "rollout_importance_sampling_threshold",
    ),
    "rollout_is": Hyperparameter(
        "what verl weighs with π_old/π_rollout: each token, or the response's product; null: 1",
        words=("token", "sequence"),
        optional=True,
    ),
    "rollout_is_threshold": _positive(
        "verl's greatest weight, or LOW_HIGH between which a weight is not 0",
        form=_BOUNDS,
        said="LOW_HIGH",
    ),
    "rollout_is_batch_normalize": Hyperparameter(
        "whether verl divides the weights by their mean", words=("false", "true")
    ),
    "rollout_rs": Hyperparameter(
        "the statistics by which verl rejects tokens or responses; null rejects none",
        words=(
            *(f"token_k{k}" for k in (1, 2, 3)),
            *(f"seq_{how}_k{k}" for how in ("sum", "mean") for k in (1, 2, 3)),
            *(f"seq_max_k{k}" for k in (2, 3)),
        ),
        several=True,
        optional=True,
    ),
    "rollout_rs_threshold": _positive(
        "verl's bounds on them: HIGH, for k1 also LOW_HIGH of the ratio; one, or one for each",
        form=f"{_BOUNDS}(,{_BOUNDS})*",
        said="HIGH or LOW_HIGH, several joined by commas",
        optional=True,
    ),
    "tis_ratio_type": Hyperparameter(
        "what SkyRL weighs with π_old/π_rollout: each token or the sequence; null: 1",
        words=("token", "sequence"),
        optional=True,
    ),
    "token_tis_ratio_clip_high": _at_least_0("SkyRL's cap on a token's weight"),
    "sequence_tis_ratio_clip_high": _at_least_0("SkyRL's cap on a sequence's weight"),
    "sequence_mask_metric": Hyperparameter(
        "by what of π_old/π_rollout SkyRL drops a response: geometric mean or product; null: none",
        words=("geometric", "product"),
        optional=True,
    ),
    **{
        f"{kind}_mask_{side}": _at_least_0(f"SkyRL's {word} bound on the {what}")
        for kind, what in (("geo", "geometric mean"), ("product", "product"))
        for side, word in (("low", "lower"), ("high", "upper"))
    },
    **{
        f"{kind}_is_threshold_{side}": _at_least_0(
            f"SkyRL's {word} bound on a token's ratio, beyond which {what}", optional=True
        )
        for kind, what in (
            ("outlier_token", "it drops the response"),
            ("token_mask", "it drops the token"),
        )
        for side, word in (("low", "lower"), ("high", "upper"))
    },
    "rejection_metric": Hyperparameter(
        "by what AReaL rejects a token or a response",
        words=("ratio", "kl_k1", "kl_k2", "kl_k3", "binary_kl"),
    ),
    "rejection_level": Hyperparameter("what AReaL rejects", words=("token", "sequence")),
    "rejection_agg": Hyperparameter(
        "how AReaL's metric of a response comes of its tokens'", words=("sum", "mean", "max")
    ),
    "rejection_action": Hyperparameter(
        "whether AReaL drops what it rejects, or clamps its weight", words=("mask", "clamp")
    ),
    "is_weight_type": Hyperparameter(
        "the granularity of ROLL's weight π_old/π_rollout; null: 1",
        words=("token", "segment", "geometric", "sequence"),
        optional=True,
    ),
    "filter_agg": Hyperparameter(
        "the granularity of ROLL's filter; null: no filter",
        words=("token", "segment", "geometric", "sequence"),
        optional=True,
    ),
    **{
        f"{what}_{side}": Hyperparameter(f"ROLL's {word} bound on {of}", low=low, optional=True)
        for what, of, low in (
            ("ratio", "π_old/π_rollout", 0.0),
            ("diff", "π_old − π_rollout", -math.inf),
        )
        for side, word in (("low", "lower"), ("high", "upper"))
    },
    "rejection_threshold": _at_least_0(
        "greatest divergence of the trainer from the engine at which a token or response is kept"
    ),
    "vespo_k_pos": _at_least_0("VESPO's power of the ratio where A >= 0"),
    "vespo_lambda_pos": _at_least_0("VESPO's rate of decay where A >= 0"),
    "vespo_k_neg": _at_least_0("VESPO's power of the ratio where A < 0"),
    "vespo_lambda_neg": _at_least_0("VESPO's rate of decay where A < 0"),
    "divergence_low": _at_least_0(
        "DPPO's bound on the divergence where A < 0", called="dppo_mask_low"
    ),
    "divergence_high": _at_least_0(
        "DPPO's bound on the divergence where A > 0", called="dppo_mask_high"
    ),
    "fipo_decay_rate": _positive("FIPO's half-life of the future log ratios, in tokens"),
    "fipo_clip_low": _at_least_0(
        "FIPO's lower clip range: the weight is at least 1 − fipo_clip_low"
    ),
    "fipo_clip_high": _at_least_0(
        "FIPO's upper clip range: the weight is at most 1 + fipo_clip_high",
        called="fipo_clip_range",
    ),
    "fipo_safety_threshold": _at_least_0(
        "the ratio beyond which FIPO does not raise the weight of a token with A < 0"
    ),
    "real_tau": _positive("REAL's temperature"),
    "off_policy_mask_threshold": Hyperparameter(
        "a response with A < 0 that is further off-policy than this, in nats per token, is dropped",
        optional=True,
        called="off_policy_sequence_mask_delta opsm_delta",
    ),
    "positive_weight": _at_least_0(
        "the advantage of a response whose reward is positive", called="positive_advantage_weight"
    ),
    "negative_weight": _at_least_0(
        "minus the advantage of a response whose reward is not positive"
    ),
    "gfpo_keep": _count(
        "GFPO's k: how many responses of a group are kept", called="num_remains_in_group"
    ),
    "gppo_beta1": _at_least_0(
        "CE-GPPO's share of the gradient below the clip range where A < 0", called="gppo_loss_beta1"
    ),
    "gppo_beta2": _at_least_0(
        "CE-GPPO's share of the gradient above the clip range where A > 0", called="gppo_loss_beta2"
    ),
    "dcpo_ratio_max": Hyperparameter(
        "DCPO's greatest upper bound on the ratio", low=1.0, called="dcpo_r_max"
    ),
    "bapo_target": _at_least_0(
        "BAPO's least quotient of the positive and the negative contribution",
        called="adv_ratio_target",
    ),
    "bapo_low_start": _at_least_0(
        "BAPO's lower bound on the ratio, to begin with", called="ratio_lower_start"
    ),
    "bapo_low_max": _at_least_0(
        "BAPO's greatest lower bound on the ratio", called="ratio_lower_max"
    ),
    "bapo_low_step": _at_least_0("what BAPO raises its lower bound by", called="ratio_lower_step"),
    "bapo_high_start": _at_least_0(
        "BAPO's upper bound on the ratio, to begin with", called="ratio_upper_start"
    ),
    "bapo_high_max": _at_least_0(
        "BAPO's greatest upper bound on the ratio", called="ratio_upper_max"
    ),
    "bapo_high_step": _at_least_0("what BAPO raises its upper bound by", called="ratio_upper_step"),
    "global_n_tokens": _positive(
        "tokens of a micro-batch over all processes, TRL's AsyncGRPOTrainer",
        optional=True,
        counts="tokens at a time",
    ),
    "opd_kl_coef": Hyperparameter(
        "what the distance to the teacher counts in the advantage", called="teacher_kl_coef"
    ),
    "rlsd_lambda": _at_least_0("share of the advantage that RLSD weighs by the teacher", high=1.0),
    "rlsd_clip_range": _at_least_0(
        "how far from 1 RLSD's weight may be", called="rlsd_reweight_clip_range"
    ),
    "rlsd_negative_only": Hyperparameter(
        "1: RLSD weighs negative advantages alone", low=0, high=1, integer=True
    ),
    "sdar_gate_beta": _positive("how sharply SDAR's gate opens"),
    "advantage_clip_low": Hyperparameter("lower bound on the advantage", optional=True),
    "advantage_clip_high": Hyperparameter("upper bound on the advantage", optional=True),
    "seq_logprob_error_threshold": _at_least_0(
        "greatest mean of exp|log π_old − log π_rollout| of a response that is kept"
    ),
    "num_output_tokens_weight": _at_least_0(
        "prime-rl's length penalty: share of the group's mean reward that the longest pays"
    ),
    "reward_weights": Hyperparameter(
        "what each of several reward functions counts",
        form=rf"{_SIGNED}(?:,{_SIGNED})*",
        said="several numbers joined by commas",
        several=True,
        called="gdpo_reward_weights",
    ),
    "top_entropy_quantile": _at_least_0(
        "share of the tokens, those of highest entropy, that are kept", high=1.0
    ),
}

SETS = {"epsilon": ("epsilon_low", "epsilon_high")}
"""Names that set several at once."""

_ALIASES = {alias: name for name, row in HYPERPARAMETERS.items() for alias in row.aliases}
_SET_ALIASES = {"clip_ratio": "epsilon", "eps_clip": "epsilon", "clip_epsilon": "epsilon"}

KNOWN = frozenset({*HYPERPARAMETERS, *SETS, *_ALIASES, *_SET_ALIASES})
"""Every name a hyperparameter may be given by."""


def canonical(values: Mapping[str, object]) -> dict[str, Value]:
    """Checks hyperparameters and returns them under their canonical names.

    A name that sets several (``epsilon``) gives way to the particular ones; an
    ``epsilon_high`` of null is not set.

    Raises:
        HyperparameterError: for an unknown name (the near match is named) or a value outside its
            meaning.
    """
    broad: dict[str, Value] = {}
    exact: dict[str, Value] = {}
    for given, value in values.items():
        name = _SET_ALIASES.get(given, _ALIASES.get(given, given))
        if value is None and name == "epsilon_high":
            continue  # the frameworks' way to write: as epsilon_low
        if name in SETS:
            for one in SETS[name]:
                broad[one] = HYPERPARAMETERS[one].check(given, value)
            continue
        if name not in HYPERPARAMETERS:
            raise HyperparameterError(given, unknown(given))
        exact[name] = HYPERPARAMETERS[name].check(given, value)
    return broad | exact


def unknown(name: str, read: str = "") -> str:
    """What to say of a hyperparameter that nobody knows: a near one, else which are ``read``."""
    near = get_close_matches(name, sorted(KNOWN), n=1, cutoff=0.6)
    others = f"{read}; " if read else ""
    all_of_them = f"{others}grpo variants --hyperparameters lists all"
    return f"unknown hyperparameter; {f'did you mean {near[0]}?' if near else all_of_them}"
