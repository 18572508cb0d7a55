"""slime's advantages, losses and denominator, its KL, and how its arguments read.

The KL is clamped after its weight. Denominators span the step's samples on all ranks, or its tokens
with calculate_per_token_loss: slime/backends/megatron_utils/loss.py, loss_function.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.errors import InputError
from grpo_cli.frameworks.framework import Framework, Reading, Settings
from grpo_cli.objective.advantage.batch import Advantage, over_batch, sample_rewards, standardised
from grpo_cli.objective.advantage.group import group_mean, group_std, raw
from grpo_cli.objective.advantage.tokens import less_own_kl
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import ByToken, Usual, choice, holding
from grpo_cli.objective.correction import (
    chain,
    off_policy_mask_old,
    token_mask,
    token_truncate,
)
from grpo_cli.objective.kl import in_reward, k3, weighed_then_clamped
from grpo_cli.objective.results import Kl, Moments, PerToken, Weights
from grpo_cli.objective.row import Row, executed, use, words


def whiten(values: F64, moments: Moments) -> F64:
    """(A − m)/√(v + 1e-8), v with ddof 1."""
    variance = moments.squares / np.maximum(moments.count - 1.0, 1.0)
    return (values - moments.mean) / np.sqrt(variance + 1e-8)


@choice("advantage", "slime/normalised", std_eps=1e-6)
@over_batch(whiten)
def normalised(rewards: F64, groups: Groups, *, std_eps: float) -> Advantage:
    """``group-std``, then (A − m)/√(v + 1e-8), ddof 1, over all tokens: ``--normalize-advantages``.

    Args:
        rewards, groups, std_eps: of ``group-std``.
        moments: mean and std of its advantages over the tokens of the batch.
    """
    return group_std(rewards, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)


@choice("advantage", "slime/opd", std_eps=1e-6, opd_kl_coef=1.0)
def distilled(
    rewards: F64,
    groups: Groups,
    log_probs_old: F64,
    log_probs_ref: F64,
    responses: Segments,
    *,
    std_eps: float,
    opd_kl_coef: float,
) -> PerToken:
    """A = group-std − opd_kl_coef·(log π_old − log π_ref) at each token: ``--use-opd``.

    Args:
        log_probs_old: [N]; log_probs_ref: [N] the teacher's.
        opd_kl_coef: what the distance to the teacher counts.

    References:
        Lu et al., On-Policy Distillation, 2025; slime's ``apply_opd_kl_to_advantages``.
    """
    scores = group_std(rewards, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
    distance = log_probs_old - log_probs_ref
    return PerToken(responses.spread(scores) - opd_kl_coef * distance)


choice("advantage", "slime/normalised-mean")(
    over_batch(
        whiten, doc="""``group-mean``, then whitened over all tokens as ``slime/normalised``."""
    )(group_mean)
)
choice("advantage", "slime/normalised-raw")(
    over_batch(whiten, doc="""The rewards, whitened over all tokens as ``slime/normalised``.""")(
        raw
    )
)
choice("advantage", "slime/opd-normalised", std_eps=1e-6, opd_kl_coef=1.0)(
    over_batch(
        whiten, doc="""``slime/opd``, then whitened over all tokens as ``slime/normalised``."""
    )(distilled)
)


@choice("advantage", "slime/one-group", measure=sample_rewards, std_eps=1e-6)
def one_group(rewards: F64, moments: Moments, *, std_eps: float) -> F64:
    """A = (r − r̄_batch) / (σ_batch(r) + eps), ddof 1: the whole batch as one group.

    slime does this if responses are missing, i.e. if the number of rewards is not prompts times
    n_samples_per_prompt.

    Args:
        moments: mean and std of the rewards over the batch, one element per response.
    """
    return standardised(rewards, moments, std_ddof=1, std_eps=std_eps)


choice("advantage", "slime/reinforce_plus_plus_baseline")(
    over_batch(
        whiten,
        doc="REINFORCE++-baseline of slime: r − r̄ − β·kₜ, whitened as (A − m)/√(v + 1e-8), ddof 1.",
    )(less_own_kl)
)


@choice("kl", "slime/low_var_kl", kl_weight="none")
def low_var_kl(
    log_ratio_ref: F64, ratio: F64, token_log_ratio: F64, *, beta: ByToken, kl_weight: str
) -> Kl:
    """The ``low_var_kl`` of slime: k3, first weighted by ρ, then clamped to ±10.

    ``k3`` and verl's ``low_var_kl`` clamp before weighting.

    References:
        DeepSeek-V3.2, 2025 (arXiv 2512.02556), for the weight, which has a gradient.
    """
    del beta
    estimate, slope = k3(log_ratio_ref)
    if kl_weight != "token-ratio":
        return weighed_then_clamped(estimate, slope, ratio if kl_weight == "ratio" else None)
    weighed = weighed_then_clamped(estimate, slope, np.exp(token_log_ratio))
    assert weighed.grad_log_ratio is not None
    return Kl(weighed.value, weighed.grad_log_prob + weighed.grad_log_ratio, None)


choice("kl", "slime/low_var_kl-in-reward", in_reward=True)(
    holding(
        in_reward(k3),
        """``k3-in-reward`` with the estimate clamped to ±10, slime's ``low_var_kl``.""",
        kl_input_clamp=None,
        kl_output_clamp=10.0,
    )
)

