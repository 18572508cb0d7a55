"""Arguments of the functions: misspelt ones, and messages that name arguments instead of flags."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from grpo_cli.errors import GrpoError, InputError, UsageError, nearest
from grpo_cli.hyperparameters import KNOWN
from grpo_cli.records.fields import canonical_name
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import OWN_AGGREGATES

Function = TypeVar("Function", bound=Callable[..., Any])


def asked(function: Function) -> Function:
    """The function, with errors that speak of arguments; one that does not exist is an error."""
    signature = inspect.signature(function)
    every = signature.parameters.values()
    known = {one.name: one for one in every if one.kind is not one.VAR_KEYWORD}
    taken = len(known) < len(every)  # whether hyperparameters are

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        with speaking_of_arguments():
            if taken:
                _gather_stages(named, known)
            for name in named.keys() - known.keys():
                other = _SYNONYMS.get(name, name)
                if other in known and other not in named:
                    named[other] = named.pop(name)
                else:
                    _refuse(name, named[name], known, taken=taken)
            try:
                signature.bind(*given, **named)
            except TypeError as error:
                raise UsageError(f"{function.__name__}: {error}") from None
            return function(*given, **named)

    return cast("Function", call)


_SYNONYMS = {"variants": "variant", "variant": "variants", "limit": "top", "top": "limit"}


def _gather_stages(named: dict[str, Any], known: Iterable[str]) -> None:
    """Moves choices of stages, as ``kl="k1"``, into ``stages``.

    Raises:
        UsageError: for a stage that is there already.
    """
    own = [one for one in (*STAGES, *OWN_AGGREGATES) if one in named and one not in known]
    if not own:
        return
    stages = named.get("stages") or {}
    if not isinstance(stages, Mapping):
        return
    if twice := [one for one in own if one in stages]:
        raise UsageError(f"{twice[0]} is given twice: as an argument and in stages")
    named["stages"] = {**stages, **{one: named.pop(one) for one in own}}


def _refuse(name: str, value: Any, known: Iterable[str], *, taken: bool) -> None:
    """Refuses an argument, unless it may be a hyperparameter, where these are ``taken``.

    Raises:
        UsageError: with the nearest argument, or where the name has a meaning.
    """
    if taken and name in KNOWN:
        return
    near = None if name in _ELSEWHERE else nearest(name, known)
    if near or name in _ELSEWHERE:
        hint = f"did you mean {near}?" if near else _ELSEWHERE[name]
        raise UsageError(f"there is no argument {name}; {hint}")
    if not taken:
        raise UsageError(f"there is no argument {name}; there are {', '.join(known)}")
    if isinstance(value, Mapping):
        given = ", ".join(f"{key}={one!r}" for key, one in value.items()) or "beta=0.1"
        raise UsageError(
            f"there is no argument {name}; hyperparameters are keyword arguments: {given}"
        )
    if canonical_name(name):
        raise UsageError(
            f'there is no argument {name}; it is a key of a record: evaluate({{"{name}": …}})'
        )


_OF_SHOW, _OF_MATCH, _OF_TREND = (
    f"it is an argument of {function}" for function in ("show", "match", "trend")
)
_AS_JSON = "to_dict() of the result has the JSON of the command"
_ELSEWHERE = {
    "level": 'give it to the result: evaluate(…).to_polars("token"), or to_pandas, columns',
    "fields": 'give it to the result: evaluate(…).to_polars(fields="id,contribution"), or columns',
    "totals_only": "it is an argument of evaluate",
    "at": _OF_TREND,
    "fail_on": (
        "test the answer, as `assert not trend(run).findings`, or use the command: grpo trend RUN "
        "--fail-on TEST"
    ),
    "map": 'read takes it: evaluate(read(data, map={"rewards": "score"}))',
    "having": 'give it to the result: evaluate(…).columns(having="clip==high"), or to show',
    "limit": "it is an argument of check and show",
    "response": 'columns have it: evaluate(…).columns(having="response==3"), or show',
    "record": 'records are chosen by their fields: where="id==3"; show and read take it',
    **dict.fromkeys(("by", "top", "strings"), _OF_SHOW),
    **dict.fromkeys(("loss", "objective", "logged", "betas"), _OF_MATCH),
    **dict.fromkeys(("against", "log", "step", "one_run"), _OF_TREND),
    "only": 'every number has a name in the result, as evaluate(…).total["loss"]',
    **dict.fromkeys(("json", "format", "output"), _AS_JSON),
    **dict.fromkeys(("html", "plot"), "the command has it: grpo help pictures"),
}
"""Arguments of other functions, and flags of commands: where each is found."""


# ---- messages that speak of flags, as a caller from Python reads them: of arguments --------------

_SPELLED = {"from": "format"}
_PARAMETER = re.compile(r"-p (\w+=[^\s;,)]+)")
_ANYWHERE = re.compile(r"--group-anywhere joins (?:them|rows of one step)")
"""A flag that no function has: the rows can be sorted."""
_MAP = re.compile(r"--map (\w+)=([^\s;,:)]+)( (?=--map))?")
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:[ =]([^\s;,:)]+(?:,\w[^\s;,:)]*)*))?")
_COMMAND = re.compile(
    r"(\bgrpo (?:eval|compare|match|explain|verify|check|trend|diff|show|report|convert|variants) "
    r"(?:[^;,)]|,(?=\S))*)"
)
_VARIANT = re.compile(r"(?<![\w-])-v ([\w/@.,-]*\w)")
_KEY = re.compile(r"\w*[_,][\w,]*|uid|prompt|step|task")
"""What is a field, and no word of the sentence, after ``--group-by``."""
_VALUE = re.compile(r"[A-Z…]+|[-+.\d][\d.e+-]*")


class speaking_of_arguments:  # noqa: N801 - read as a verb phrase: with speaking_of_arguments()
    """Errors that pass here name arguments where they named flags, and no frame of ours below."""

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, GrpoError):
            if isinstance(error, InputError):
                error.message = of_arguments(error.message)
            error.args = tuple(of_arguments(str(word)) for word in error.args)
            error.__traceback__, error.__suppress_context__ = None, True


def of_arguments(text: str) -> str:
    """The text with ``--beta 0`` as ``beta=0`` and ``--kl k3`` as ``stages={"kl": "k3"}``.

    ``--map rewards=score`` is ``record["rewards"] = record["score"]``; commands stay as they are.
    """
    parts = _COMMAND.split(text)
    return "".join(part if at % 2 else _in_python(part) for at, part in enumerate(parts))


def _in_python(words: str) -> str:
    words = _MAP.sub(_assignment, words)
    words = _ANYWHERE.sub("rows sorted by it are joined", words)
    words = _VARIANT.sub(r'variant="\1"', words)
    return _FLAG.sub(_argument, _PARAMETER.sub(r"\1", words))


def _assignment(found: re.Match[str]) -> str:
    place = "".join(f'["{key}"]' for key in found[2].split("."))
    return f'record["{found[1]}"] = record{place}{"; " if found[3] else ""}'


def _argument(found: re.Match[str]) -> str:
    name, after = found[1].replace("-", "_"), found[2]
    if name == "hyperparameters":  # of the command that lists them
        return found[0]
    stage = STAGES.get("aggregate" if name in OWN_AGGREGATES else name)
    rest = f" {after}" if after else ""
    if stage is not None:
        if after is not None and (after in stage.choices or after in stage.aliases):
            return f'stages={{"{name}": "{after}"}}'
        rest = "" if after == "NAME" else rest
        return f'stages={{"{name}": …}}{rest}'
    name = _SPELLED.get(name, name)
    if name == "unpack" and after:
        return f'read(…, unpack="{after}")'
    quoted = {"batch": after, "step": after == "file", "where": after and "==" in after}
    quoted["group_by"] = after and _KEY.fullmatch(after)
    if quoted.get(name):
        return f'{name}="{after}"'
    return f"{name}={after}" if after and _VALUE.fullmatch(after) else f"{name}{rest}"
