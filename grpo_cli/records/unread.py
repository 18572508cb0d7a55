"""Keys that nothing reads though they hold a column: what they may be, and what to say of them.

A key resembles a column of log-probs by the words of its name:

- a word for log-probs and one for a policy (``logps_old``, ``sft_lp``, ``vllmLogprobs``): that
  policy's column;
- a word for log-probs and no word that is not listed here (``token_lp``, ``logprobs_2``): the old
  policy's, which is the one that nobody misses;
- words for a policy alone (``old``, ``behavior_policy``) over numbers that may be log-probs.

Any other key may be the old policy's by its values: numbers up to 0 in the shape of the policy's
log-probs, with a word for log-probs (``log_prob_olds``) or correlated with them (``mine``).
``old_values``, ``teacher_logprobs``, ``logprobs_entropy`` and ``log_ratio`` resemble none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.hyperparameters import HOLDERS, KNOWN, SETS, SWITCHES, Value, misspelt, parameter_of

_NAMES: Mapping[str, Any] = orjson.loads(Path(__file__).with_suffix(".json").read_bytes())


def _set(of: str) -> frozenset[str]:
    return frozenset(_NAMES[of].split())


def _sets_of(of: str) -> Mapping[str, frozenset[str]]:
    return {column: frozenset(words.split()) for column, words in _NAMES[of].items()}


OLD, REF, ROLLOUT, NEW = "log_probs_old", "log_probs_ref", "log_probs_rollout", "log_probs_new"

_POLICIES = _sets_of("policies")
_EARLIER = _set("earlier")
"""The old policy's, where no word names another that was not trained (``vllm_lp_before``)."""
_RECOMPUTES = _set("recomputes")
"""Trainers, whose second log-probs are those that they recompute before the update."""
_LOG_PROBS, _PROBS, _NEUTRAL = _set("log_probs"), _set("probs"), _set("neutral")
_LISTED = frozenset().union(*_POLICIES.values(), _EARLIER, _LOG_PROBS, _PROBS, _NEUTRAL)
TWINS = {OLD: (OLD, "probs_old"), REF: (REF, "probs_ref"), ROLLOUT: (ROLLOUT,)}
"""The columns that an objective may lack, and the fields that hold each."""

_OTHERS = _sets_of("others")
"""Columns that are no log-probs, by the words of what dumps call them."""
_NO_POLICY = _set("no_policy").union(*_OTHERS.values())
"""Words of what is neither a policy's log-prob of a token nor a misspelt name of one."""
_LEFT_OUT = _set("left_out")
"""Words for tokens that do not count."""
_WHICH_MASK = "if it is 1 where a token does not count, write 1 minus it as mask"

PROMPT_TOO = "attention_mask"
"""No response mask: it covers the prompt too, and pads to the right of both."""

STEP_FIELDS: tuple[str, ...] = (*_NAMES["steps"].split(),)
"""Fields that say a record's step, the first that is there."""
ENDINGS: tuple[str, ...] = (*_NAMES["endings"].split(),)
"""Fields that say which responses were cut off."""
VERSIONS: tuple[str, ...] = (*_NAMES["versions"].split(),)
"""Fields that say which weights sampled a response."""
TRAJECTORIES: tuple[str, ...] = (*_NAMES["trajectories"],)
"""Fields that may say which trajectory each response is a turn of, the first that does."""
SAMPLED_IDS: tuple[str, ...] = (*_NAMES["sampled_ids"].split(),)
"""Fields with the ids that the engine sampled, where dumps have those too."""
PROMPT_IDS: tuple[str, ...] = (*_NAMES["prompt_ids"].split(),)
PROMPTS: tuple[str, ...] = (*_NAMES["prompts"].split(),)
"""Where the text of a prompt may be, the likeliest first."""
SHARED: tuple[str, ...] = (*_NAMES["shared"].split(), *PROMPTS)
"""Fields that the responses of a group share, where no group id says it."""
COMPLETIONS: tuple[str, ...] = (*_NAMES["completions"].split(),)
"""Where the text of responses may be; ids have some of these names too."""
READ_ELSEWHERE = frozenset(
    (*STEP_FIELDS, *ENDINGS, *VERSIONS, *TRAJECTORIES, *SAMPLED_IDS, *PROMPT_IDS, *PROMPTS)
) | {"bundle", "framework", "loss_gradient", "metrics", "meta", "rollout_is_weights"}
"""Keys that ``trend``, ``check``, ``verify`` and pages read, though no evaluation does; the last is
what verl's hook keeps of a loss that is not compared for it."""
FUNCTION = "rewards/"
"""Before the name of a reward function, which ``trend`` reads."""

