"""``python -m grpo_cli``."""

from grpo_cli.cli.main import main

main()
