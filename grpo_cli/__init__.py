"""Framework-neutral evaluator of GRPO-family objectives.

>>> from grpo_cli import evaluate
>>> record = {
...     "log_probs_new": [[-0.2, -0.3], [-0.1, -0.4]],
...     "log_probs_old": [[-0.5, -0.6], [-0.4, -0.7]],
...     "rewards": [1.0, 0.0],
... }
>>> round(evaluate(record, variant="dr").objective, 6)
-0.074929
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from grpo_cli import version

if TYPE_CHECKING:
    from grpo_cli.api import (
        Evaluated,
        check,
        compare,
        convert,
        diff,
        evaluate,
        explain,
        match,
        read,
        report,
        show,
        trend,
        verify,
    )
    from grpo_cli.errors import GrpoError, InputError, UsageError
    from grpo_cli.variants import VARIANTS, Variant

__version__ = version.VERSION

__all__ = [
    "VARIANTS",
    "Evaluated",
    "GrpoError",
    "InputError",
    "UsageError",
    "Variant",
    "__version__",
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


def __getattr__(name: str) -> object:
    # Imported when it is asked for: pytest imports this package at its start, for the plugin in
    # ``vectors``, and must not import numpy with it.
    for module in ("errors", "variants", "api") if name in __all__ else ():
        home = import_module(f"{__name__}.{module}")
        if hasattr(home, name):
            return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