IF_OLD = "if your ratio uses these"
_PROMPT_MASK = "also covers the prompt, so it is not read as the mask"
_MOST_KEYS, _MOST_KEY_SETS = 8, 256


class Misnamed(NamedTuple):
    """A key that resembles a column which its record lacks.

    Attributes:
        key: as written.
        advice: the ``--map`` that reads it.
    """

    key: str
    advice: str


class KeySet(NamedTuple):
    """Unread keys of the first record with a set of keys.

    Attributes:
        line: its line, if it has one.
        keys: (key, advice) of those that have the shape of a column.
        settings: (key, hyperparameter, value) of numbers whose key resembles a hyperparameter's.
        held: the places of hyperparameters that are read in a trainer's configuration.
        others: (key, value) of all that remain.
    """

    line: int | None
    keys: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str, float | str], ...] = ()
    held: tuple[str, ...] = ()
    others: tuple[tuple[str, Any], ...] = ()


class Unread:
    """The keys of some input that nothing reads, by the records' sets of keys.

    A near miss of a known name is an error before (``fields.py``, ``settings.py``). What resembles
    a column or a hyperparameter is named with the ``--map`` that reads it; other lists, and names
    in ``hyperparameters``, in one note.

    Of each set the first record of the input decides, wherever pieces are cut.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], KeySet] = {}

    def has(self, keys: tuple[str, ...]) -> bool:
        """Whether a record with these keys was looked at, or more need not be."""
        return keys in self._found or len(self._found) >= _MOST_KEY_SETS

    def add(self, keys: tuple[str, ...], found: KeySet) -> None:
        """Adds the unread keys of a record, if it is the first with its keys."""
        if len(self._found) < _MOST_KEY_SETS:
            self._found.setdefault(keys, found)

    def merge(self, later: Unread) -> None:
        """Adds those of the input that follows."""
        for keys, found in later._found.items():
            self.add(keys, found)

    def stop(self, line: int | None, path: str) -> None:
        """Forgets the record at which work on one file stopped, and those after it.

        Args:
            line: its line; None in a document, where the key that ``path`` names is forgotten.
            path: the place that the error names.
        """
        key = path.rpartition("].")[2]
        for keys, one in [*self._found.items()]:
            if line is None:
                left = tuple(pair for pair in one.keys if pair[0] != key)
                others = tuple(pair for pair in one.others if pair[0] != key)
                self._found[keys] = one._replace(keys=left, others=others)
            elif one.line is not None and one.line >= line:
                del self._found[keys]

    @property
    def others(self) -> dict[str, Any]:
        """The keys that resemble nothing, and the value of each in the first record with it."""
        return dict(pair for one in reversed(self._found.values()) for pair in one.others)

    def note(
        self, used: Sequence[Mapping[str, Value]] = (), named: Collection[str] = ()
    ) -> dict[str, None]:
        """Sentences that name the columns, the settings, and other lists; none without any.

        Args:
            used: the hyperparameters of each objective; a setting that equals them is not named.
            named: keys that another sentence names.
        """
        found = self._found.values()
        settings = {
            key: f"{'' if key.endswith(f'.{name}') else f'is this {name}? '}--map {name}={key}"
            for one in found
            for key, name, value in one.settings
            if not used
            or any(
                given.get(own, ...) != value
                for given in used
                for own in SETS.get(parameter_of(name), (parameter_of(name),))
            )
        }
        columns: dict[str, str] = {}
        for key, advice in (pair for one in found for pair in one.keys):
            columns.setdefault(key, advice)
        held = dict.fromkeys(path for one in found for path in one.held)
        read = {f"hyperparameters are read from {_listing([*held])}": None} if held else {}
        others = {
            key: ""
            for one in found
            for key, value in one.others
            # a trainer's other settings, remarks and what it logs are in no objective
            if key not in named and key.partition(".")[0] not in HOLDERS
            if "." in key or isinstance(value, list)
        }
        ignored = {"columns": columns, "settings": settings, "keys": others}
        for noun, keys in ignored.items():
            each = [f"{key} ({advice})" if advice else key for key, advice in keys.items()]
            read |= {f"ignored {noun}: {_listing(each)}": None} if each else {}
        return read


def _listing(each: list[str]) -> str:
    more = [f"and {len(each) - _MOST_KEYS} more"] if len(each) > _MOST_KEYS else []
    return ", ".join(each[:_MOST_KEYS] + more)


def candidates(unknown: Sequence[str]) -> tuple[str, ...]:
    """The keys without a meaning that no other part reads either."""
    return tuple(
        key for key in unknown if key not in READ_ELSEWHERE and not key.startswith(FUNCTION)
    )


def misnamed(names: Mapping[str, str], unknown: Sequence[str]) -> dict[str, tuple[Misnamed, ...]]:
    """The columns of log-probs that records lack → the keys that resemble each, by their names."""
    new = names.get(NEW)
    if new is None or not unknown:
        return {}
    keys = [(resembled(key), key) for key in candidates(unknown)]
    found = {
        column: [Misnamed(key, _advice(column, key, new)) for near, key in keys if near == column]
        for column in TWINS
        if not _has(names, column)
    }
    for near, key in keys if OLD in found else ():
        both = near == NEW and not _words(key) & _RECOMPUTES
        if near == ROLLOUT and not _has(names, ROLLOUT):
            advice = f"--map {OLD}={key} reads it as the old policy's, --map {ROLLOUT}={key} as the"
            found[OLD].append(Misnamed(key, f"{advice} engine's"))
        elif near in ("", NEW, ROLLOUT):
            found[OLD].append(Misnamed(key, _advice(NEW if both else OLD, key, new)))
    guesses = [key for near, key in keys if near is None and not _words(key) & _NO_POLICY]
    for key in guesses if OLD in found else ():
        found[OLD].append(Misnamed(key, _advice(OLD, key, new)))
    return {column: tuple(each) for column, each in found.items() if each}


def _has(names: Mapping[str, str], column: str) -> bool:
    return any(name in names for name in TWINS[column])


def _advice(column: str, key: str, new: str) -> str:
    if column == NEW:
        return f"--map log_probs_new={key} --map log_probs_old={new} reads both"
    without = {
        OLD: f" (on-policy: --map log_probs_old={new})",
        REF: " (--beta 0 works without a reference)",
    }
    return f"--map {column}={key} reads it{without.get(column, '')}"


@lru_cache(maxsize=1024)
def resembled(key: str) -> str | None:
    """The column of log-probs that a key resembles: "" for any of them, None for none."""
    words = _words(key)
    named = next((column for column, names in _POLICIES.items() if words & names), "")
    if words & _EARLIER and named not in (REF, ROLLOUT):
        named = OLD
    if words & _LOG_PROBS:
        return named if words <= _LISTED or named in TWINS else None
    return named if named in TWINS and (words & _PROBS or words <= _LISTED) else None


def may_mean(key: str, column: str) -> bool:
    """Whether a key may be meant for a column of log-probs, where a record lacks that."""
    if column == NEW:
        return bool(_words(key) & _LOG_PROBS) and resembled(key) not in TWINS
    return column in TWINS and resembled(key) == column


@lru_cache(maxsize=1024)
def _words(key: str) -> frozenset[str]:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
    snake = re.sub(r"pi_b(?![a-z])", "pi_beta", snake)
    snake = re.sub(r"log_?prob(abilit(y|ies))?s?|log_?p(i|s)?(?![a-z])", "_logp_", snake)
    words = re.findall("[a-z]+", snake)
    return frozenset(_SWAPPED.get("".join(sorted(word)), word) for word in words)


_SWAPPED = {"".join(sorted(word)): word for word in ("old", "prev", "ref", "reference", "rollout")}
"""Letters → the word that they are, in whatever order they were typed (``log_prob_odl``)."""


def is_column(value: Any, model: Any, levels: int = 3) -> bool:
    """Whether a value has a number wherever a column has one; or is its only row.

    Innermost lists of both may be arrays; they are nested at most so many ``levels`` deep.
    """
    if not levels or not is_list(value) or not is_list(model):
        return False
    if not len(model) or not is_list(model[0]):
        kinds = {value.dtype.kind} if isinstance(value, np.ndarray) else set(map(type, value))
        numbers = set("fiub") if isinstance(value, np.ndarray) else {float, int, bool, type(None)}
        fits = len(value) == len(model) and kinds <= numbers and kinds != {type(None)}
        return fits and getattr(value, "ndim", 1) == 1
    if len(model) == 1 and not (len(value) and is_list(value[0])):
        return is_column(value, model[0], levels - 1)
    pairs = zip(value, model, strict=False)
    return len(value) == len(model) and all(is_column(*pair, levels - 1) for pair in pairs)


def is_list(value: Any) -> bool:
    """Whether it is a list, or an array that is more than a number."""
    return isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _ones(value: Any) -> Any:
    """A number in the place of every value that is no list."""
    return [*map(_ones, value)] if is_list(value) else 1


def holds_texts(value: Any) -> bool:
    """Whether nested lists begin with a text."""
    return is_list(value) and isinstance(next(_leaves(value), None), str)


def _leaves(value: Any) -> Iterator[Any]:
    """The values in nested lists, as far as they are asked for."""
    if not is_list(value):
        yield value
        return
    if {*map(type, value)}.isdisjoint((list, np.ndarray)):
        yield from value
    else:
        yield from chain.from_iterable(map(_leaves, value))


def _numbers(value: Any) -> F64:
    """[N] the values in nested lists; NaN where one is no number."""
    is_number = (int, float, np.number)
    found = [one if isinstance(one, is_number) else np.nan for one in _leaves(value)]
    return np.array(found, np.float64)


def _first_number(value: Any) -> float | int | None:
    """The first number of nested lists; None where the first value is something else."""
    first = next((one for one in _leaves(value) if one is not None), None)
    first = first.item() if isinstance(first, np.generic) else first
    return first if isinstance(first, float | int) and not isinstance(first, bool) else None


def misnamed_in(
    record: Mapping[str, Any], names: Mapping[str, str], wanted: Mapping[str, Sequence[Misnamed]]
) -> dict[str, Misnamed]:
    """The missing columns → the first key whose values in a record may be the column.

    A name that says it all (``old_lp``) needs numbers alone, so that a column of another shape is
    named as well; any other one the exact shape.
    """
    found = {}
    for column, each in wanted.items():
        one = next((one for one in each if _may_be(column, record, names, one.key)), None)
        if one is None:
            continue
        if _words(one.key) & _PROBS and (_first_number(record[one.key]) or 0.0) > 0:
            probs = f"{TWINS[column][-1]}={one.key}"
            advice = one.advice.partition(f", --map {ROLLOUT}")[0]  # an engine has log-probs alone
            one = one._replace(advice=advice.replace(f"{column}={one.key}", probs))
        found[column] = one
    return found


def _may_be(column: str, record: Mapping[str, Any], names: Mapping[str, str], key: str) -> bool:
    value = record.get(key)
    first = _first_number(value) if is_list(value) else None
    if first is None or any(value is record[name] for name in names.values()):
        return False  # --map put it where it belongs
    near, model = resembled(key), record[names[NEW]]
    says_probs = _words(key) & (_LOG_PROBS | _PROBS)
    if near is None and (first > 0 or not is_column(value, model)):
        return False
    if column == OLD and near in (ROLLOUT, None) and [*_leaves(value)] == [*_leaves(model)]:
        return False  # every ratio is 1 with it, too
    if says_probs and _words(key) <= _LISTED and near in TWINS:
        return True
    if near is None:
        starts = np.zeros(1, np.int64)
        return bool(may_be_misnamed(key, _numbers(value), _numbers(model), starts)[0])
    plausible = says_probs or (isinstance(first, float) and first <= 0)
    return plausible and is_column(value, model)


_FEWEST, _CORRELATION = 8, 0.8
"""From how many tokens and which correlation on values alone may be another policy's log-probs."""


