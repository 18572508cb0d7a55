"""The commands as functions: ``evaluate(record, variant="dr").objective``."""

from grpo_cli.api.data import Data, convert, read
from grpo_cli.api.evaluated import Evaluated
from grpo_cli.api.evaluation import evaluate
from grpo_cli.api.questions import check, compare, explain, match, show, verify
from grpo_cli.api.runs import diff, report, trend
from grpo_cli.commands.check.answer import Checked, Finding
from grpo_cli.commands.compare.answer import Compared, ComparedVariant, Unserved
from grpo_cli.commands.diff.diff import RunDiff
from grpo_cli.commands.explain.explain import Described, Explained
from grpo_cli.commands.match.answer import Convention, Matched
from grpo_cli.commands.show.batch import Shown
from grpo_cli.commands.trend.comparison import Trend
from grpo_cli.commands.trend.questions.against import RunComparison
from grpo_cli.commands.verify.answer import Difference, Verdict, Verified

__all__ = [
    "Checked",
    "Compared",
    "ComparedVariant",
    "Convention",
    "Data",
    "Described",
    "Difference",
    "Evaluated",
    "Explained",
    "Finding",
    "Matched",
    "RunComparison",
    "RunDiff",
    "Shown",
    "Trend",
    "Unserved",
    "Verdict",
    "Verified",
    "check",
    "compare",
    "convert",
    "diff",
    "evaluate",
    "explain",
    "match",
    "read",
    "report",
    "show",
    "trend",
    "verify",
]
