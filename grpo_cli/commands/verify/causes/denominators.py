"""Denominators: what tokens are divided by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.verify.causes.case import Case, solved
from grpo_cli.commands.verify.causes.cause import Cause, is_typed
from grpo_cli.commands.verify.compare import largest
from grpo_cli.commands.verify.expected import Flags
from grpo_cli.mistakes import worded
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.results import Weights
from grpo_cli.objective.terms import ENTROPY, KL

# ---- denominators, solved for: what each response's tokens weigh, and what that is --------------

Numerator = Callable[[Case], F64]
Divisor = Callable[[Case], F64 | float]
"""[M] a number of each record, or one for all."""


def lengths(case: Case) -> F64:
    """[R] the tokens of each response, at least 1."""
    return np.maximum(case.batch.responses.lengths, 1).astype(np.float64)


def _kept(case: Case) -> F64:
    """[R] the tokens of each response that the correction does not reject."""
    weight = case.breakdown.correction
    return lengths(case) if weight is None else case.batch.responses.sum((weight != 0.0) * 1.0)


_FACTOR, _MEAN = "its length as a factor", "its response's tokens"
_MEANS_OF = ", of token means"
_FORMS: Mapping[str, tuple[str, Numerator]] = {
    "": ("", lambda case: np.ones(case.batch.responses.count)),
    _MEAN: ("", lambda case: 1.0 / lengths(case)),
    "its response's tokens, including masked ones": (
        "truncated-in-denominator",
        lambda case: 1.0 / np.maximum(case.written.lengths, 1),
    ),
    "its response's tokens that the correction keeps": (
        "rejected-in-denominator",
        lambda case: 1.0 / np.maximum(_kept(case), 1.0),
    ),
    "its response's tokens − 1": (
        "one-less",
        lambda case: 1.0 / np.maximum(lengths(case) - 1.0, 1.0),
    ),
    _FACTOR: ("length-squared", lengths),
    "the square root of its length": ("root-length", lambda case: 1.0 / np.sqrt(lengths(case))),
}
"""How a response's weight goes with its length → the mistake, where the count has none of its own,
and the numerator."""


def constant_length(case: Case) -> float:
    """The length that the record or its objective states; not a number without any."""
    values = case.record.hyperparameters
    given = values.get("max_completion_length", values.get("response_length"))
    own = case.objective.aggregate.values.get("max_completion_length")
    return _number(own if given is None else given)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else np.nan


def _groups(case: Case) -> F64:
    return case.counts[0]


def _count(case: Case) -> F64:
    return case.counts[1]


def _tokens(case: Case) -> F64:
    return case.counts[2]


def _written(case: Case) -> F64:
    return _summed(case, case.written.lengths)


def _longest(case: Case) -> F64:
    return largest(case.written.lengths.astype(np.float64), case.batch.records)


def _summed(case: Case, values: F64 | I64 | Flags) -> F64:
    """[M] the sum over the responses of each record."""
    total: F64 = case.batch.records.sum(values.astype(np.float64))
    return total


def _unless(count: F64, other: Flags) -> F64:
    """[M] a count, not a number where that is another one."""
    return np.where(other, np.nan, count)


def _with_cut(case: Case) -> F64:
    """Counts the tokens that count, and those of fully masked responses but for their padding."""
    more = _summed(case, np.where(case.batch.responses.lengths == 0, case.unpadded, 0))
    return _unless(_tokens(case) + more, more == 0.0)


def _with_masked(case: Case) -> F64:
    """Counts all tokens but padding, where that is no other count."""
    count = _summed(case, case.unpadded)
    return _unless(count, (count == _with_cut(case)) | (count == _written(case)))


def _nonempty(case: Case) -> F64:
    return _summed(case, case.batch.responses.lengths > 0)


def _filled(case: Case) -> F64:
    """Counts the responses that have tokens; not a number where all have some."""
    return _unless(_nonempty(case), _nonempty(case) == _count(case))


def _kept_of_all(case: Case) -> F64:
    """Counts the tokens that the correction keeps; not a number where it keeps all."""
    kept = _summed(case, _kept(case))
    return _unless(kept, kept >= _tokens(case))


def _micro_batch_items(case: Case) -> F64:
    given = (one.hyperparameters.get("num_items_in_batch") for one in case.records)
    return np.array([_number(value) for value in given])


# what tokens of equal weight are divided by
_EQUAL: Mapping[str, Divisor] = {
    "denominator-missing.tokens": lambda _: 1.0,
    "token-for-response-mean.tokens": _tokens,
    "denominator-other.responses": _count,
    "constant-length": lambda case: _count(case) * constant_length(case),
    "padded-length.responses": lambda case: _count(case) * _longest(case),
    "truncated-in-denominator.written": _written,
    "truncated-in-denominator.unpadded": _with_masked,
    "truncated-in-denominator.cut": _with_cut,
    "local-count": _micro_batch_items,
    "norm-without-responses": constant_length,
    "padded-length.alone": _longest,
    "group-count": _groups,
    "one-less.responses": lambda case: _count(case) - 1.0,
    "one-less.length": lambda case: (_count(case) - 1.0) * constant_length(case),
    "one-less.tokens": lambda case: _tokens(case) - 1.0,
    "one-less.each": lambda case: _tokens(case) - _nonempty(case),
    "root-length.tokens": lambda case: _tokens(case) ** 0.5,
    "empty-response-counted": _filled,
    "rejected-in-denominator": _kept_of_all,
}
# what tokens that are divided by their response's length are also divided by
_MEANS: Mapping[str, Divisor] = {
    "token-for-response-mean": _count,
    "one-less.responses": lambda case: _count(case) - 1.0,
    "denominator-missing": lambda _: 1.0,
    "group-count": _groups,
    "empty-response-counted": _filled,
}


def denominators(case: Case) -> Iterator[Cause]:
    """Yields weights that explain the gradient, by name; as numbers where they have none."""
    if case.gradient is None:
        yield from _of_loss(case)
        return
    factor = _factors(case, case.gradient, case.breakdown.gradient)
    if factor is None:
        return
    known = np.isfinite(factor)
    weight = case.breakdown.weight * np.where(known, factor, 1.0)
    if np.allclose(factor[known], 1.0, rtol=1e-4):
        return
    fitting: dict[str, float] = {}
    for form, shape in _shapes(case).items():
        scale = weight[known] / shape[known]
        if scale[0] and np.allclose(scale, scale[0], rtol=3e-4, atol=0.0):
            fitting[form] = 1.0 / float(np.median(scale))
    named = [form for form, divisor in fitting.items() if any(named_counts(case, form, divisor))]
    for form in named or fitting:
        yield from _causes(case, form, fitting[form], factor[known])


def padded(case: Case) -> Cause:
    """The padded width in the denominator, tried without asking what the numbers say."""
    mistake, name = worded(key := "padded-length.responses")
    words = f"another denominator: your loss {_divided('')}{name}; {_own(case)}"
    made = partial(_with_weights, numerator=_FORMS[""][1], divisor=_EQUAL[key])
    return Cause(mistake, words, made, by_record=True)


_TERMS = {KL: ("KL", "kl-aggregate"), ENTROPY: ("entropy bonus", "entropy-denominator")}
"""Terms other than the policy's → what they are called, and the mistake of another denominator."""