def may_be_misnamed(key: str, value: F64, model: F64, starts: I64) -> NDArray[np.bool_]:
    """[M] the records that may hold log-probs of another policy under a key.

    Args:
        value: [N] the numbers under it, of all records; nulls are NaN.
        model: [N] the policy's log-probs.
        starts: [M] where the tokens of each record begin.
    """
    if resembled(key) is not None:
        return np.ones(len(starts), np.bool_)
    found: NDArray[np.bool_] = ~np.logical_or.reduceat(value > 0, starts)
    pairs = (value < 0) & (model < 0)
    if not found.any() or _words(key) & _LOG_PROBS:
        return found & np.logical_or.reduceat(pairs, starts)

    def sum_of(values: NDArray[Any]) -> F64:
        return np.add.reduceat(np.where(pairs, values, 0.0), starts)

    sizes = np.diff(starts, append=len(value))
    with np.errstate(all="ignore"):
        count = sum_of(pairs)
        a, b = (each - (sum_of(each) / count).repeat(sizes) for each in (value, model))
        correlations = sum_of(a * b) / np.sqrt(sum_of(a * a) * sum_of(b * b))
        return found & (count >= _FEWEST) & (correlations > _CORRELATION)


def look(
    record: Mapping[str, Any],
    names: Mapping[str, str],
    keys: Iterable[str],
    wanted: Mapping[str, Sequence[Misnamed]],
    line: int | None,
) -> KeySet:
    """The keys of a record that nothing reads and that have the shape of a column."""
    model = record[names[NEW]] if NEW in names else record.get(names.get("ratios", ""))
    misread = misnamed_in(record, names, wanted).values()
    advice = {one.key: one.advice.partition(" reads")[0] for one in misread}
    found: list[tuple[str, str]] = []
    left: list[str] = []
    for key in keys:
        value = record.get(key)
        if value is None or any(value is record[name] for name in names.values()):
            continue
        fits = is_column(value, model)
        if key == PROMPT_TOO and "mask" not in names and is_list(value):
            mapping = f"; --map mask={key} reads it if it covers the response's tokens"
            found.append((key, _PROMPT_MASK + (mapping if fits else "")))
        elif "advantages" not in names and _may_be_advantages(key, value, model):
            found.append((key, f"--map advantages={key}"))
        elif key in advice or (key != PROMPT_TOO and fits):
            reads = advice.get(key) or _nearest(key, value, names)
            is_engine = resembled(key) == ROLLOUT and not _has(names, OLD)
            if reads and is_engine and f"{OLD}=" not in reads:
                reads += f"; --map {OLD}={key} {IF_OLD}"
            found.append((key, reads))
        elif "tokens" not in names and holds_texts(value) and is_column(_ones(value), model):
            found.append((key, f"--map tokens={key}"))
        elif key not in COMPLETIONS:
            left.append(key)
    known = {parameter_of(key) for key in record if key in KNOWN}
    numbers = (key for key in left if type(record[key]) in (int, float))
    near = ((key, _resembled_setting(key), record[key]) for key in numbers)
    settings = [one for one in near if one[1] and known.isdisjoint(_sets(one[1]))]
    read = {key for key, _, _ in settings}
    read |= {switch for name, switch in SWITCHES.items() if name in record}
    rest = (key for key in left if model is not None and key not in read)
    holders = [key for key in left if key in HOLDERS and isinstance(record[key], dict)]
    others = [(key, record[key]) for key in rest if key not in holders]
    configured = _configured(record, holders, names.get("hyperparameters", ""), known)
    return configured._replace(
        line=line,
        keys=tuple(found),
        settings=(*settings, *configured.settings),
        others=(*others, *configured.others),
    )


