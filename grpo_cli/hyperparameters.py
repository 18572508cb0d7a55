"""The hyperparameters of the family: each one's name, what it may be, what others call it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from grpo_cli.errors import GrpoError, nearest

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
        form_text: what such a text is, for messages.
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
    form_text: str = ""
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
        kind += f", or {self.form_text}" if self.form else ""
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
        "weight of each token's KL estimate: none, the ratio (unbiased KL), or the token's "
        "own ratio (also if the ratio is per sequence)",
        words=("none", "ratio", "token-ratio"),
    ),
    "entropy_coef": Hyperparameter(
        "coefficient of the entropy bonus", called="entropy_coeff entropy_loss_coef"
    ),
    "count_eps": _at_least_0("added to the number of tokens of a response in its mean"),
    "std_ddof": Hyperparameter("the std divides by n − std_ddof", low=0, integer=True),
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
        "upper bound on the ratio in the unclipped term (two-sided clip)", optional=True
    ),
    "dual_clip": Hyperparameter(
        "dual clip's c: if A < 0, the surrogate is at least c·A",
        low=1.0,
        open_low=True,
        optional=True,
        called="clip_ratio_c eps_clip_c ratio_clip_c c_clip",
    ),
    "log_ratio_clamp": _positive("bound on |log ratio| before the exponential", optional=True),
    "max_completion_length": _positive("constant length L by which token sums are divided"),
    "gradient_accumulation_steps": _count(
        "micro-batches per optimiser step; trainers divide the loss by it", counts="microbatches"
    ),
    "num_items_in_batch": _positive(
        "tokens of the whole generation batch, over all processes", optional=True, counts="tokens"
    ),
    "steps_per_generation": _count(
        "micro-batches per generation batch", optional=True, counts="generation"
    ),
    "loss_scale_factor": _positive(
        "verl's constant by which token sums are divided", optional=True
    ),
    "response_length": _positive("the padded width of the responses", optional=True),
    "global_batch_size": _positive(
        "responses of the whole mini-batch, over all processes", optional=True, counts="responses"
    ),
    "batch_num_tokens": _positive(
        "tokens of the whole mini-batch, over all processes", optional=True, counts="tokens"
    ),
    "dp_size": _count("verl's data-parallel size", counts="ranks"),
    "tau_pos": _positive(
        "SAPO's temperature for A > 0", called="sapo_temperature_pos sapo_tau_pos"
    ),
    "tau_neg": _positive(
        "SAPO's temperature for A <= 0", called="sapo_temperature_neg sapo_tau_neg"
    ),
    "log_ratio_max": Hyperparameter(
        "upper bound on a log ratio before the exponential; there is no lower bound"
    ),
    "dro_beta": _positive("DRO's coefficient of the squared log ratio"),
    "clip_cov_ratio": _positive("share of the tokens that Clip-Cov drops", high=1.0),
    "clip_cov_lb": Hyperparameter("smallest covariance of a token that Clip-Cov may drop"),
    "clip_cov_ub": Hyperparameter("largest covariance of a token that Clip-Cov may drop"),
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
    "gamma": _at_least_0("discount of the reward per token or per turn", high=1.0),
    "turn_peers": Hyperparameter(
        "turns that a turn is compared with: those with its number, or all of its group",
        words=("number", "group"),
    ),
    "turn_advantage_coef": _at_least_0(
        "weight of the turn advantage: MT-GRPO's λ, GiGPO's ω", called="step_advantage_w"
    ),
    "outcome_unit": Hyperparameter(
        "what counts once in GiGPO's mean and std of outcomes", words=("trajectory", "turn")
    ),
    "gae_lambda": _at_least_0("GAE's λ", high=1.0, called="lam lambd"),
    "num_processes": _count("data-parallel processes", counts="ranks"),
    "reward_bias": Hyperparameter("AReaL adds this to the reward before scaling"),
    "reward_scaling": Hyperparameter("AReaL multiplies the reward by this"),
    "reward_clip": _positive(
        ("bound on |reward|: OpenRLHF applies it after normalising within the group, AReaL before"),
        optional=True,
    ),
    "ipo_threshold": _at_least_0(
        "prime-rl's ipo (its eps) drops tokens with |π_θ − π_rollout| above this", high=1.0
    ),
    "m2_threshold": _positive(
        "M2PO drops outlier tokens until the mean of (log π_old − log π_rollout)² is below this"
    ),
    "rho_mask_low": _at_least_0(
        "open-instruct drops tokens with π_old/π_rollout below this",
        optional=True,
        called="rho_mask_lower_bound",
    ),
    "rho_mask_high": _at_least_0(
        "open-instruct drops tokens with π_old/π_rollout above this",
        optional=True,
        called="rho_mask_upper_bound",
    ),
    "loss_denominator": _positive("open-instruct's constant by which token sums are divided"),
    "is_low": _at_least_0(
        "lower bound on π_old/π_rollout",
        optional=True,
        called="tis_clip_low rho_clamp_lower_bound truncated_importance_sampling_ratio_min "
        "vllm_importance_sampling_clip_min",
    ),
    "is_high": _at_least_0(
        "upper bound on π_old/π_rollout",
        optional=True,
        called="tis_clip rho_clamp_upper_bound truncated_importance_sampling_ratio "
        "vllm_importance_sampling_clip_max vllm_importance_sampling_cap "
        "rollout_importance_sampling_threshold",
    ),
    "rollout_is": Hyperparameter(
        (
            "verl's weight: π_old/π_rollout of each token, or its product over the response; "
            "null: no weight"
        ),
        words=("token", "sequence"),
        optional=True,
    ),
    "rollout_is_threshold": _positive(
        "upper bound on verl's weight; with LOW_HIGH, weights outside become 0",
        form=_BOUNDS,
        form_text="LOW_HIGH",
    ),
    "rollout_is_batch_normalize": Hyperparameter(
        "if true, verl divides the weights by their mean", words=("false", "true")
    ),
    "rollout_rs": Hyperparameter(
        "statistics by which verl rejects tokens or responses; null: none",
        words=(
            *(f"token_k{k}" for k in (1, 2, 3)),
            *(f"seq_{how}_k{k}" for how in ("sum", "mean") for k in (1, 2, 3)),
            *(f"seq_max_k{k}" for k in (2, 3)),
        ),
        several=True,
        optional=True,
    ),
    "rollout_rs_threshold": _positive(
        (
            "verl's bounds on these statistics: HIGH, or for k1 LOW_HIGH of the ratio; one for "
            "all, or one for each"
        ),
        form=f"{_BOUNDS}(,{_BOUNDS})*",
        form_text="HIGH or LOW_HIGH (several: with commas)",
        optional=True,
    ),
    "tis_ratio_type": Hyperparameter(
        "SkyRL's weight: π_old/π_rollout of each token or of the sequence; null: no weight",
        words=("token", "sequence"),
        optional=True,
    ),
    "token_tis_ratio_clip_high": _at_least_0("SkyRL's cap on a token's weight"),
    "sequence_tis_ratio_clip_high": _at_least_0("SkyRL's cap on a sequence's weight"),
    "sequence_mask_metric": Hyperparameter(
        (
            "how SkyRL averages π_old/π_rollout to drop a response: geometric mean or product; "
            "null: drops none"
        ),
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
        "the quantity by which AReaL rejects a token or a response",
        words=("ratio", "kl_k1", "kl_k2", "kl_k3", "binary_kl"),
    ),
    "rejection_level": Hyperparameter("what AReaL rejects", words=("token", "sequence")),
    "rejection_agg": Hyperparameter(
        "how AReaL computes a response's metric from those of its tokens",
        words=("sum", "mean", "max"),
    ),
    "rejection_action": Hyperparameter(
        "whether AReaL drops rejected tokens or clamps their weight", words=("mask", "clamp")
    ),
    "is_weight_type": Hyperparameter(
        "level of ROLL's weight π_old/π_rollout; null: no weight",
        words=("token", "segment", "geometric", "sequence"),
        optional=True,
    ),
    "filter_agg": Hyperparameter(
        "level of ROLL's filter; null: no filter",
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
        "largest divergence between trainer and engine at which a token or response is kept"
    ),
    "vespo_k_pos": _at_least_0("VESPO's power of the ratio for A >= 0"),
    "vespo_lambda_pos": _at_least_0("VESPO's rate of decay for A >= 0"),
    "vespo_k_neg": _at_least_0("VESPO's power of the ratio for A < 0"),
    "vespo_lambda_neg": _at_least_0("VESPO's rate of decay for A < 0"),
    "divergence_low": _at_least_0(
        "DPPO's bound on the divergence for A < 0", called="dppo_mask_low"
    ),
    "divergence_high": _at_least_0(
        "DPPO's bound on the divergence for A > 0", called="dppo_mask_high"
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
        "the ratio above which FIPO does not increase the weight of a token with A < 0"
    ),
    "real_tau": _positive("REAL's temperature"),
    "off_policy_mask_threshold": Hyperparameter(
        (
            "responses with A < 0 are dropped if they are more off-policy than this, in nats per "
            "token"
        ),
        optional=True,
        called="off_policy_sequence_mask_delta opsm_delta",
    ),
    "positive_weight": _at_least_0(
        "advantage of a response with a positive reward", called="positive_advantage_weight"
    ),
    "negative_weight": _at_least_0("minus the advantage of a response with a reward of 0 or less"),
    "gfpo_keep": _count(
        "GFPO's k: number of responses kept per group", called="num_remains_in_group"
    ),
    "gppo_beta1": _at_least_0(
        "CE-GPPO's factor of the gradient below the clip range, for A < 0", called="gppo_loss_beta1"
    ),
    "gppo_beta2": _at_least_0(
        "CE-GPPO's factor of the gradient above the clip range, for A > 0", called="gppo_loss_beta2"
    ),
    "dcpo_ratio_max": Hyperparameter(
        "the largest upper bound on the ratio in DCPO", low=1.0, called="dcpo_r_max"
    ),
    "bapo_target": _at_least_0(
        "smallest ratio of positive to negative contribution in BAPO",
        called="adv_ratio_target",
    ),
    "bapo_low_start": _at_least_0(
        "initial lower bound on the ratio in BAPO", called="ratio_lower_start"
    ),
    "bapo_low_max": _at_least_0("final lower bound on the ratio in BAPO", called="ratio_lower_max"),
    "bapo_low_step": _at_least_0(
        "step by which BAPO raises the lower bound", called="ratio_lower_step"
    ),
    "bapo_high_start": _at_least_0(
        "initial upper bound on the ratio in BAPO", called="ratio_upper_start"
    ),
    "bapo_high_max": _at_least_0(
        "final upper bound on the ratio in BAPO", called="ratio_upper_max"
    ),
    "bapo_high_step": _at_least_0(
        "step by which BAPO raises the upper bound", called="ratio_upper_step"
    ),
    "global_n_tokens": _positive(
        "tokens of a micro-batch over all processes (TRL's AsyncGRPOTrainer)",
        optional=True,
        counts="tokens at a time",
    ),
    "opd_kl_coef": Hyperparameter(
        "weight of the distance to the teacher in the advantage", called="teacher_kl_coef"
    ),
    "rlsd_lambda": _at_least_0("share of the advantage that RLSD weights by the teacher", high=1.0),
    "rlsd_clip_range": _at_least_0(
        "largest distance of RLSD's weight from 1", called="rlsd_reweight_clip_range"
    ),
    "rlsd_negative_only": Hyperparameter(
        "1: RLSD weights only negative advantages", low=0, high=1, integer=True
    ),
    "sdar_gate_beta": _positive("steepness of SDAR's gate"),
    "advantage_clip_low": Hyperparameter("lower bound on the advantage", optional=True),
    "advantage_clip_high": Hyperparameter("upper bound on the advantage", optional=True),
    "seq_logprob_error_threshold": _at_least_0(
        "responses with a larger mean of exp|log π_old − log π_rollout| are dropped"
    ),
    "num_output_tokens_weight": _at_least_0(
        "prime-rl's length penalty of the longest response, as a share of the group's mean reward"
    ),
    "reward_weights": Hyperparameter(
        "weight of each reward function",
        form=rf"{_SIGNED}(?:,{_SIGNED})*",
        form_text="numbers separated by commas",
        several=True,
        called="gdpo_reward_weights",
    ),
    "top_entropy_quantile": _at_least_0(
        "share of the tokens that are kept: those with the highest entropy", high=1.0
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
    near = nearest(name, sorted(KNOWN))
    others = f"{read}; " if read else ""
    all_of_them = f"{others}grpo variants --hyperparameters lists all"
    return f"unknown hyperparameter; {f'did you mean {near}?' if near else all_of_them}"
