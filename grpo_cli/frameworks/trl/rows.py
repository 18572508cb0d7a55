"""TRL 1.16.0, with the defaults of its configs.

β is 0 in GRPOConfig, so a row asks for no reference until ``--beta`` is given; a KL is then
weighted by the ratio (``use_bias_correction_kl``, on since 1.10). ε_high is ε unless it is given.
A record is a micro-batch: ``--batch record``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grpo_cli.frameworks.framework import Change
from grpo_cli.objective.row import Row, Use, executed, use, words

_CLIP = use("clip", epsilon_low=0.2, epsilon_high=0.2)
_MASKS = "With use_vllm, --correction trl/sequence-mask (TRL's default mode) or another of trl/…"

_READS = words(
    "epsilon_low epsilon_high delta tau_pos tau_neg beta kl_weight vespo_k_pos "
    "vespo_lambda_pos vespo_k_neg vespo_lambda_neg off_policy_mask_threshold "
    "top_entropy_quantile max_completion_length gradient_accumulation_steps "
    "steps_per_generation num_items_in_batch num_processes"
)
"""What GRPOTrainer reads of GRPOConfig and its batch; its std_eps and ddof are constants."""

_GRPO = Row(
    title="TRL GRPOTrainer, loss_type grpo",
    paper="2402.03300",
    version="trl 1.16.0",
    checked="executed",
    advantage=use("group-std", std_ddof=1, std_eps=1e-4, std_min=0.0),
    ratio=use("token"),
    surrogate=_CLIP,
    kl=use("k3", beta=0.0, kl_weight="ratio"),
    correction=use("trl/masks"),
    aggregate=use("trl/grpo"),
    entropy=use("bonus", entropy_coef=0.0),
    entropy_aggregate=use("trl/bnpo"),
    reads=_READS,
    note="The mean is over one micro-batch and is divided by gradient_accumulation_steps. TRL "
    "before 1.10 did not weight the KL by default (trl/grpo@1.9.2). "
    + _MASKS
    + " multiplies the policy term.",
)

_BARE = {"correction": use("none"), "entropy": None, "entropy_aggregate": None}
"""Without GRPOTrainer's masks, vLLM's correction, and an entropy bonus."""
_PLAIN = executed(_GRPO, **_BARE)

ROWS = {
    "trl/grpo": _GRPO,
    "trl/bnpo": executed(_GRPO, aggregate=use("trl/bnpo")).named(
        "TRL GRPOTrainer, loss_type bnpo",
        "The mean is over the tokens of one micro-batch, so tokens of small micro-batches have "
        "more weight. The name has nothing to do with the Beta-normalisation paper (BNPO).",
        paper="",
    ),
    "trl/dr_grpo": executed(_GRPO, aggregate=use("trl/dr_grpo", max_completion_length=512)).named(
        "TRL GRPOTrainer, loss_type dr_grpo",
        "loss_type dr_grpo keeps the std of scale_rewards=group. For the paper's advantage "
        "(scale_rewards=none), use --advantage group-mean.",
        paper="2503.20783",
    ),
    "trl/dapo": executed(_GRPO, aggregate=use("trl/dapo")).named(
        "TRL GRPOTrainer, loss_type dapo (its default)",
        "ε_high equals ε by default; the paper's is 0.28. There is no overlong shaping and no "
        "dynamic sampling. If num_items_in_batch is not given, the tokens of the input are "
        "counted.",
        paper="2503.14476",
    ),
    "trl/cispo": executed(_GRPO, surrogate=use("trl/cispo"), aggregate=use("trl/dapo")).named(
        "TRL GRPOTrainer, loss_type cispo",
        "The cap on the ratio is ε_high itself, 0.2 by default, so every ratio above 0.2 is "
        "capped. For ScaleRL's 5, use -p epsilon_high=5. delta has no effect.",
        paper="2506.13585",
    ),
    "trl/sapo": executed(_GRPO, surrogate=use("sapo", tau_pos=1.0, tau_neg=1.05)).named(
        "TRL GRPOTrainer, loss_type sapo",
        "At ρ = 1 the value is 2A/τ, not A, but the gradient is A's. For A = 0, τ is the negative "
        "temperature, which changes nothing.",
        paper="2511.20347",
    ),
    "trl/vespo": executed(_GRPO, surrogate=use("trl/vespo"), aggregate=use("trl/dapo")).named(
        "TRL GRPOTrainer, loss_type vespo",
        "With use_vllm the mismatch is part of W: use --surrogate trl/vespo-token-truncate or "
        "trl/vespo-token-mask, and no --correction. TRL does not allow the sequence modes with "
        "vespo.",
        paper="2602.10693",
    ),
    "trl/luspo": executed(_GRPO, ratio=use("sequence"), aggregate=use("trl/luspo")).named(
        "TRL GRPOTrainer, loss_type luspo",
        "TRL's default importance_sampling_level is token, with a warning: use --ratio token.",
        paper="2602.05261",
    ),
    "trl/gspo": executed(_GRPO, ratio=use("sequence")).named(
        "TRL GRPOTrainer, loss_type grpo, importance_sampling_level sequence",
        "ε is 0.2 by default; the paper's is 3e-4 and 4e-4. The KL is per token and weighted by "
        "the sequence ratio.",
        paper="2507.18071",
    ),
    "trl/rloo": executed(
        _PLAIN,
        advantage=use("leave-one-out"),
        ratio=use("product"),
        surrogate=use("trl/rloo"),
        kl=use("k1-in-reward", beta=0.05),
        aggregate=use("response-mean"),
    ).named(
        "TRL RLOOTrainer",
        "A response has one ratio, the product over its tokens. The KL of the policy that sampled "
        "is part of the reward. TRL rounds r − βΣk before centring; this variant does not lose "
        "those digits. The Trainer then divides by gradient_accumulation_steps. For "
        "normalize_advantages, use --advantage trl/rloo-normalised. reward_clip_range is not "
        "covered.",
        paper="2402.14740",
    ),
    "trl/gmpo": executed(
        _PLAIN,
        surrogate=use("trl/gmpo"),
        kl=use("k3", beta=0.0, kl_weight="none"),
        reads=_READS - {"kl_weight"},
    ).named(
        "TRL GMPOTrainer (experimental)",
        "ε bounds the log ratio. The KL is never weighted by the ratio. delta, the off-policy "
        "mask and vLLM's correction have no effect.",
        paper="2507.20673",
    ),
    "trl/async_grpo": executed(
        _PLAIN,
        advantage=use("group-std", std_ddof=0, std_eps=1e-8, std_min=0.0),
        ratio=use("rollout"),
        kl=use("none"),
        aggregate=use("trl/async"),
        reads=(_READS | {"global_n_tokens"}) - {"delta"},
    ).named(
        "TRL AsyncGRPOTrainer (experimental)",
        "π_old is the engine's policy (log_probs_rollout). N counts the micro-batch's tokens over "
        "all processes, not the generation batch's. TRL gives advantage 0 to a response without "
        "any score; remove it from the group's rewards.",
    ),
}


def relative(row: str, title: str, note: str, **changes: Any) -> Row[Use]:
    """A row of another framework that is TRL's without what only TRL has, and with changes."""
    return executed(ROWS[row], **_BARE, **changes).named(title, note)