def _configured(
    record: Mapping[str, Any], keys: Sequence[str], own: str, known: Collection[str]
) -> KeySet:
    """What is read of a trainer's configuration, and what is not.

    Args:
        keys: its keys that hold one.
        own: its key for hyperparameters.
        known: the hyperparameters at its top level.
    """
    given = record.get(own)
    known = {*known, *map(parameter_of, given if isinstance(given, dict) else ())}
    held, settings, others = [], [], []
    for key in (*keys, own):
        for path, name, value in _leaves_of(key, record.get(key)):
            near = name if name in KNOWN else meant_setting(name)
            is_new = known.isdisjoint(_sets(parameter_of(near)))
            is_direct = path == f"{key}.{name}"
            if name in SWITCHES.values() and is_direct:
                continue
            if near not in KNOWN or type(value) not in (int, float, str):
                others.append((path, value))
            elif is_direct and is_setting(name, value):
                held += [path] if is_new and key != own else []
            elif is_new and not (is_direct and key == own):
                settings.append((path, near, value))
    others = [(path, value) for path, value in others if value is not None]
    return KeySet(None, (), tuple(settings), tuple(held), tuple(others))


def _leaves_of(path: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """The place, the name and the value of all that a trainer's configuration holds."""
    for name, held in value.items() if isinstance(value, dict) else ():
        if isinstance(held, dict) and held:
            yield from _leaves_of(f"{path}.{name}", held)
        else:
            yield f"{path}.{name}", name, held


def _may_be_advantages(key: str, value: Any, model: Any) -> bool:
    """Whether a key says that it holds advantages, and has a number for each response."""
    words = _words(key)
    if (
        not words & _OTHERS["advantages"]
        or words & _set("statistics")
        or not is_list(model)
        or not len(model)
    ):
        return False
    if is_list(model[0]):
        return is_list(value) and is_column(value, [0.0] * len(model))
    return type(value) in (int, float) and words <= _OTHERS["advantages"] | _NEUTRAL


def _sets(name: str) -> tuple[str, ...]:
    """A hyperparameter, and those that it sets."""
    return (name, *SETS.get(name, ()))


def is_setting(name: str, value: object) -> bool:
    """Whether an entry of a trainer's configuration is read as a hyperparameter."""
    return name in KNOWN and type(value) in (int, float)


def meant_setting(name: str) -> str:
    """The hyperparameter that an unknown name is meant for; "" where there is none."""
    return misspelt(name) or _resembled_setting(name)


@lru_cache(maxsize=1024)
def _resembled_setting(key: str) -> str:
    """The hyperparameter that a key abbreviates or lengthens, or that its words say; or ""."""
    words = key.lower().split("_")
    for known in sorted(KNOWN):
        pairs = [sorted(pair, key=len) for pair in zip(words, known.split("_"), strict=False)]
        if len(words) == known.count("_") + 1 > 1 and all(
            len(short) > 1 and long.startswith(short) for short, long in pairs
        ):
            return parameter_of(known)
    named = _words(key)
    if "kl" in named and named & _COEFFICIENTS and named <= _COEFFICIENTS | _OF_KL:
        return "beta"
    return "epsilon" if named & _CLIPS and named <= _CLIPS | _OF_CLIP else ""


_COEFFICIENTS, _OF_KL = _set("coefficients"), _set("of_kl")
_CLIPS, _OF_CLIP = _set("clips"), _set("of_clip")
"""Words for a setting, and those that may go with them: kl_beta, ppo_clip; but no clip_fraction."""


def _nearest(key: str, value: Any, names: Mapping[str, str]) -> str:
    """The ``--map`` that would read a column, where the record lacks the one that it resembles."""
    column, words = resembled(key), _words(key)
    if column in TWINS and words & (_LOG_PROBS | _PROBS) and not _has(names, column):
        return f"--map {column}={key}"
    for name, known in _OTHERS.items():
        is_mask = name == "mask" and words & known and all(one in (0, 1) for one in _leaves(value))
        if words & known and name not in names and (name != "mask" or is_mask):
            return _WHICH_MASK if name == "mask" and words & _LEFT_OUT else f"--map {name}={key}"
    of_ids = words & _OF_IDS and not words & _LEFT_OUT and column is None
    if (
        of_ids
        and "token_ids" not in names
        and all(
            one is None
            or (isinstance(one, int | np.integer) and type(one) is not bool and one >= 0)
            for one in _leaves(value)
        )
    ):
        return f"--map token_ids={key}"
    scores = key.startswith("token_level_") and bool(words & {"rewards", "scores"})
    return f"--map rewards={key}" if scores and "rewards" not in names else ""


_OF_IDS = _set("ids")
"""Words of a field that holds the ids of a response's tokens, as verl's ``responses``."""