def of_a_term(case: Case) -> Iterator[Cause]:
    """Yields denominators of the KL or the entropy bonus alone.

    Many give nearly one loss, so where one number differs each is named only if it explains all
    records.
    """
    lone = case.has_one_number
    terms = [one for one in case.breakdown.terms if one.name in _TERMS and one.active]
    for term in terms if lone or case.gradient is not None else ():
        called, mistake = _TERMS[term.name]
        for form, steps in product(_shapes(case), _further_divisors(case).values()):
            times = f" × {steps:g} accumulation steps" if steps > 1.0 else ""
            for key, of in _divisors(case, form):
                words = f"{called} over another denominator: your loss {_divided(form)}"
                words += f"{worded(key)[1]}{times}; {_own(case)}"
                made = partial(_with_denominator, name=term.name, form=form, of=of, steps=steps)
                yield Cause(mistake, words, made, for_all=lone)
        for count, power in product(_TIMES, (1, -1)):
            words = f"{called} {'times' if power > 0 else 'divided by'} the number of {count}"
            made = partial(_with_times, name=term.name, count=count, power=power)
            yield Cause(mistake, words, made, for_all=lone)


_TIMES: Mapping[str, Divisor] = {
    "responses": _count,
    "tokens": _tokens,
    "groups": _groups,
    "responses in a group": lambda case: _count(case) / _groups(case),
    "accumulation steps": lambda case: accumulation_steps(case),
}
"""What a mean may be over, and so what a term may be multiplied or divided by once more."""


