"""Questions about a run that ``grpo trend`` answers: one step, parts, another run."""
