"""Whether a mismatch is normal: the floors that were measured or published (``floors.json``)."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from grpo_cli.commands.check.answer import MismatchFound
from grpo_cli.objective.mismatch import Attribution

_UNITS = {"rms": "nats RMS", "mean_abs": "nats mean |·|", "kl": "nats of KL"}


class Floor(NamedTuple):
    """How far log-probs of equal weights differ in a setting in which nothing is wrong.

    Attributes:
        setting: what differs between the two sides.
        measure: ``rms``, ``mean_abs`` or ``kl``, in nats per token.
        low, high: the range that was found.
        models: of which models, engines and versions.
        source: the page that says so, or the script that measures it.
    """

    setting: str
    measure: str
    low: float
    high: float
    models: str
    source: str

    def describe(self, *, normal: bool) -> str:
        """Says what the setting gives, for a mismatch that is normal beside it or too large."""
        low, high = f"{self.low:.3g}", f"{self.high:.3g}"
        span = low if low == high else f"{low} to {high}"
        gives = (
            f"normal: {self.setting} gives" if normal else f"too large: {self.setting} gives only"
        )
        return f"{gives} {span} {_UNITS[self.measure]} ({self.models})"


@cache
def floors() -> tuple[Floor, ...]:
    """The atlas, the mildest setting first."""
    text = files(__package__).joinpath("floors.json").read_text(encoding="utf-8")
    return tuple(Floor(**row) for row in json.loads(text))


def judge(found: Attribution | None) -> MismatchFound | None:
    """The mismatch, and the mildest setting that is known to differ as much."""
    if found is None:
        return None
    reaching = [one for one in floors() if getattr(found, one.measure) <= one.high]
    floor = reaching[0] if reaching else floors()[-1]
    return MismatchFound(
        **vars(found),
        named=None if found.first is None else found.first.name,
        normal=bool(reaching),
        floor=floor.describe(normal=bool(reaching)),
        source=floor.source,
    )