def batch_count(case: Case, of: str) -> tuple[str, float]:
    """One of these counts: its name, and the number of the record."""
    return f"the number of {of}", _of_one(case, _TIMES[of])


def _with_denominator(case: Case, name: str, form: str, of: Divisor, steps: float) -> Breakdown:
    """The record's evaluation with other weights of one of its terms."""
    by = _of_one(case, of) * steps
    if not by > 0.0:
        raise ValueError("there is no such count")
    weights = Weights(_FORMS[form][1](case), None, by, "solved")
    sums = case.batch.responses.sum
    return case.with_terms(lambda one: one._replace(weights=weights, sums=sums(one.values)), name)


def _with_times(case: Case, name: str, count: str, power: float) -> Breakdown:
    return case.with_coefficient(name, _of_one(case, _TIMES[count]) ** power)


def micro_batches(case: Case) -> Iterator[Cause]:
    """Yields means of the means of micro-batches: of consecutive responses, or of every n-th."""
    count, factor = case.batch.responses.count, None
    if case.gradient is not None:
        factor = _factors(case, case.gradient, case.breakdown.gradient)
        if factor is None:
            return
    sizes = range(2, min(count, _MOST_RESPONSES))
    for way, size, inner in product(_CUTS, sizes, _INNER):
        one_number = way == _DEALT or count % size or inner != "token"
        if (factor is None and one_number) or (way == _PARTS and count % size):
            continue  # it fits some of many ways
        for divided, steps in _further_divisors(case).items():
            made = partial(_mean_of_means, way=way, size=size, inner=inner, steps=steps)
            if factor is not None:
                wanted = case.breakdown.weight * factor
                known = np.isfinite(wanted) & (wanted != 0.0)
                if not np.allclose(made(case)[known], wanted[known], rtol=1e-3, atol=0.0):
                    continue
            words = f"the mean of the {inner} means of {way.format(size)}{divided}"
            meant = f"{words}; {_own(case)}"
            weighed = partial(_with_weights, numerator=made, divisor=lambda _: 1.0)
            yield Cause("mean-of-means", meant, weighed)


_MOST_RESPONSES = 65
"""Of a micro-batch, and micro-batches that are dealt out in turn."""
_PARTS, _DEALT = "{} micro-batches", "micro-batches of every {}th response"
_CUTS: Mapping[str, Callable[[I64, int], I64]] = {
    "micro-batches of {} responses": lambda rows, size: rows // size,
    _PARTS: lambda rows, parts: rows * parts // len(rows),
    _DEALT: lambda rows, ranks: rows % ranks,
}
"""Of micro-batches of one size in some records, another may be in others, or as many of them."""
_INNER = ("token", "padded")
"""What a micro-batch divides by: its tokens, or all of its padded positions."""


