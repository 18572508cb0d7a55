"""SkyRL at commit a9564572.

The policy's denominators span the mini-batch and all ranks; KL and entropy of a micro-batch are
weighted by its responses: skyrl/backends/skyrl_train/workers/worker.py, _forward_backward_micro.
"""

from grpo_cli.frameworks.framework import Framework
from grpo_cli.frameworks.skyrl import advantage, correction, covariance, surrogate
from grpo_cli.frameworks.skyrl.rows import ROWS

FRAMEWORK = Framework(
    name="skyrl",
    rows=ROWS,
    choices={
        "advantage": advantage.CHOICES,
        "surrogate": {**surrogate.CHOICES, **covariance.CHOICES},
        "correction": correction.CHOICES,
    },
    aliases={
        "ratio": {"skyrl/sequence-token": "verl/sequence-token"},
        "advantage": advantage.ALIASES,
        "correction": correction.ALIASES,
        "aggregate": {
            "token_mean": "token-mean",
            "sequence_mean": "response-mean",
            "seq_mean_token_sum_norm": "token-sum-norm",
            "prompt_mean": "prompt-mean",
        },
    },
    accumulation="whole step",
    entropy_accumulation="by responses",
)
