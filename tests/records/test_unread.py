"""Which keys resemble a column, and which values have the shape of one."""

import json

import numpy as np
from files import each

from grpo_cli.commands.check.rules import responses
from grpo_cli.commands.page.block import PROMPTS
from grpo_cli.commands.trend.metadata import ENDINGS, VERSIONS
from grpo_cli.commands.trend.sums import EACH
from grpo_cli.records.choose.batches import STEP_FIELDS as STEPS
from grpo_cli.records.fields import read_fields
from grpo_cli.records.unread import (
    FUNCTION,
    READ_ELSEWHERE,
    Misnamed,
    Unread,
    is_column,
    look,
    misnamed_in,
    resembled,
)

OLD, REF, ROLLOUT, NEW = "log_probs_old", "log_probs_ref", "log_probs_rollout", "log_probs_new"


@each(
    ("column", "keys"),
    [
        (OLD, "old_lp logps_old oldLogProbs oldlogprobs prev_lps proximal_logprobs old_policy"),
        (OLD, "old_prob p_old pi_old old_policy_logps logp_old_step old"),
        (OLD, "orig_logprobs original_lp recomputed_logprobs logprobs_before anchor_logprobs"),
        (OLD, "snapshot_logprobs stale_logps lagged_logprobs olp actor_recomputed_lp snapshot"),
        (REF, "original_ref_logprobs base_lp_before ref_logprobs_hf"),
        (ROLLOUT, "sample_logprobs q_logprobs beta_logprobs mu_lp log_q pi_b log_pi_b q_lp_stale"),
        (NEW, "fsdp_logprobs megatron_lp mcore_logps hf_logprobs actor_logprobs"),
        (None, "original_rewards stale_steps beta_schedule sample_mask q_values reward_before"),
        (None, "target_logprobs target_lp_mean"),
        (REF, "ref_lp sft_logps logprobs_base reference_model refs_lp reference_log_prob"),
        (ROLLOUT, "vllm_logprobs vllmLogprobs sglang_lp behaviour_logps infer_lp sampled_logps mu"),
        (NEW, "current_logprobs new_lp trainer_lps logp_theta"),
        ("", "token_lp lps logprobs2 response_logp per_token_log_probs seq_logprobs"),
        (
            None,
            "old_values teacher_logprobs logprobs_entropy log_ratio threshold gold probs logits",
        ),
        (
            None,
            "rewards_old old_reward loss_weights attention_mask returns position_ids kl help 1 é",
        ),
        (None, "rollout_is_weights rollout_is generation_config top_p temperature policy prob new"),
    ],
)
def test_what_a_key_resembles_by_its_words(column, keys):
    for key in keys.split():
        assert resembled(key) == column, key


MODEL = [[-1.0, -2.0], [-3.0]]


@each(
    ("value", "model", "fits"),
    [
        ([[1, 0], [1]], MODEL, True),
        ([[True, False], [True]], MODEL, True),
        ([[None, 0.5], [1]], MODEL, True),
        ([[None, None], [1]], MODEL, False),
        ([[1, 0], [1, 1]], MODEL, False),
        ([[1, 0]], MODEL, False),
        ([1, 0], MODEL, False),
        ([["a", "b"], ["c"]], MODEL, False),
        ([[[1], [2]], [[3]]], MODEL, False),
        ("ab", MODEL, False),
        (None, MODEL, False),
        ({"a": 1}, MODEL, False),
        ([np.array([1.0, 2.0]), np.array([3])], MODEL, True),
        ([np.array(["a", "b"]), np.array([3])], MODEL, False),
        (np.ones((2, 3)), [np.ones(3), np.ones(3)], True),
        ([1.0, 2.0], [[-1.0, -2.0]], True),
        ([[1.0, 2.0]], [[-1.0, -2.0]], True),
        ([1.0], [[-1.0, -2.0]], False),
        ([1, 2], [-1.0, -2.0], True),
        ([1, 2, 3], [-1.0, -2.0], False),
        ([[1], [2]], [-1.0, -2.0], False),
        ([[], [1]], [[], [-1.0]], True),
        ([[[1], [2]], [[3]]], [[[-1.0], [-2.0]], [[-3.0]]], True),
        ([[[1], [2]]], [[[-1.0], [-2.0]], [[-3.0]]], False),
        ([[1]], None, False),
        ([[[[1]]]], [[[[-1.0]]]], False),
        (np.array(1.0), [-1.0], False),
    ],
)
def test_what_has_the_shape_of_a_column(value, model, fits):
    assert is_column(value, model) == fits


