"""A rule's declaration is checked where it is made: at import, not in the middle of a run."""

from __future__ import annotations

from typing import Any

import pytest
from files import each

from grpo_cli import check
from grpo_cli.commands.check.rule import rule


@each(
    ("details", "words"),
    [
        ({"needs": ("mask",)}, "rule 'new': it has needs but no about"),
        ({"needs_key": "finish_reasons"}, "it has needs but no about"),
        ({"about": "x", "full_coverage_needs": "truncated"}, "fallback must be given together"),
        ({"about": "x", "fallback": "a part"}, "fallback must be given together"),
        ({"about": "x", "needs": ("mask|masc",)}, "it needs 'masc', which is not a field"),
        ({"severity": "error|"}, "severity ''"),
        ({"scope": "pairs"}, "scope 'pairs': expected record, pair, input"),
        ({"code": "filler", "meaning": "Another."}, "'filler' is already declared"),
        ({"code": "mask"}, "'mask' is already declared in grpo_cli"),
    ],
)
def test_a_declaration_that_contradicts_itself_or_another_is_an_error(details, words):
    check([{"log_probs_new": [[-1.0]], "rewards": [1.0]}])  # imports the rules
    given: dict[str, Any] = {"code": "new", "severity": "error", "meaning": "M.", "rank": 1}
    with pytest.raises(ValueError, match=words):
        rule(**given | details)(lambda view: ())
