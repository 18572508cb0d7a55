"""A framework's row takes what the framework's released function reads, and nothing else.

``SETTINGS`` says which of a framework's settings its losses read, by its own names, and where that
was read. tests/parity/test_reads.py executes verl for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from files import each, some
from rows import EARLIER, HYPERPARAMETERS, VARIANTS, HyperparameterError, plan

from grpo_cli import UsageError, evaluate

RECORD = {
    "log_probs_new": [[-0.5, -1.0], [-0.25, -3.0]],
    "log_probs_old": [[-2.5, -1.5], [-2.0, -3.25]],
    "advantages": [-1.0, 1.0],
}

_CLIP = ("epsilon_low", "epsilon_high")
_VERL = (
    "clip_ratio_low clip_ratio_high clip_ratio_c tau_pos tau_neg dro_beta clip_cov_ratio "
    "clip_cov_lb clip_cov_ub clip_cov_seed kl_cov_ratio ppo_kl_coef kl_loss_coef dp_size "
    "batch_num_tokens global_batch_size loss_scale_factor response_length rollout_is "
    "rollout_is_threshold rollout_is_batch_normalize rollout_rs rollout_rs_threshold"
)
SETTINGS: Mapping[str, tuple[str, str]] = {
    # framework: (where, settings); one that our tables know by no other name has ours
    "liger": (
        "src/liger_kernel/chunked_loss/grpo_loss.py, LigerFusedLinearGRPOLoss @0.8.5, whose "
        "use_bias_correction_kl weighs the KL by the ratio; the padded width of luspo's mean; the "
        "Trainer divides by its accumulation",
        "epsilon_low epsilon_high delta beta kl_weight response_length gradient_accumulation_steps",
    ),
    "unsloth": (
        "unsloth_zoo/rl_replacements.py, grpo_compute_loss",
        "epsilon_low epsilon_high delta sapo_temperature_pos sapo_temperature_neg beta kl_weight "
        "max_completion_length gradient_accumulation_steps num_items_in_batch num_processes "
        "steps_per_generation",
    ),
    "ms-swift": (
        "swift/rlhf_trainers/grpo_trainer.py, _compute_loss_and_metrics; the Trainer",
        "epsilon_low epsilon_high delta tau_pos tau_neg beta real_tau fipo_decay_rate "
        "fipo_clip_low fipo_clip_high fipo_safety_threshold off_policy_sequence_mask_delta "
        "top_entropy_quantile max_completion_length gradient_accumulation_steps "
        "num_items_in_batch num_processes",
    ),
    "verl": (
        "verl/trainer/ppo/core_algos.py:1140-2549, workers/utils/losses.py 0.9.1, executed",
        _VERL,
    ),
    "rllm": (
        "rllm/trainer/verl/verl_backend.py @9beb6e0: verl's ppo_loss",
        _VERL,
    ),
    "agent-lightning": (
        "agentlightning/verl/per_rollout_loss.py @c632d8d, trainer.py: verl's configuration",
        _VERL,
    ),
    "skyrl": (
        "skyrl/backends/skyrl_train/utils/ppo_utils.py:557-1050 @a9564572",
        "eps_clip_low eps_clip_high clip_ratio_c tau_pos tau_neg divergence_low divergence_high "
        "clip_cov_ratio clip_cov_lb clip_cov_ub clip_cov_seed kl_cov_frac ppo_kl_coef kl_loss_coef",
    ),
    "roll": (
        "roll/pipeline/rlvr/actor_worker.py:71-87, actor_pg_worker.py; agg_loss of "
        "roll/utils/functionals.py:229, roll/pipeline/agentic/utils.py @8eb27cc2",
        "epsilon_low epsilon_high dual_clip dro_beta kl_loss_coef global_batch_size dp_size gamma "
        "is_weight_type is_high filter_agg ratio_low ratio_high diff_low diff_high",
    ),
    "openrlhf": (
        "openrlhf/models/loss.py, PolicyLoss @0.11.2; trainer/ppo_utils/experience_maker.py",
        "eps_clip_low eps_clip_high dual_clip beta reward_clip is_low is_high rejection_threshold",
    ),
    "slime": (
        "slime/backends/megatron_utils/loss.py:890-1130 @624b824",
        "eps_clip_low eps_clip_high eps_clip_c kl_loss_coef kl_weight tis_clip_low tis_clip "
        "opsm_delta",
    ),
    "nemo-rl": (
        "nemo_rl/algorithms/loss/loss_functions.py, ClippedPGLossConfig @7ea279a; "
        "algorithms/grpo.py:2302",
        "ratio_clip_min ratio_clip_max ratio_clip_c reference_policy_kl_penalty "
        "kl_input_clamp_value kl_output_clamp_value truncated_importance_sampling_ratio_min "
        "truncated_importance_sampling_ratio advantage_clip_low advantage_clip_high",
    ),
    "areal": (
        "areal/utils/functional/functional.py:434-640, areal/api/cli_args.py @cbff54d",
        "eps_clip_low eps_clip_higher c_clip sapo_tau_pos sapo_tau_neg kl_ctl reward_bias "
        "reward_scaling reward_clip std_eps is_low is_high m2_threshold rejection_metric "
        "rejection_level rejection_agg rejection_action",
    ),
    "prime-rl": (
        "src/prime_rl/trainer/rl/loss.py:109-243 @559b447; IcePopLoss's ratio_low and ratio_high "
        "@349283d, which are is_low and is_high here",
        "dppo_mask_low dppo_mask_high ipo_threshold kl_tau is_low is_high",
    ),
    "open-instruct": (
        "open_instruct/grpo_utils.py:410-525 @e6c3044",
        "clip_lower clip_higher beta rho_clamp_lower_bound rho_clamp_upper_bound "
        "rho_mask_lower_bound rho_mask_upper_bound",
    ),
    "tinker": (
        "docs/losses.mdx @a2b1b82: clip_low_threshold, clip_high_threshold, beta",
        "epsilon_low epsilon_high dro_beta",
    ),
}
IGNORED: Mapping[str, tuple[str, ...]] = {
    **{  # use_bias_correction_kl came with 2026.9.3
        row: ("kl_weight",) for row in EARLIER if row.endswith("@2026.9.1")
    },
    "verl/gspo": ("dual_clip",),  # core_algos.py:1546 has none
    "verl/gspo@0.9.0": ("dual_clip",),
    "skyrl/regular": ("dual_clip",),  # ppo_utils.py:573 reads it for dual_clip alone
    **dict.fromkeys(("skyrl/gspo", "skyrl/step_wise"), ("dual_clip",)),
    "skyrl/cispo": _CLIP,  # :783 has bounds of its own, cispo.cispo_eps_clip_low and _high
    "roll/ppo": ("dual_clip",),  # dual_clip_loss is off
    "roll/gspo": ("dual_clip",),
    **dict.fromkeys((f"roll/{kind}_reinforce" for kind in ("agentic", "step")), ("dual_clip",)),
    "roll/gigpo": ("dual_clip",),
    "roll/segment": ("dual_clip",),
    # calculate_kl takes its defaults there, 20 and 10, whatever the configuration says
    "nemo-rl/reinforce_plus_plus": ("kl_input_clamp", "kl_output_clamp"),
    "open-instruct/cispo": ("epsilon_low",),  # grpo_utils.py:521 has no lower bound
    "prime-rl/ref_kl": ("divergence_low", "beta"),  # loss.py:199 has constants
}
OURS = {"reward_weights", "entropy_coef"}
"""What several rewards count is the data's; the entropy bonus is a term of its own."""
NEEDED = {"openrlhf/flash_reinforce": {"rejection_threshold": 0.125}}


