"""``python -m grpo_cli``."""

from grpo_cli.commands.main import main

main()
