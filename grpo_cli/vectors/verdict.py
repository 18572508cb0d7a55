"""A loss run on a case, and whether its answer is the one that the case asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from grpo_cli.vectors.case import Case, Tolerance
from grpo_cli.vectors.claims import Claims

NONE = "the fixture returned none"
COARSE = 'Claims(dtype="float32")'
"""The claim of an author whose loss computes in float32."""

Answer = dict[str, Any]
"""What a loss returned, as plain floats and lists: ``loss``, ``gradient``, ``advantages``, …"""


def answer(compute: Callable[[Case], Mapping[str, Any]], case: Case) -> Answer:
    """What ``compute`` returns for the case.

    A rank adds up its micro-batches and the ranks are averaged, loss and gradient alike, which is
    what accumulation and data parallelism do. The rows of the gradient are put back in order.
    """
    if len(case.split) == len(case.split[0]) == 1:
        return {name: plain(value) for name, value in _returned(compute, case).items()}
    total: Answer = {"loss": 0.0, "gradient": [[] for _ in range(case.step.responses)]}
    for responses, part in case.parts():
        returned = _returned(compute, part)
        total["loss"] += plain(returned["loss"]) / case.step.ranks
        for response, row in zip(responses, plain(returned["gradient"]), strict=True):
            total["gradient"][response] = [slope / case.step.ranks for slope in row]
    return total


def _returned(compute: Callable[[Case], Mapping[str, Any]], case: Case) -> Mapping[str, Any]:
    returned = compute(case)
    if not isinstance(returned, Mapping):
        kind = type(returned).__name__
        raise TypeError(f'compute returned a {kind}; return {{"loss": …, "gradient": …}}')
    return returned


def plain(value: Any) -> Any:
    """Tensors and arrays of any library as floats and lists."""
    for method in ("detach", "tolist"):
        if hasattr(value, method):
            value = getattr(value, method)()
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    return value


class Verdict(NamedTuple):
    """The outcome of one case.

    Attributes:
        problems: one line for each number that is wrong; none: the case passed.
        signature: of a convention, the one that the answer follows.
    """

    problems: list[str]
    signature: str = ""


def judge(compute: Callable[[Case], Mapping[str, Any]], case: Case, claims: Claims) -> Verdict:
    """Runs a case that is claimed, as ``claimed`` returned it, and compares."""
    if case.result == "invalid":
        return _refused(compute, case, claims.refuses[case.topic])
    returned = answer(compute, case)
    if case.result == "required":
        lines = list(_problems(case, case.expected, returned, claims))
        if lines and claims.dtype == "float64" and "float32" in case.tolerances:
            coarse = replace(claims, dtype="float32")
            if not list(_problems(case, case.expected, returned, coarse)):
                return Verdict([f"{lines[0]} ({COARSE} accepts it)"])
        return Verdict(lines)
    return _convention(case, returned, claims)


def _convention(case: Case, returned: Answer, claims: Claims) -> Verdict:
    pinned = claims.conventions.get(case.topic)
    found = {
        signature: list(_problems(case, expected, returned, claims))
        for signature, expected in case.conventions.items()
        if pinned in (None, signature)
    }
    if not found:
        either = ", ".join(repr(signature) for signature in case.conventions)
        return Verdict([f"{case.topic} {pinned!r} is claimed, but the case has {either}"])
    for signature, problems in found.items():
        if not problems:
            return Verdict([], signature)
    if pinned is not None:
        return Verdict(found[pinned])
    lines = [f"{signature}: {problems[0]}" for signature, problems in found.items()]
    return Verdict([f"no convention for {case.topic} gives this answer", *lines])


def _refused(
    compute: Callable[[Case], Mapping[str, Any]], case: Case, how: str | type[BaseException]
) -> Verdict:
    error = () if isinstance(how, str) else (how,)
    try:
        loss = answer(compute, case).get("loss")
    except error:
        return Verdict([])
    if how == "nan" and loss is not None and not math.isfinite(loss):
        return Verdict([])
    wanted = "a loss that is not finite" if isinstance(how, str) else how.__name__
    return Verdict([f"expected {wanted} for {case.topic}, got the loss {loss!r}"])


def _problems(
    case: Case, expected: Mapping[str, Any], returned: Answer, claims: Claims
) -> Iterator[str]:
    tolerance = case.tolerances[claims.dtype]
    for name, wanted in expected.items():
        if name == "used_by":
            continue
        if returned.get(name) is None:
            yield f"{name}: {NONE}"
        elif name == "metrics":
            for metric in (one for one in wanted if one in claims.metrics):
                if metric in returned[name]:
                    yield from _compared(metric, wanted[metric], returned[name][metric], tolerance)
                else:
                    yield f"{metric}: {NONE}"
        else:
            yield from _compared(name, wanted, returned[name], tolerance)


def _compared(place: str, wanted: Any, found: Any, tolerance: Tolerance) -> Iterator[str]:
    if wanted is None:
        return
    if not isinstance(wanted, list):
        if not near(wanted, found, tolerance):
            yield f"{place}: expected {wanted!r}, got {found!r}"
        return
    if not isinstance(found, list) or len(found) < len(wanted):
        yield f"{place}: expected {len(wanted)} numbers, got {found!r}"
        return
    for index, value in enumerate(found):
        inside = index < len(wanted)
        yield from _compared(
            f"{place}[{index}]", wanted[index] if inside else 0.0, value, tolerance
        )


def near(wanted: float, found: Any, tolerance: Tolerance) -> bool:
    """Whether a number passes; one that is not finite has to be the same."""
    if not isinstance(found, int | float):
        return False
    if not math.isfinite(wanted):
        return found == wanted or (math.isnan(wanted) and math.isnan(found))
    return abs(found - wanted) <= tolerance.absolute + tolerance.relative * abs(wanted)