def test_every_framework_says_what_its_losses_read() -> None:
    """TRL's are executed for it: tests/parity/test_reads.py."""
    frameworks = {name.partition("/")[0] for name in VARIANTS if "/" in name}
    assert frameworks == {*SETTINGS, "trl"}


def rows() -> Iterator[str]:
    """Every row of these frameworks."""
    for name in [*VARIANTS, *EARLIER]:
        if name.partition("/")[0] in SETTINGS:
            yield name


def other_values(name: str) -> Iterator[Any]:
    """Values of a hyperparameter that few rows have."""
    known = HYPERPARAMETERS[name]
    for value in (*known.words, 1, 0.375, 1.375, 7, 3):
        try:
            yield known.check(name, value)
        except HyperparameterError:
            continue


def parts(row: str, given: Mapping[str, Any]) -> Any:
    """The pieces of the signature of what a record with these settings evaluates to."""
    return plan(row).objective(dict(given), advantages_given=False).parts


def follows(row: str, name: str) -> bool:
    """Whether any value of a hyperparameter in a record changes what a row evaluates."""
    base = NEEDED.get(row, {})
    plain = parts(row, base)
    return any(parts(row, base | {name: value}) != plain for value in other_values(name))


@each("row", some(list(rows()), 6))
def test_a_row_follows_the_settings_that_its_function_reads_and_no_other(row: str) -> None:
    read = set(_names(row))
    ignored = set(IGNORED.get(row, ()))
    made = plan(row)
    stages = {name for *_, name in made._wanted()}
    followed = {name for name in HYPERPARAMETERS if name not in OURS and follows(row, name)}
    assert followed == (stages & read) - ignored
    assert made.takes() - OURS == followed


