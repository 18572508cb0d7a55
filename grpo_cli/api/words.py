"""Messages that speak of flags, as a caller from Python reads them: of arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_cli.errors import GrpoError, InputError
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import OWN_AGGREGATES

_SPELLED = {"from": "format"}
_PARAMETER = re.compile(r"-p (\w+=[^\s;,)]+)")
_MAP = re.compile(r"--map (\w+)=([^\s;,:)]+)")
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:[ =]([^\s;,:)]+))?")
_VALUE = re.compile(r"[A-Z…]+|[-+.\d][\d.e+-]*")


@contextmanager
def speaking_of_arguments() -> Iterator[None]:
    """Errors that pass here name arguments where they named flags."""
    try:
        yield
    except GrpoError as error:
        if isinstance(error, InputError):
            error.message = of_arguments(error.message)
        error.args = tuple(of_arguments(str(word)) for word in error.args)
        raise


def of_arguments(text: str) -> str:
    """The text with ``--beta 0`` as ``beta=0`` and ``--kl k3`` as ``stages={"kl": "k3"}``.

    ``--map rewards=score`` is ``record["rewards"] = record["score"]``.
    """
    text = _MAP.sub(r'record["\1"] = record["\2"]', text)
    return _FLAG.sub(_argument, _PARAMETER.sub(r"\1", text))


def _argument(found: re.Match[str]) -> str:
    name, after = found[1].replace("-", "_"), found[2]
    stage = STAGES.get("aggregate" if name in OWN_AGGREGATES else name)
    rest = f" {after}" if after else ""
    if stage is not None:
        if after is not None and (after in stage.choices or after in stage.aliases):
            return f'stages={{"{name}": "{after}"}}'
        return f'stages={{"{name}": …}}{rest}'
    name = _SPELLED.get(name, name)
    if name == "unpack" and after:
        return f'read(…, unpack="{after}")'
    if name == "batch" and after:
        return f'{name}="{after}"'
    return f"{name}={after}" if after and _VALUE.fullmatch(after) else f"{name}{rest}"