_BOUNDS: Usual = {"is_low": 0.0, "is_high": 2.0}

for _word, _weigh in (("tis", token_truncate), ("icepop", token_mask)):
    choice("correction", f"slime/opsm-{_word}", off_policy_mask_threshold=1e-4, **_BOUNDS)(
        chain(
            f"""``off-policy-mask-old`` times the weight of {_word}: ``use_opsm`` with ``use_tis``.

    Args:
        off_policy_mask_threshold: nats per token, of ``off-policy-mask-old``.
        is_low, is_high: bounds of ρₜ = π_old/π_rollout.
    """,
            off_policy_mask_old,
            _weigh,
        )
    )


@choice("aggregate", "slime/token-mean")
def slime_token_mean(lengths: I64) -> Weights:
    """``token-mean``, but an empty response counts as one token: ``--calculate-per-token-loss``."""
    counts = np.maximum(lengths, 1).astype(np.float64)
    return Weights(np.ones(len(lengths)), counts, 1.0, "tokens, and 1 per response without any")


_VALUES = {
    "eps_clip": "epsilon_low",
    "eps_clip_high": "epsilon_high",
    "eps_clip_c": "dual_clip",
    "kl_loss_coef": "beta",
    "tis_clip_low": "is_low",
    "tis_clip": "is_high",
    "opsm_delta": "off_policy_mask_threshold",
    "opd_kl_coef": "opd_kl_coef",
    "entropy_coef": "entropy_coef",
}
_ADVANTAGES = {
    "": "group-std",
    "normalize_advantages": "slime/normalised",
    "use_opd": "slime/opd",
    "normalize_advantages, use_opd": "slime/opd-normalised",
    "grpo_std_normalization false": "group-mean",
    "grpo_std_normalization false, normalize_advantages": "slime/normalised-mean",
    "rewards_normalization false": "raw",
    "rewards_normalization false, normalize_advantages": "slime/normalised-raw",
}
"""What is set → the advantage of grpo, gspo and cispo."""
_CORRECTIONS = {
    (False, None): None,
    (False, "vanilla_tis_function"): "token-truncate",
    (False, "icepop_function"): "token-mask",
    (True, None): "off-policy-mask-old",
    (True, "vanilla_tis_function"): "slime/opsm-tis",
    (True, "icepop_function"): "slime/opsm-icepop",
}
"""(use_opsm, the function of use_tis) → the correction."""
_BASELINE = "reinforce_plus_plus_baseline"


