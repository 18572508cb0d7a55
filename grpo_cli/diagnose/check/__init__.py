"""Is a dump sane? Findings with their place, their evidence, and what to do about them."""

from grpo_cli.diagnose.check.finding import Finding
from grpo_cli.diagnose.check.run import Findings, check

__all__ = ["Finding", "Findings", "check"]