@each(
    ("given", "found"),
    [
        ({"old_lp": MODEL}, {OLD: "old_lp"}),
        ({"old_lp": "text"}, {}),
        ({"old_lp": None}, {}),
        ({"old_lp": [[-1.0, -2.0, -3.0], [-3.0]]}, {OLD: "old_lp"}),  # so that it is told at all
        ({"old_lp": -1.0}, {}),
        ({"old_lp": []}, {}),
        ({"old_lp_note": "text", "old_lp_kept": MODEL}, {OLD: "old_lp_kept"}),
        ({"old_lp_kept": [[-1.0]]}, {}),
        ({"token_lp": MODEL}, {OLD: "token_lp"}),
        ({"token_lp": [[-1.0]]}, {}),
        ({"token_lp": MODEL, "old_lp": MODEL}, {OLD: "old_lp"}),
        ({"new_lp": MODEL}, {OLD: "new_lp"}),
        ({"old": MODEL}, {OLD: "old"}),
        ({"old": [[1, 2], [3]]}, {}),
        ({"old": [[1.5, 2.0], [3.0]]}, {}),
        ({"sft_lp": MODEL, "vllm_lp": MODEL}, {REF: "sft_lp", ROLLOUT: "vllm_lp"}),
        ({"old_lp": MODEL, OLD: MODEL}, {}),
        ({"old_lp": MODEL, "probs_old": [[0.5, 0.5], [0.5]]}, {}),
        ({"sampled_token_ids": [[1, 2], [3]], "truncated": [[0, 1], [1]]}, {}),
    ],
)
def test_which_missing_column_a_record_may_have(given, found):
    record = {"logprobs": [[-1.0, -2.0], [-3.0]], **given}
    fields = read_fields(record)
    made = misnamed_in(record, fields.names, fields.misnamed)
    assert {column: one.key for column, one in made.items()} == found


def test_what_a_flag_put_in_its_place_is_read():
    """--map leaves the key where it is: the same object under two names."""
    record = {"logprobs": MODEL, "sft_lp": (ref := [[-1.0, -2.0], [-3.0]]), "token_lp": ref}
    record[REF] = ref
    fields = read_fields(record)
    assert misnamed_in(record, fields.names, fields.misnamed) == {}
    assert look(record, fields.names, ["sft_lp", "token_lp"], fields.misnamed, 1).keys == ()


@each(
    ("key", "value", "advice"),
    [
        ("old_lp", -0.5, "log_probs_old=old_lp reads it (on-policy: --map log_probs_old=logprobs)"),
        ("old_prob", 0.5, "probs_old=old_prob reads it (on-policy: --map log_probs_old=logprobs)"),
        ("old_lp", 0.5, "log_probs_old=old_lp reads it (on-policy: --map log_probs_old=logprobs)"),
        *[
            (key, -0.5, f"log_probs_old={key} reads it (on-policy: --map log_probs_old=logprobs)")
            for key in ("fsdp_lp", "megatron_lp", "mcore_lp", "hf_lp", "actor_lp", "recomputed_lp")
        ],
        ("now_lp", -0.5, "log_probs_new=now_lp --map log_probs_old=logprobs reads both"),
    ],
)
def test_what_reads_it(key, value, advice):
    record = {"logprobs": [[-1.0]], key: [[value]]}
    fields = read_fields(record)
    made = misnamed_in(record, fields.names, fields.misnamed)
    assert made == {OLD: Misnamed(key, f"--map {advice}")}


