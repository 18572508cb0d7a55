"""Dumps that hold texts and rewards but no log-probs: what they are is all that can be said."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_cli.errors import InputError
from grpo_cli.records.fields import ACTION, ALIASES
from grpo_cli.records.formats.format import Format, Object, Translated, keys

_LOG_PROBS = {*ALIASES["log_probs_new"], *ALIASES["ratios"], "log_probs_new", "ratios", ACTION}


def _text(name: str, title: str, has: str, source: str, *wanted: str) -> Format:
    def read(value: Object) -> Iterator[Translated]:
        del value
        raise InputError(
            f"this is {title}, which holds {has} but no log-probs: nothing can be evaluated; "
            "have the trainer write log-probs as well"
        )
        yield

    return Format(
        name=name,
        title=title,
        keys=(keys(*wanted),),
        fits=lambda value: not _LOG_PROBS & value.keys(),
        read=read,
        lacks=("no log-probs: nothing can be evaluated",),
        source=source,
    )


TEXTS = (
    _text(
        "verl",
        "verl's rollout_data_dir/{step}.jsonl",
        "texts and scores",
        "verl ray_trainer.py:454-546",
        *("input", "output", "gts", "score"),
    ),
    _text(
        "trl-completions",
        "TRL's completions_{step}.parquet",
        "texts, rewards and advantages",
        "TRL 1.16.0 grpo_trainer.py, log_completions",
        *("step", "prompt", "completion", "advantage"),
    ),
    _text(
        "areal",
        "AReaL's {version}/{task_id}.jsonl",
        "texts and rewards",
        "AReaL workflow_executor.py:818-921",
        *("task_id", "sample_idx", "seqlen", "prompt_len", "completion"),
    ),
    _text(
        "tinker",
        "Tinker's *_rollout_summaries.jsonl",
        "rewards and lengths",
        "tinker-cookbook rl/rollout_logging.py:72-146",
        *("group_idx", "traj_idx", "total_reward"),
    ),
    _text(
        "nemo-rl-texts",
        "NeMo-RL's train_data_step{N}.jsonl without log-probs",
        "texts and rewards",
        "NeMo-RL nemo_rl/utils/logger.py:1071-1096",
        *("content", "input_lengths", "idx"),
    ),
)
