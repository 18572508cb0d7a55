"""Rows of the table of variants, as papers write them, and what of papers cannot be a row."""

from grpo_cli.papers import advantage, basics, surrogate

ROWS = {**basics.ROWS, **surrogate.ROWS, **advantage.ROWS}


UNSERVED = {
    "gfpo-adaptive": "adaptive GFPO keeps a number of responses for each prompt that depends on "
    "the prompts before it, which no column holds; gfpo keeps the same of each",
    "echo": "ECHO, as prime-rl's echo, adds alpha times the mean of -log π_θ over the tokens of "
    "tools, which are masked and so in no column once the records are read; the rest, with its own "
    "denominator, is prime-rl/grpo",
    "gkd": "GKD's divergence is between whole distributions, and a record has the log-probs of "
    "the tokens taken alone; prime-rl/ref_kl, slime/opd and nemo-rl/opd distil from those",
    "stable_reinforce": "the formula of Tinker's stable_reinforce is not published: its servers "
    "compute it from what the sampler recorded, for which a record has no column either; "
    "tinker/importance_sampling is the cookbook's default before it",
    "chord": "CHORD mixes in a loss on SFT data, which no record has; the rest is ms-swift/grpo",
}
"""Name → what is missing."""