def _mean_of_means(case: Case, way: str, size: int, inner: str, steps: float) -> F64:
    """[R] the weights of the mean over micro-batches of what each of them averages."""
    numbers = _CUTS[way](np.arange(case.batch.responses.count), size)
    counts = np.bincount(numbers, case.batch.responses.lengths).astype(np.float64)
    if inner == "padded":
        longest = np.zeros(len(counts))
        np.maximum.at(longest, numbers, np.array(case.record.widths))
        counts = np.bincount(numbers) * longest
    return 1.0 / (np.maximum(counts, 1.0) * len(counts) * steps)[numbers]


def _shapes(case: Case) -> dict[str, F64]:
    """How weights may go with lengths; of forms that are one on this record the simplest."""
    shapes: dict[str, F64] = {}
    for form, (_, numerator) in _FORMS.items():
        shape = numerator(case)
        if not any(np.array_equal(shape, other) for other in shapes.values()):
            shapes[form] = shape
    return shapes


def _of_loss(case: Case) -> Iterator[Cause]:
    """Yields weights that have a name and give the loss, where no gradient is recorded."""
    if not case.loss:
        return
    for form in _shapes(case):
        sums = _with_weights(case, _FORMS[form][1], lambda _: 1.0).record_objective
        divisor = float(sums[0]) / case.loss
        if divisor > 0.0 and any(named_counts(case, form, divisor)):
            yield from _causes(case, form, divisor, np.ones(1))


def _causes(case: Case, form: str, divisor: float, factor: F64) -> Iterator[Cause]:
    """Yields the weights under every name that their denominator has here, else as a number."""
    own, numerator = _FORMS[form]
    meant = _own(case)
    names, equal = [*named_counts(case, form, divisor)], True
    constant = bool(np.ptp(factor) <= 1e-3 * np.abs(factor).max())
    kind = "a sum instead of a mean, or another " if factor.min() > 2.0 else "another "
    for mistake, name, of in names:
        words = f"{kind}denominator: your loss {_divided(form)}{name}; {meant}"
        if form == _MEAN and mistake == "denominator-missing" and _MEANS_OF in meant:
            over = case.breakdown.counted.removesuffix(_MEANS_OF)
            words = (
                f"mean over {over} missing: your loss adds up the token means of responses; "
                f"divide the sum by the number of {over}"
            )
        made = partial(_with_weights, numerator=numerator, divisor=of)
        sizes = np.bincount(case.batch.groups)
        equal_groups = len(sizes) > 1 and (sizes == sizes[0]).all()
        of_groups = mistake == "group-count" and form == _MEAN and equal_groups
        size = int(sizes[0]) if of_groups else 1
        if size > 1 and _MEANS_OF in meant:
            words = (
                "mean over the responses of a group missing: your loss adds up their token means; "
                f"divide each group's sum by {size}"
            )
        alone = all(other == "group-count" for other, *_ in names)
        small = mistake == "group-count" and constant and size < _SURE_SIZE and alone
        equal &= small
        yield Cause(own or mistake, words, made, equal=small, by_record=True)
    if not equal or case.gradient is None:
        return
    usual, is_whole = float(np.median(factor)), is_typed(divisor, digits=3)
    is_constant = bool(abs(factor - usual).max() <= 3e-4 * abs(usual))
    length = 0 if form or (is_constant and is_typed(usual, digits=2)) else _length(case, divisor)
    if length:
        words = (
            f"{kind}denominator: your loss {_divided(form)}responses × {length}, a constant "
            f"length as in Dr. GRPO ({LENGTH_FLAGS.format(length)}); {meant}"
        )
        made = partial(_with_weights, numerator=numerator, divisor=lambda x: _count(x) * length)
        yield Cause("constant-length", words, made, by_record=True)
    elif is_constant and (form or not is_whole or is_typed(usual, digits=2)):
        words = f"off by a constant factor: yours is the computed one times {usual:.6g}"
        made = partial(Case.everything_times, factor=usual)
        yield Cause("factor", words, made, by_record=True, unnamed=not is_typed(usual, digits=2))
    else:
        words = f"denominator: your loss {_divided(form)}{divisor:.6g}; {meant}"
        made = partial(_with_weights, numerator=numerator, divisor=lambda _: divisor)
        yield Cause("denominator-other", words, made, by_record=True, unnamed=not is_whole)


