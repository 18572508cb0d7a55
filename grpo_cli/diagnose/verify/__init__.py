"""Does a record evaluate to what it says it should? Where not, at which stage, and why?"""

from grpo_cli.diagnose.verify.compare import Difference, Tolerance
from grpo_cli.diagnose.verify.verdict import Verdict, judge

__all__ = ["Difference", "Tolerance", "Verdict", "judge"]
