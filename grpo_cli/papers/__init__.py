"""Rows of the table of variants, as papers write them, and what of papers cannot be a row."""

from grpo_cli.papers import advantage, basics, surrogate

ROWS = {**basics.ROWS, **surrogate.ROWS, **advantage.ROWS}


UNSERVED = {
    "gigpo": "GiGPO's step advantage compares turns that start in the same state, and "
    "records have no field for that state. Its episode advantage is --advantage "
    "trajectory-group-mean, its returns are turn-returns, and its mean over turns "
    "is turn-mean",
    "gfpo-adaptive": "adaptive GFPO decides from earlier prompts how many responses of a "
    "prompt it keeps, and records do not have those prompts; gfpo keeps the "
    "same number for every prompt",
    "rae": "RAE's baseline is a running mean of an agent's earlier rewards, and records do "
    "not have them; if yours have this baseline as reward_baselines, --advantage "
    "remax subtracts it",
    "echo": "ECHO (prime-rl's echo) adds cross-entropy on tool tokens, which are masked, so "
    "grpo does not read them; the rest is prime-rl/grpo",
    "hierarchical_grpo": "prime-rl's hierarchical_grpo is prime-rl/grpo with groups by role, "
    "and by episode too for the roles in episode_agents; use --group-by "
    "with the key of these groups",
    "gkd": "GKD compares whole distributions, and records have only the log-probs of the "
    "sampled tokens; prime-rl/ref_kl, slime/opd and nemo-rl/opd distil from those",
    "stable_reinforce": "the formula of Tinker's stable_reinforce is not published; "
    "tinker/importance_sampling is the earlier default of the cookbook",
    "chord": (
        "CHORD adds a loss on SFT data, which records do not have; the rest is ms-swift/grpo"
    ),
}
"""Name → what is missing."""
