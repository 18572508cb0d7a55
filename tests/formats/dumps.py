"""Small files shaped as frameworks write them, made by code; each states where its fields are from.

All of them hold the same two groups of two responses, so that what is read can be compared with
one record under canonical names.
"""

from __future__ import annotations

import json
from typing import Any

Object = dict[str, Any]

NEW = [[-0.5, -1.25], [-0.75, -0.125, -2.0], [-0.25], [-1.5, -0.5]]
OLD = [[-0.625, -1.0], [-0.75, -0.25, -1.75], [-0.5], [-1.25, -0.625]]
REF = [[-0.5, -1.0], [-1.0, -0.25, -2.5], [-0.125], [-1.25, -0.75]]
REWARDS = [1.0, 0.0, 0.5, 0.25]
ADVANTAGES = [0.5, -0.5, 1.0, -1.0]
IDS = [[11, 12], [11, 13, 14], [15], [16, 17]]
WORDS = [["a", "b"], ["a", "c", "d"], ["e"], ["f", "g"]]
PROMPTS = [[1, 2], [1, 2], [3], [3]]
GROUPS = [0, 0, 1, 1]


def lines(objects: list[Object]) -> bytes:
    """JSONL as Python's json writes it, NaN included."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


def nemo_rl(width: int = 7) -> list[Object]:
    """NeMo-RL, nemo_rl/algorithms/grpo.py:3629-3654 and nemo_rl/utils/logger.py:1071-1096.

    ``log_batched_dict_as_jsonl`` writes microbatches of 1, so every value is a list of one, with
    ``idx`` beside them. Sequences hold the prompt and are padded; index t is token t's log-prob,
    and the loss takes [1:].
    """
    return [_nemo_row(at, width) for at in range(4)]


def _nemo_row(at: int, width: int) -> Object:
    prompt, ids = PROMPTS[at], IDS[at]
    pad = width - len(prompt) - len(ids)

    def full(row: list[float], dummy: float = 0.0) -> list[list[float]]:
        return [[dummy] * len(prompt) + row + [dummy] * pad]

    return {
        "content": ["text"],
        "rewards": [REWARDS[at]],
        "input_lengths": [len(prompt) + len(ids)],
        "token_ids": [prompt + ids + [0] * pad],
        "token_loss_mask": [[0] * len(prompt) + [1] * len(ids) + [0] * pad],
        "sample_loss_mask": [1.0],
        "advantages": [[ADVANTAGES[at]] * width],
        "generation_logprobs": full(OLD[at]),
        "prev_logprobs": full(NEW[at]),
        "idx": at,
    }


def prime_rl() -> list[Object]:
    """prime-rl 004274e, src/prime_rl/trainer/rl/token_export.py:60-80 and 137-166; no NaN."""
    return [_prime_row(at) for at in range(4)]


def _prime_row(at: int) -> Object:
    prompt, ids = PROMPTS[at], IDS[at]
    size, before = len(prompt) + len(ids), [0.0] * len(prompt)
    ratio = [n - o for n, o in zip(NEW[at], OLD[at], strict=True)]
    return {
        "schema_version": 1,
        "step": 7,
        "export_step": 7,
        "rank": 0,
        "micro_step": 0,
        "micro_sequence_idx": at,
        "export_sequence_idx": at,
        "run_id": None,
        "env_name": "math",
        "token_ids": prompt + ids,
        "position_ids": [*range(size)],
        "loss_mask": [False] * len(prompt) + [True] * len(ids),
        "advantages": before + [ADVANTAGES[at]] * len(ids),
        "losses": [{}] * size,
        "rewards": [None] * len(prompt) + [REWARDS[at]] * len(ids),
        "inference_logprobs": before + OLD[at],
        "trainer_logprobs": before + NEW[at],
        "entropy": before + [0.5] * len(ids),
        "mismatch_kl": [None] * size,
        "log_importance_ratio": before + ratio,
        "importance_ratio": before + ratio,
        "prob_delta": [None] * size,
        "is_masked": [None] * size,
        "is_masked_high": [None] * size,
        "is_masked_low": [None] * size,
    }


def open_instruct() -> list[Object]:
    """open-instruct 00feb3a, open_instruct/rl_utils.py:30-45 (RolloutRecord) and 84-128."""
    return [
        {
            "step": 3,
            "sample_idx": at,
            "prompt_idx": GROUPS[at],
            "prompt_tokens": PROMPTS[at],
            "response_tokens": IDS[at],
            "reward": REWARDS[at],
            "advantage": ADVANTAGES[at],
            "finish_reason": "stop",
            "dataset": "gsm8k",
            "ground_truth": [float("nan")],
            "request_info": None,
            "logprobs": NEW[at],
        }
        for at in range(4)
    ]


def roll_board() -> list[Object]:
    """ROLL, save_logging_board_dir: the fields of res_dict where old_log_probs2_entropy is put.

    Rows are cut at the first token of the response and keep the padding on their right.
    """
    return [
        {
            "log_probs2": [*NEW[at], 0.0],
            "logprobs": [*OLD[at], 0.0],
            "ref_logprobs": [*REF[at], 0.0],
            "old_log_probs2_entropy": [0.5] * len(NEW[at]) + [0.0],
            "new_response_mask": [1] * len(NEW[at]) + [0],
            "prompt": str(PROMPTS[at]),
            "response": "".join(WORDS[at]),
            "values": [0.0, REWARDS[at]],
            "token_rewards": [0.0, REWARDS[at]],
            "reward": REWARDS[at],
            "step": 5,
            "response_tokens": len(NEW[at]),
        }
        for at in range(4)
    ]


def ms_swift() -> Object:
    """ms-swift completions.jsonl: one object per log event, a list per field (its GRPO trainer)."""
    return {
        "step": ["7"] * 4,
        "prompt": [str(one) for one in PROMPTS],
        "completion": ["".join(one) for one in WORDS],
        "accuracy_reward": REWARDS,
        "format_reward": [1.0, 1.0, 0.0, 1.0],
        "advantages": ADVANTAGES,
    }


def roll_columns() -> Object:
    """ROLL rollout_dump_data.step_N.jsonl: one line of columns."""
    return {
        "global_step": [5] * 4,
        "prompt": [str(one) for one in PROMPTS],
        "responses": ["".join(one) for one in WORDS],
        "scores": REWARDS,
    }


def unipo() -> Object:
    """poloclub/unipo a9c9acf, docs/canonical_schema.json."""
    return {
        "header": {
            "task": "math",
            "algorithm": "grpo",
            "totalSteps": 1,
            "hparams": {"gamma": 1.0, "clip_eps": 0.3, "learning_rate": 1e-6},
        },
        "entries": [
            {
                "step": 4,
                "is_first_step_after_rollout_phase": False,
                "metrics": {"policy_objective": 0.1, "reward": 0.4},
                "prompts": [
                    {"prompt": "p", "responses": [_unipo_response(at) for at in pair]}
                    for pair in ((0, 1), (2, 3))
                ],
            }
        ],
    }


def _unipo_response(at: int) -> Object:
    return {
        "id": f"step4_{at}",
        "reward": REWARDS[at],
        "advantage": ADVANTAGES[at],
        "response_text": "".join(WORDS[at]),
        "response_length": len(NEW[at]),
        "tokens": {
            "ids": IDS[at],
            "strings": WORDS[at],
            "log_probs": NEW[at],
            "old_log_probs": OLD[at],
            "ref_log_probs": REF[at],
            "token_kl": [0.0] * len(NEW[at]),
            "token_objective": [0.0] * len(NEW[at]),
        },
    }


def unipo_lines() -> list[Object]:
    """poloclub/unipo 22fe4fe, scripts/build_data.py:8 and load_jsonl."""
    whole = unipo()
    steps = [{"type": "step", **entry} for entry in whole["entries"]]
    return [{"type": "header", **whole["header"]}, *steps]


def atif() -> Object:
    """ATIF v1.4 (laude-institute/harbor docs/rfcs/0001-trajectory-format.md, MetricsSchema):

    two turns of an agent with a tool between them, and one that no model was asked for.
    """
    turns = [
        {
            "step_id": at + 2,
            "source": "agent",
            "message": "".join(WORDS[at]),
            "metrics": {
                "prompt_tokens": 7,
                "completion_tokens": len(NEW[at]),
                "completion_token_ids": IDS[at],
                "logprobs": NEW[at],
            },
        }
        for at in (0, 1)
    ]
    turns.append({"step_id": 4, "source": "agent", "message": "handed on"})
    return {
        "schema_version": "ATIF-v1.4",
        "session_id": "025B810F",
        "agent": {"name": "harbor-agent", "version": "1.0.0"},
        "steps": [{"step_id": 1, "source": "user", "message": "p"}, *turns],
        "final_metrics": {"total_steps": 4, "extra": {"reward": 1.0}},
    }


def chat(numbers: list[list[Any]] = NEW[:2], words: list[list[str]] = WORDS[:2]) -> Object:
    """The chat completion object of OpenAI's API reference; token_ids as vLLM adds them."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": at,
                "message": {"role": "assistant", "content": "".join(row)},
                "finish_reason": "stop",
                "token_ids": IDS[at],
                "logprobs": {
                    "content": [
                        {"token": w, "logprob": n, "bytes": list(w.encode()), "top_logprobs": []}
                        for w, n in zip(row, numbers[at], strict=True)
                    ],
                    "refusal": None,
                },
            }
            for at, row in enumerate(words)
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7},
    }


