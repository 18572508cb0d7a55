"""``grpo check`` names every planted fault, at the strongest that counts, and no clean batch.

The rates are the experiment's to say (``answers.py``); this is one batch each, from building seeds.
"""

from __future__ import annotations

from files import each
from trials import check
from trials.faults import FAULTS, Fault
from trials.kinds import KINDS
from trials.score import Task

SEED = 3


def strongest(fault: Fault) -> int:
    counted = [at for at, strength in enumerate(fault.strengths) if fault.counted(strength)]
    return counted[-1]


@each("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_named(fault):
    counts = check.ask_one(Task("check", f"fault/{fault.name}/{strongest(fault)}", SEED))
    named = next(count for row, count in counts.items() if row.endswith(fault.name))
    assert named.hits == named.of == 1


@each("kind", KINDS, ids=lambda kind: kind.name)
def test_a_clean_batch_has_no_error_and_no_warning(kind):
    counts = check.ask_one(Task("check", f"clean/{kind.name}", SEED))
    assert [count.hits for count in counts.values()] == [0, 0]