def read(settings: Settings) -> Reading:
    """The row of an ``advantage_estimator``, with the trainer's other choices swapped in.

    Args:
        settings: slime's own words: ``advantage_estimator``, ``rewards_normalization``,
            ``grpo_std_normalization``, ``normalize_advantages``, ``use_opd``, ``use_tis``,
            ``custom_tis_function_path``, ``use_opsm``, ``use_rollout_logprobs``, ``use_kl_loss``,
            ``use_unbiased_kl``, ``kl_loss_type``, ``kl_coef``, ``calculate_per_token_loss``, and
            their numbers.

    Raises:
        InputError: for settings that slime refuses together.
    """
    words = (settings.get(name) for name in ("advantage_estimator", "variant", "loss_type"))
    row = str(next((word for word in words if word), "grpo"))
    for pair in (("use_rollout_logprobs", "use_tis"), ("kl_coef", "kl_loss_coef")):
        if all(settings.get(name) for name in pair):
            raise _refused("slime refuses", *pair)
    values = {own: settings[name] for name, own in _VALUES.items() if name in settings}
    if values.get("epsilon_high") is None and "epsilon_low" in values:
        values["epsilon_high"] = values["epsilon_low"]  # as slime does
    by_engine = bool(settings.get("use_rollout_logprobs"))
    stages = {
        "ratio": ("rollout-sequence" if row == "gspo" else "rollout") if by_engine else None,
        "aggregate": "token-mean" if settings.get("calculate_per_token_loss") else None,
    }
    missing = {}
    for stage, choose in (("advantage", _advantage), ("correction", _correction), ("kl", _kl)):
        try:
            stages[stage] = choose(settings, row, values)
        except InputError as error:
            missing[stage] = error.message
    return Reading(row, {stage: name for stage, name in stages.items() if name}, values, missing)


def _refused(why: str, *names: str) -> InputError:
    return InputError(f"{why} {' with '.join(names)}; name a variant with -v", path="framework")


def _advantage(settings: Settings, row: str, _: dict[str, object]) -> str | None:
    """The advantage that the settings come to; None: the row's."""
    by_engine = settings.get("use_rollout_logprobs")
    on = [name for name in ("normalize_advantages", "use_opd") if settings.get(name)]
    if by_engine and "use_opd" in on:
        raise _refused("no advantage reproduces slime's", "use_opd", "use_rollout_logprobs")
    normalised = ("rewards_normalization", "grpo_std_normalization")
    off = [f"{name} false" for name in normalised if not settings.get(name, True)]
    if row == _BASELINE:  # which always whitens, and never divides by a group's std
        on += ["kl_coef", "use_rollout_logprobs"] if by_engine and settings.get("kl_coef") else []
        kept = [name for name in (*off[:1], *on) if name.split()[0] not in _WITHOUT_EFFECT]
        if kept:
            raise _refused("no advantage reproduces slime's", _BASELINE, *kept)
        return None
    if row not in ("grpo", "gspo", "cispo") or not (on or off):
        return None
    found = _ADVANTAGES.get(", ".join([*off[:1], *on]))
    if found is None:
        raise _refused("no advantage reproduces slime's", *off[:1], *on)
    return found


_WITHOUT_EFFECT = ("grpo_std_normalization", "normalize_advantages")


def _correction(settings: Settings, _: str, __: dict[str, object]) -> str | None:
    """The correction of use_opsm and use_tis; None: none, or the row's."""
    function = None
    if settings.get("use_tis"):
        path = str(settings.get("custom_tis_function_path") or "vanilla_tis_function")
        function = path.rpartition(".")[2]
    key = (bool(settings.get("use_opsm")), function)
    if key not in _CORRECTIONS:
        raise _refused("no correction reproduces slime's", f"custom_tis_function_path {function}")
    if key == (True, None) and settings.get("use_rollout_logprobs"):
        return "off-policy-mask"
    return _CORRECTIONS[key]


def _kl(settings: Settings, row: str, values: dict[str, object]) -> str | None:
    """The KL that the settings come to, None for the row's; its coefficient goes into values."""
    kind, by_engine = settings.get("kl_loss_type"), settings.get("use_rollout_logprobs")
    if row == _BASELINE and settings.get("kl_coef"):
        values["beta"] = settings["kl_coef"]
        return f"{kind or 'k1'}-in-reward"
    if not settings.get("use_kl_loss", True):
        values.pop("beta", None)
        return None
    if settings.get("use_unbiased_kl"):
        if by_engine and row == "gspo":
            raise _refused("no KL reproduces gspo's", "use_unbiased_kl", "use_rollout_logprobs")
        values["kl_weight"] = "ratio" if by_engine else "token-ratio"
    if kind is None and row == _BASELINE and values.get("beta"):
        return "k1"
    return None if kind is None else str(kind)