def completion() -> Object:
    """The completion object of OpenAI's API reference, with echo: the prompt's 2 tokens are in."""
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "choices": [
            {
                "index": at,
                "text": "".join(WORDS[at]),
                "finish_reason": "stop",
                "logprobs": {
                    "tokens": ["p", "q", *WORDS[at]],
                    "token_logprobs": [None, -3.0, *NEW[at]],
                    "top_logprobs": None,
                    "text_offset": [*range(2 + len(WORDS[at]))],
                },
            }
            for at in (0, 1)
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7},
    }


def sglang() -> list[Object]:
    """SGLang's /generate with return_logprob: meta_info.output_token_logprobs, text null."""
    return [
        {
            "text": "".join(WORDS[at]),
            "meta_info": {
                "id": f"r{at}",
                "finish_reason": {"type": "stop"},
                "prompt_tokens": 2,
                "output_token_logprobs": [
                    [number, token, None] for number, token in zip(NEW[at], IDS[at], strict=True)
                ],
            },
        }
        for at in range(4)
    ]


def texts() -> dict[str, Object]:
    """Dumps without log-probs: verl ray_trainer.py:454-546; TRL 1.16.0 log_completions; AReaL
    workflow_executor.py:818-921; tinker-cookbook rl/rollout_logging.py:72-146; NeMo-RL logger.py.
    """
    return {
        "verl": {"input": "p", "output": "r", "gts": "1", "score": 1.0, "step": 3},
        "trl-completions": {"step": 1, "prompt": "p", "completion": "c", "advantage": 0.5},
        "areal": {
            "task_id": 1,
            "sample_idx": 0,
            "seqlen": 9,
            "prompt_len": 4,
            "reward": 1.0,
            "prompt": "p",
            "completion": "c",
        },
        "tinker": {"group_idx": 0, "traj_idx": 1, "total_reward": 1.0, "steps": []},
        "nemo-rl-texts": {"content": ["t"], "rewards": [1.0], "input_lengths": [4], "idx": 0},
    }


