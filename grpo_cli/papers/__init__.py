"""Rows of the table of variants, as papers write them, and what of papers cannot be a row."""

from grpo_cli.papers import advantage, basics, surrogate

ROWS = {**basics.ROWS, **surrogate.ROWS, **advantage.ROWS}


UNSERVED = {
    "gigpo": "GiGPO's second advantage compares turns that began in the same state, and a record "
    "has no column for a turn's anchor state; the first one, over episodes, is --advantage "
    "trajectory-group-mean, its returns are turn-returns, and its mean over turns turn-mean",
    "gfpo-adaptive": "adaptive GFPO keeps a number of responses for each prompt that depends on "
    "the prompts before it, which no column holds; gfpo keeps the same of each",
    "rae": "RAE's baseline is a running mean of an agent's rewards over all traces before, which "
    "no column holds; --advantage remax takes it off where records have it as reward_baselines",
    "echo": "ECHO, as prime-rl's echo, adds cross-entropy on the tokens of tools, which are masked "
    "and so removed when the records are read; the rest is prime-rl/grpo",
    "hierarchical_grpo": "prime-rl's hierarchical_grpo is prime-rl/grpo in groups of one role, and "
    "of one episode too for the roles of episode_agents: --group-by the key that says so",
    "gkd": "GKD's divergence is between whole distributions, and a record has the log-probs of "
    "the tokens taken alone; prime-rl/ref_kl, slime/opd and nemo-rl/opd distil from those",
    "stable_reinforce": "the formula of Tinker's stable_reinforce is not published: its servers "
    "compute it from what the sampler recorded, for which a record has no column either; "
    "tinker/importance_sampling is the cookbook's default before it",
    "chord": "CHORD mixes in a loss on SFT data, which no record has; the rest is ms-swift/grpo",
}
"""Name → what is missing."""
