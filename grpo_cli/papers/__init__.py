"""Rows of the table of variants, as papers write them, and what of papers cannot be a row."""

from grpo_cli.papers import advantage, basics, surrogate

ROWS = {**basics.ROWS, **surrogate.ROWS, **advantage.ROWS}


UNSERVED = {
    "gfpo-adaptive": "adaptive GFPO decides from earlier prompts how many responses of a "
    "prompt it keeps, and records do not have those prompts; gfpo keeps the "
    "same number for every prompt",
    "echo": "ECHO (prime-rl's echo) adds cross-entropy on tool tokens, which are masked, and "
    "records are read without masked tokens; the rest is prime-rl/grpo",
    "gkd": "GKD compares whole distributions, and records have only the log-probs of the "
    "sampled tokens; prime-rl/ref_kl, slime/opd and nemo-rl/opd distil from those",
    "stable_reinforce": "the formula of Tinker's stable_reinforce is not published; "
    "tinker/importance_sampling is the earlier default of the cookbook",
    "chord": (
        "CHORD adds a loss on SFT data, which records do not have; the rest is ms-swift/grpo"
    ),
}
"""Name → what is missing."""