def verifiers() -> list[Object]:
    """verifiers v1, Episode.to_record (verifiers/v1/episode.py:149, graph.py:66-115, trace.py):

    what prime-rl appends to rollouts/step_{N}/train/effective/traces.jsonl. ``mask`` marks the
    sampled tokens, and logprobs, advantages and reference_logprobs have one number for each.
    """
    return [_episode(at) for at in range(4)]


def _episode(at: int) -> Object:
    prompt: Object = {
        "message": {"role": "user", "content": "p"},
        "sampled": False,
        "token_ids": PROMPTS[at],
        "mask": [False] * len(PROMPTS[at]),
        "is_content": [],
        "logprobs": [],
    }
    answer: Object = {
        "parent": 0,
        "message": {"role": "assistant", "content": "r"},
        "sampled": True,
        "token_ids": [99, *IDS[at]],  # the generation prompt, and what was sampled
        "mask": [False] + [True] * len(IDS[at]),
        "logprobs": NEW[at],
        "advantages": [ADVANTAGES[at]] * len(IDS[at]),
        "reference_logprobs": REF[at],
    }
    rewards = {"right": {"score": REWARDS[at] * 2, "weight": 0.5}, "judge": None}
    return {
        "id": f"episode-{at}",
        "task": {"name": "t"},
        "env": {"id": "e"},
        "group": {"id": f"g{GROUPS[at]}"},
        "run": {"type": "train", "id": "r", "work": {"type": "train", "step": 12}},
        "ok": True,
        "traces": [
            {
                "id": f"trace-{at}",
                "task": {"name": "t"},
                "agent": {"name": "a"},
                "nodes": [prompt, answer],
                "rewards": rewards,
            }
        ],
    }


def miles() -> list[Object]:
    """miles 31f1ca9, miles/ray/rollout/debug_data.py:36-72: a row of its Parquet mirror."""
    return [
        {
            "sample_index": at,
            "response_length": len(IDS[at]),
            "total_length": len(PROMPTS[at]) + len(IDS[at]),
            "tokens": PROMPTS[at] + IDS[at],
            "loss_mask": [1] * len(IDS[at]),
            "rollout_log_probs": NEW[at],
        }
        for at in range(4)
    ]


def verl_batch() -> list[Object]:
    """A row of a DataProto's tensors as lists, under verl 0.9.1's names (ray_trainer.py)."""
    return [
        {
            "uid": "g",
            "responses": IDS[at],
            "response_mask": [1] * len(IDS[at]),
            "old_log_probs": NEW[at],
            "token_level_scores": [*[0.0] * (len(IDS[at]) - 1), float(at)],
        }
        for at in range(4)
    ]


def rllm() -> Object:
    """An episode of two trajectories, as rLLM's Episode.to_dict() writes it."""
    step = {"prompt_ids": [1, 2], "response_ids": [5, 6], "logprobs": [-0.5, -1.25], "reward": 0.5}
    return {
        "id": "t:0",
        "task": {"question": "q"},
        "is_correct": True,
        "trajectories": [
            {"uid": f"u{at}", "name": "solver", "reward": float(at), "steps": [step] * (at + 1)}
            for at in range(2)
        ],
    }