_WINDOW = ("trl/dapo", "trl/cispo", "trl/vespo")
_LOSSES = (
    *("trl/grpo", "trl/bnpo", "trl/dr_grpo", *_WINDOW),
    *("trl/sapo", "trl/luspo", "trl/gspo"),
)


def _since_1_10(what: str, rows: tuple[str, ...], stage: str = "") -> Change:
    return Change("1.10.0", what, rows, "1.9.2", stage)


CHANGES = (
    Change(
        since="1.9.1",
        what="dapo, cispo and vespo: num_items_in_batch counts one accumulation window (× "
        "gradient_accumulation_steps ÷ steps_per_generation). Before, it counted the whole "
        "generation batch, so steps were too small.",
        rows=_WINDOW,
        before="1.9.0",
    ),
    _since_1_10(
        "The KL is weighted by the ratio by default (use_bias_correction_kl).", _LOSSES, "kl"
    ),
    _since_1_10(
        "The entropy bonus of dapo, cispo and vespo is the mean over the micro-batch.",
        _WINDOW,
        "ent",
    ),
    _since_1_10("luspo masks before its mean, so padding is out of its KL.", ("trl/luspo",), "kl"),
    _since_1_10("max_completion_length is 512, not 256.", ("trl/dr_grpo",)),
)


def _unweighted(name: str) -> Row[Use]:
    """The row of 1.9.1 and 1.9.2."""
    row = ROWS[name]
    if name == "trl/dr_grpo":
        row = replace(row, aggregate=use("trl/dr_grpo", max_completion_length=256))
    return replace(
        row,
        version="trl 1.9.2",
        checked="executed",
        kl=use("k3", beta=0.0, kl_weight="none"),
        entropy_aggregate=None if name in _WINDOW else row.entropy_aggregate,
        note="As TRL 1.9.1 and 1.9.2 computed it. 1.8 and 1.9.0 did too, unless they have a "
        f"variant of their own. {_PADDED if name == 'trl/luspo' else row.note}",
    )


_PADDED = "Its mean of the KL included padding, which records do not have."


def _whole_batch(name: str) -> Row[Use]:
    """The row of 1.8 and 1.9.0."""
    return replace(
        _unweighted(name),
        version="trl 1.9.0",
        aggregate=use("trl/num-items"),
        note="In TRL 1.8 and 1.9.0, num_items_in_batch counts the whole generation batch, not "
        "only the part that an optimiser step uses.",
    )


EARLIER = {f"{name}@1.9.2": _unweighted(name) for name in _LOSSES} | {
    f"{name}@1.9.0": _whole_batch(name) for name in _WINDOW
}
