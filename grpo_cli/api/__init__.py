"""What the commands do, as functions: ``evaluate(record, variant="dr").objective``."""

from grpo_cli.api.answers import (
    Checked,
    Compared,
    ComparedVariant,
    Convention,
    Difference,
    Finding,
    Matched,
    SplitAggregate,
    SplitUp,
    Unserved,
    Verdict,
    Verified,
)
from grpo_cli.api.data import Data, read
from grpo_cli.api.evaluated import Evaluated
from grpo_cli.api.evaluation import evaluate
from grpo_cli.api.questions import check, compare, match, split, verify

__all__ = [
    "Checked",
    "Compared",
    "ComparedVariant",
    "Convention",
    "Data",
    "Difference",
    "Evaluated",
    "Finding",
    "Matched",
    "SplitAggregate",
    "SplitUp",
    "Unserved",
    "Verdict",
    "Verified",
    "check",
    "compare",
    "evaluate",
    "match",
    "read",
    "split",
    "verify",
]
