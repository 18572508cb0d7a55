"""Options that several commands share, as dataclasses that a command takes like one parameter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def bundled(command: Callable[..., None]) -> Callable[..., None]:
    """Spreads every parameter that is a dataclass into its fields, for Typer to read as options.

    The command still receives the dataclass; its fields, with their ``Annotated`` options and
    defaults, take the parameter's place in the signature and so in ``--help``.
    """
    hints = get_type_hints(command, include_extras=True)
    bundles: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @functools.wraps(command)
    def spread(**values: Any) -> None:
        for name, kind in bundles.items():
            values[name] = kind(**{one.name: values.pop(one.name) for one in fields(kind)})
        command(**values)

    parameters = [
        one
        for given in inspect.signature(command).parameters.values()
        for one in _parameters(given, hints[given.name])
    ]
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {one.name: one.annotation for one in parameters}
    return spread


def _parameters(given: inspect.Parameter, hint: Any) -> Iterator[inspect.Parameter]:
    if not is_dataclass(hint):
        yield given.replace(annotation=hint)
        return
    hints = get_type_hints(hint, include_extras=True)
    for one in fields(hint):
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        yield inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=hints[one.name],
        )
