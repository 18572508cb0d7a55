"""The second list as an exam."""

from __future__ import annotations

from trials.strangers.exam import Exam
from trials.strangers.mistake import listed
from trials.strangers.settings import Wish
from trials.strangers2 import agents, earlier, single
from trials.strangers2.clean import CLEAN
from trials.strangers2.faults import FAULTS

MISTAKES = listed(__file__, "mistakes.csv", single.MISTAKES | agents.MISTAKES | earlier.MISTAKES)
WISHES = {one.name: one.wish for one in MISTAKES}
RIGHTS = {
    "any": Wish(),
    "advantages given": Wish(given=True),
    "truncated": Wish(("paper", "trl"), masked="cut"),
    "rows of turns": Wish(("rows",)),
    "several versions": Wish(("span",), columns=("versions", "turn_ids"), spec={"versions": 3}),
    **{
        f"as for: {name}": WISHES[name]
        for name in (
            "engine's weights not truncated",
            "sequence's weight a mean",
            "rejected tokens in the denominator",
            "engine's weight with a gradient",
            "off-policy mask by the old policy",
            "entropy of truncated rows",
            "LUSPO over the padded width",
            "reward functions not weighted",
            "lone response without an advantage",
            "whitened by halves of each row",
            "discount by the absolute position",
            "GAE steps over tools' tokens",
            "KL of tools' tokens in the returns",
            "a ratio for each turn",
            "returns run on into another trajectory",
        )
    },
}
RUNS = (
    Wish(("paper",)),
    Wish(("paper",), beta=True),
    Wish(("trl",)),
    Wish(("trl",), beta=True),
    Wish(("trl",), given=True),
    Wish(("verl",)),
    Wish(("verl",), beta=True),
    Wish(("slime",)),
    Wish(
        ("paper",),
        ("response",),
        beta=False,
        recipe={"sequence": True, "low": 0.02, "high": 0.03},
        words=("-v", "gspo"),
    ),
    Wish(
        ("trl",),
        ("response",),
        recipe={"sequence": True, "low": 0.02, "high": 0.03},
    ),
    Wish(
        ("trl",),
        ("items",),
        recipe={"surrogate": "cispo", "high": 1.4},
        framework={"loss_type": "cispo"},
    ),
    Wish(("trl",), ("sum",), recipe={"length": 1.0}, framework={"loss_type": "luspo"}),
)

SECOND = Exam(
    name="second",
    title="known list",
    mistakes=MISTAKES,
    rights=RIGHTS,
    faults=listed(__file__, "faults.csv", FAULTS | earlier.FAULTS),
    clean=CLEAN,
    runs=RUNS,
    questions=8,
)