def _names(row: str) -> list[str]:
    names = SETTINGS[row.partition("/")[0]][1].split()
    known = {alias: name for name, one in HYPERPARAMETERS.items() for alias in one.aliases}
    assert set(names) <= {*known, *HYPERPARAMETERS}
    return [known.get(name, name) for name in names]


def test_every_exception_is_of_a_row() -> None:
    assert set(IGNORED) | set(NEEDED) <= set(rows())
    assert len(list(rows())) > 100


def test_a_record_s_setting_that_the_released_function_ignores_changes_nothing() -> None:
    """verl's gspo has no dual clip, whatever clip_ratio_c its configuration has."""
    plain = evaluate(RECORD, "verl/gspo")
    for name in ("clip_ratio_c", "dual_clip"):
        given = evaluate(RECORD | {"hyperparameters": {name: 1.5}}, "verl/gspo")
        assert (given.loss, given.signature) == (plain.loss, plain.signature)
    swapped = evaluate(
        RECORD | {"hyperparameters": {"clip_ratio_c": 1.5}},
        "verl/gspo",
        stages={"surrogate": "clip"},
    )
    assert swapped.loss != plain.loss


def test_clip_ratio_of_verl_stands_in_for_a_side_that_is_null() -> None:
    """verl's clip_ratio_low and clip_ratio_high are 0.2 unless they are set, null included."""

    def signature(framework: str, **settings: Any) -> str:
        record = RECORD | {"framework": {"name": framework}, "hyperparameters": settings}
        return str(evaluate(record, "verl/gspo").signature)

    assert "clip[low=0.2,high=0.2]" in signature("verl", clip_ratio=0.5)
    assert "clip[low=0.5,high=0.25]" in signature(
        "verl", clip_ratio=0.5, clip_ratio_low=None, clip_ratio_high=0.25
    )
    assert "clip[low=0.5,high=0.5]" in signature("mine", clip_ratio=0.5)


def test_a_flag_that_the_released_function_ignores_is_a_usage_error() -> None:
    said = (
        "dual_clip: verl/gspo ignores it, like verl's own function; "
        "add --surrogate clip to apply it"
    )
    with pytest.raises(UsageError) as raised:
        plan("verl/gspo", hyperparameters={"clip_ratio_c": 1.5})
    assert str(raised.value) == said
    assert plan("verl/gspo", stages={"surrogate": "clip"}, hyperparameters={"dual_clip": 1.5}).flags
    assert plan("verl/gspo").takes() >= {"epsilon_low", "epsilon_high", "beta", "entropy_coef"}
    assert not plan("verl/gspo").takes() & {"dual_clip", "delta", "log_ratio_max"}