LENGTHS = (*range(2, 65), *(2**power for power in range(7, 18)), *range(100, 32_001, 100))
"""Constant lengths that no record states."""
LENGTH_FLAGS = "--aggregate token-sum-norm -p max_completion_length={0}"


def _length(case: Case, divisor: float) -> int:
    """The constant length that a divisor is, with the number of responses; 0 if it is none."""
    length = divisor / float(_count(case)[0])
    near = round(length)
    return near if near in LENGTHS and abs(length / near - 1.0) <= 3e-5 else 0


_SURE_SIZE = 3
"""Responses of a group; a smaller factor is what many other counts are."""


def _own(case: Case) -> str:
    return f"{case.objective.name} divides by {case.breakdown.counted}"


def _divided(form: str) -> str:
    if form == _FACTOR:
        return "divides each token, multiplied by its response's tokens, by "
    return f"divides each token by {form} × " if form else "divides each token by "


def _factors(case: Case, wanted: F64, ours: F64) -> F64 | None:
    """[R] what each response's gradient is multiplied by; None where that does not explain it."""
    responses = case.batch.responses
    quiet = 1e-4 * float(np.abs(ours).max(initial=0.0))
    square = responses.sum(ours * ours)
    loud = square > (quiet**2) * np.maximum(responses.lengths, 1)
    if not loud.any():
        return None
    factor = np.where(loud, responses.sum(ours * wanted) / np.where(loud, square, 1.0), np.nan)
    usual = float(np.nanmedian(factor))  # for those whose gradient is too small
    explained = responses.spread(np.where(loud, factor, usual)) * ours
    return factor if case.near(explained, wanted).all() else None


def named_counts(case: Case, form: str, divisor: float) -> Iterator[tuple[str, str, Divisor]]:
    """Yields every count that the divisor is: some are equal on some records."""
    found, room = False, max(0.3 * case.tolerance.rtol, case.rounding)
    for times in (False, True):
        for key, of in _divisors(case, form):
            count = partial(_counted, of=of, times=times)
            if abs(_of_one(case, count) - divisor) <= room * divisor:
                found = True
                mistake, name = worded(key)
                if times:
                    mistake = "accumulation-twice"
                    name += f" × {accumulation_steps(case):g}, perhaps the accumulation steps"
                yield mistake, name, count
        if found:
            return


def _divisors(case: Case, form: str) -> Iterator[tuple[str, Divisor]]:
    """Yields what tokens may be divided by; a count with masked tokens where it has some."""
    for key, of in (_MEANS if form else _EQUAL).items():
        counts_masked = key.startswith("truncated-in-denominator")
        if not counts_masked or _of_one(case, of) != _of_one(case, _tokens):
            yield key, of


def _counted(case: Case, of: Divisor, *, times: bool) -> F64 | float:
    return of(case) * accumulation_steps(case) if times else of(case)


def _of_one(case: Case, of: Divisor) -> float:
    """The number of the one record."""
    return float(np.ravel(of(case))[0])


def accumulation_steps(case: Case) -> float:
    """How many micro-batches a step of the record has; 1 where it does not say."""
    return _number(case.record.hyperparameters.get("gradient_accumulation_steps") or 1)


def _further_divisors(case: Case) -> dict[str, float]:
    """By what a mean is divided in addition: nothing, or the accumulation steps."""
    steps = accumulation_steps(case)
    return {"": 1.0} | ({" / accumulation steps": steps} if steps > 1.0 else {})


def _with_weights(case: Case, numerator: Numerator, divisor: Divisor) -> Breakdown:
    records, by = case.batch.records, _of_one(case, divisor)
    each = records.spread(np.broadcast_to(divisor(case), records.count))
    weights = Weights(numerator(case), None, each if records.count > 1 else by, "solved")
    return case.evaluated(aggregate=solved(weights), kl_aggregate=None)
