"""The fourth list as an exam."""

from __future__ import annotations

from trials.strangers.exam import Exam
from trials.strangers.mistake import listed
from trials.strangers.settings import Wish
from trials.strangers4.clean import CLEAN
from trials.strangers4.faults import FAULTS
from trials.strangers4.losses import MISTAKES as _LOSSES

MISTAKES = listed(__file__, "mistakes.csv", _LOSSES)

FOURTH = Exam(
    name="fourth",
    title="fourth list",
    mistakes=MISTAKES,
    rights={f"as for: {one.name}": one.wish for one in MISTAKES},
    faults=listed(__file__, "faults.csv", FAULTS),
    clean=CLEAN,
    runs=(Wish(("trl",), ("token", "response"), large=True), Wish(("verl",), large=True)),
)