@each(
    ("given", "said"),
    [
        (
            {"vllm_lp": MODEL},
            "vllm_lp (--map log_probs_rollout=vllm_lp; --map log_probs_old=vllm_lp if your ratio "
            "is with these)",
        ),
        ({"vllm_lp": MODEL, OLD: MODEL}, "vllm_lp (--map log_probs_rollout=vllm_lp)"),
        ({"vllm_lp": MODEL, ROLLOUT: MODEL}, "vllm_lp"),
        (
            {"target_logprobs": MODEL},
            "target_logprobs (--map log_probs_old=target_logprobs if your ratio is with these)",
        ),
        ({"target_logprobs": MODEL, OLD: MODEL}, "target_logprobs"),
        ({"target_logprobs": [[-1.0, 0.5], [-3.0]]}, "target_logprobs"),
        ({"target_logprobs": [[-1, -2], [-3]]}, "target_logprobs"),
        ({"target_logprobs": [[-1.0], [-3.0]]}, ""),
        ({"teacher_logprobs": MODEL}, "teacher_logprobs"),
        ({"reward_model_logprobs": MODEL}, "reward_model_logprobs"),
        ({"critic_logprobs": MODEL, "values": MODEL}, "critic_logprobs"),
        *[
            (
                {key: [[1, 0], [1]]},
                f"{key} (a mask of what does not count? mask wants 1 where a token counts)",
            )
            for key in (
                *("pad_mask", "padding_mask", "ignoreMask", "env_mask", "tool_mask"),
                *("observation_mask", "prompt_mask", "user_mask", "pad_weights"),
            )
        ],
        ({"pad_mask": [[1, 0], [1]], "mask": [[1, 0], [1]]}, "pad_mask"),
        ({"pad_mask": [[1, 2], [1]]}, "pad_mask"),
        ({"returns": MODEL, "note": "x", "step": 3}, "returns"),
        ({"old_tokens": [[1, 2], [3]]}, "old_tokens"),
        ({"critic_v": MODEL}, "critic_v (--map values=critic_v)"),
        ({"gae_adv": MODEL}, "gae_adv (--map advantages=gae_adv)"),
        ({"gae_adv": MODEL, "advantages": [1, 2]}, "gae_adv"),
        ({"loss_weights": [[1, 0], [1]]}, "loss_weights (--map mask=loss_weights)"),
        ({"loss_weights": [[1, 0.5], [1]]}, "loss_weights"),
        ({"token_level_scores": MODEL}, "token_level_scores (--map rewards=token_level_scores)"),
        ({"token_level_scores": MODEL, "rewards": [1, 0]}, "token_level_scores"),
        (
            {"attention_mask": [[1, 1], [1]]},
            "attention_mask (covers the prompt too, so it is not read as the mask; --map "
            "mask=attention_mask reads it if these are the response's tokens)",
        ),
        (
            {"attention_mask": [[1, 1, 1], [1, 1, 0]]},
            "attention_mask (covers the prompt too, so it is not read as the mask)",
        ),
        ({"attention_mask": [[1, 1], [1]], "response_mask": [[1, 1], [1]]}, ""),
        ({f"k{at}": MODEL for at in range(10)}, "k0, k1, k2, k3, k4, k5, k6, k7, and 2 more"),
    ],
)
def test_the_note(given, said):
    record = {"logprobs": MODEL} | json.loads(json.dumps(given))
    fields, unread = read_fields(record), Unread()
    unread.add(tuple(record), look(record, fields.names, fields.unknown[:], fields.misnamed, 1))
    said = [f"ignored keys that look like columns: {said}"] if said else []
    assert [*unread.note()] == [one for one in said if "step" not in one]


def test_keys_that_other_parts_read_are_known_here():
    """They would be named as ignored otherwise."""
    of_check = {*responses._PROMPT_KEYS, *responses._SAMPLED_KEYS}
    keys = {*STEPS, *ENDINGS, *VERSIONS, *PROMPTS, *of_check}
    assert keys <= READ_ELSEWHERE
    assert FUNCTION == EACH