_READS = words(
    "epsilon_low epsilon_high dual_clip beta kl_weight is_low is_high off_policy_mask_threshold"
)
"""Of slime's arguments; what is added to the std, and clamps of the KL, are constants."""

GRPO = Row(
    title="slime's grpo",
    paper="2402.03300",
    advantage=use("group-std", std_ddof=1, std_eps=1e-6, std_min=0.0),
    ratio=use("token"),
    surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2),
    kl=use("k1", beta=0.0),
    correction=use("none"),
    aggregate=use("response-mean"),
    entropy=use("bonus", entropy_coef=0.0),
    reads=_READS,
    checked="executed",
    version="624b824 (2026-08-21)",
    note="Each rollout is averaged over its tokens. slime joins samples with one rollout_id; here "
    "each response is a rollout. If groups have unequal sizes, slime normalises the whole batch "
    "as one group: use --advantage slime/one-group. For --calculate-per-token-loss use "
    "--aggregate slime/token-mean; for --use-rollout-logprobs, --ratio rollout; for "
    "--use-unbiased-kl, -p kl_weight=token-ratio; for --kl-loss-type low_var_kl, --kl "
    "slime/low_var_kl. For --normalize-advantages use --advantage slime/normalised; for "
    "--use-opd, slime/opd (log_probs_ref is the teacher's); for both, slime/opd-normalised. For "
    "--disable-grpo-std-normalization use group-mean or slime/normalised-mean; for "
    "--disable-rewards-normalization, raw or slime/normalised-raw. For --use-opsm with --use-tis "
    "use --correction slime/opsm-tis.",
)

ROWS = {
    "slime/grpo": GRPO,
    "slime/gspo": executed(GRPO, ratio=use("sequence")).named(
        "slime's gspo",
        "ε is 0.2 by default; the paper's is 3e-4. With a train/inference correction, token "
        "weights multiply the sequence loss. The unbiased KL is weighted by the token's ratio (-p "
        "kl_weight=token-ratio). With --aggregate slime/token-mean, long responses have more "
        "weight.",
        paper="2507.18071",
    ),
    "slime/cispo": executed(GRPO, surrogate=use("cispo", epsilon_low=0.2, epsilon_high=0.2)).named(
        "slime's cispo",
        "eps_clip is 0.2 by default, so the weight is clamped to [0.8, 1.2]. slime warns and "
        "recommends 1.0 and 4.0, a window of [0, 5].",
        paper="2506.13585",
    ),
    "slime/reinforce_plus_plus_baseline": executed(
        GRPO, advantage=use("slime/reinforce_plus_plus_baseline"), kl=use("k1-in-reward", beta=0.0)
    ).named(
        "slime's reinforce_plus_plus_baseline",
        "Each token's reward has only its own KL; OpenRLHF sums the KL over the following tokens. "
        "Whitening divides by √(v + 1e-8), with ddof 1.",
        paper="2501.03262",
    ),
    "slime/tis": executed(GRPO, correction=use("token-truncate", is_low=0.0, is_high=2.0)).named(
        "slime's grpo with --use-tis",
        "The clipped loss of each token is multiplied by ρ = π_old/π_rollout, clamped to [0, 2].",
    ),
    "slime/icepop": executed(GRPO, correction=use("token-mask", is_low=0.0, is_high=2.0)).named(
        "slime's grpo with --use-tis and its icepop_function",
        "The bounds are tis_clip_low and tis_clip, 0 and 2 by default; these are not IcePop's "
        "defaults.",
        paper="2510.18855",
    ),
    "slime/opsm": executed(
        GRPO, correction=use("off-policy-mask-old", off_policy_mask_threshold=1e-4)
    ).named(
        "slime's grpo with --use-opsm",
        "Drops tokens with A < 0 in a response whose mean log π_old − log π_θ exceeds 1e-4. "
        "DeepSeek-V3.2 uses the policy that sampled instead of π_old.",
        paper="2512.02556",
    ),
}


FRAMEWORK = Framework(name="slime", rows=ROWS, read=read, accumulation="whole step")
