"""Log-probs from the probabilities and ratios of sample-level records."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.parse.columns import Shape
from grpo_cli.records.places import got

_FROM = {"probs_old": "log_probs_old", "probs_ref": "log_probs_ref"}


def derive(
    columns: dict[str, bytes], names: Mapping[str, str], shape: Shape, mask: bytes | None
) -> tuple[str, ...]:
    """Adds to ``columns`` the log-probs that follow from ratios and probabilities.

    log π_old = log(probs_old), log π_ref = log(probs_ref), log π_θ = log π_old + log ρ.
    Probabilities are densities of whole samples: they may exceed 1 and are never normalised.

    Returns:
        The names of the columns added.

    Raises:
        InputError: for a probability or ratio that counts and is not finite and > 0.
    """
    if not ("ratios" in columns or "probs_old" in columns or "probs_ref" in columns):
        return ()
    derived = []
    for given, name in _FROM.items():
        if given in columns:
            columns[name] = _log(names[given], columns.pop(given), shape, mask).tobytes()
            derived.append(name)
    if "ratios" in columns:
        ratios = _log(names["ratios"], columns["ratios"], shape, mask)
        if "log_probs_old" in columns:
            columns["log_probs_new"] = (np.frombuffer(columns["log_probs_old"]) + ratios).tobytes()
            derived.append("log_probs_new")
    return tuple(derived)


def _log(key: str, column: bytes, shape: Shape, mask: bytes | None) -> np.ndarray:
    values = np.frombuffer(column)
    good = (values > 0.0) & (values < np.inf)
    if mask is not None:
        good |= np.frombuffer(mask, dtype=np.bool_) == 0
    if not good.all():
        at = int(np.argmin(good))
        wanted = "number > 0" if np.isfinite(values[at]) else "finite number"
        came = got(float(values[at]))
        raise InputError(f"expected a {wanted}, got {came}", path=key + shape.place(at))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(values)
