"""Three lines in a training script that write the records which ``grpo`` reads.

``grpo_cli.hooks.trl`` and ``grpo_cli.hooks.verl`` are imported by the training script alone:
nothing else here imports them, and ``grpo`` itself needs neither framework.
"""
