"""The issue threads that the answers have to be right on, and the words that name each fault.

``named`` is a regular expression on what ``check`` says (code and message, not the advice) or
``verify`` (the causes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trials.faults import samples
from trials.faults.engines import LAST_TOKEN
from trials.faults.tokens import RETOKENISED
from trials.product import Record
from trials.simulate.policy import Random


@dataclass(frozen=True)
class Thread:
    """A thread: where, what about, what is dumped, which command is asked, what names it."""

    name: str
    about: str
    made: Callable[[Random], list[Record]]
    named: str
    command: str = "check"


_NOISE = (
    r"same weights|on.policy.*(not 1|differ)|(not 1|differ).*on.policy|precision|\bnoise\b|"
    r"batch.?(shape|size|invarian)|micro.?batch|bfloat16|bf16"
)
_TOP = r"top.?[pk]\b|nucleus|renormalis|mass|truncat|constant-log-ratio"

THREADS = (
    Thread("verl#6280", "on policy, and old is not new", samples.verl_6280, _NOISE),
    Thread("verl#6564", "labels across packed samples", samples.verl_6564, LAST_TOKEN),
    Thread(
        "verl#6240", "processed against raw log-probs", samples.verl_6240, rf"temperature|{_TOP}"
    ),
    Thread(
        "unsloth#6738",
        "left padding without position_ids",
        samples.unsloth_6738,
        r"position|left.?pad|grows|drift|with the length|later tokens",
    ),
    Thread("unsloth#4502", "coef_1 is not 1 at num_iterations 1", samples.unsloth_4502, _NOISE),
    Thread("trl#6789", "top-p: the ratio has the kept mass", samples.trl_6789, _TOP),
    Thread(
        "trl#6121",
        "negative entropy from padding",
        samples.trl_6121,
        r"entrop.*(negative|below 0|< 0)|negative entrop|padding|filled with 1",
    ),
    Thread("trl#5224", "retokenised between turns", samples.trl_5224, RETOKENISED),
    Thread(
        "trl#6369",
        "truncated tokens in the denominator",
        samples.trl_6369,
        r"mask|truncat|written",
        command="verify",
    ),
    Thread(
        "NeMo-RL#1518",
        "leave-one-out std of 0",
        samples.nemo_1518,
        r"leave.one.out|std of 0|advantage.*(scale|large|huge|beyond)|10\^?6|1e\+?06",
    ),
    Thread(
        "NeMo-RL#1330",
        "engines differ everywhere",
        samples.nemo_1330,
        r"rollout-mismatch|mult_prob_error|engines? .*differ",
    ),
    Thread(
        "AReaL#1419",
        "partial groups by a fixed stride",
        samples.areal_1419,
        r"stride|group size|grouping|other groups?|boundar|wrong groups?|advantages? .*do(es)? not",
    ),
)
