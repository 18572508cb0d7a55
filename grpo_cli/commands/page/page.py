"""The page that ``show`` and ``report`` draw in a browser, and records as its script reads them."""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.show.picture import Picture, flowing, words_of
from grpo_cli.engine.rows.fields import counted_words
from grpo_cli.engine.rows.rows import rows
from grpo_cli.engine.rows.source import Source, bounds, differences_of
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import KL
from grpo_cli.records import Record
from grpo_cli.records.record import listed
from grpo_cli.records.unread import COMPLETIONS, PROMPTS
from grpo_cli.terminal.numbers import markup, shown
from grpo_cli.terminal.palette import STEPS

_SCRIPTS = (
    *("codec.js", "quantities.js", "words.js", "strip.js", "sorts.js", "responses.js", "record.js"),
    *("tip.js", "charts.js", "run.js", "step.js", "toolbar.js", "jumps.js", "page.js", "route.js"),
)


def html(
    *,
    title: str,
    place: str,
    command: str,
    signature: str,
    settings: Mapping[str, Any],
    still: Iterable[str],
    blocks: Sequence[tuple[str, str]],
) -> Iterator[str]:
    """The page in parts.

    Nothing of the user's is in it but escaped, or in base64. The browser may only run this one
    script and may fetch nothing.

    Args:
        place, command: where what it shows was read, and what made the page.
        settings: what the script starts with.
        still: what the page shows until its script has run, and where none runs.
        blocks: an id and base64 each.
    """
    script = '"use strict";\n' + "".join(_asset(name) for name in _SCRIPTS)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    yield '<meta name="viewport" content="width=device-width">\n'
    yield f"<title>{markup(title)}</title>\n"
    yield f"<style>\n{_asset('style.css')}</style></head>\n"
    yield f"<body>\n<header><h1>{markup(title)}</h1><p>{markup(place)}</p>\n"
    yield f'<p class="hint">{markup(_objective(signature))}</p></header>\n<main>\n'
    yield from still
    yield '<noscript><p class="hint">The rest needs JavaScript.</p></noscript></main>\n'
    words = re.sub(r"([|,])", r"\1<wbr>", markup(signature))
    words = re.sub(r"\d[\d.]*e-\d+", r'<span class="level">\g<0></span>', words)
    yield f"<footer><code>{markup(command)}</code><code>{words}</code></footer>\n"
    started = json.dumps(settings, allow_nan=False).replace("<", "\\u003c")
    for name, data in (("settings", started), *blocks):
        yield f'<script type="application/octet-stream" id="{name}">{data}</script>\n'
    yield f"<script>{script}</script>\n</body></html>\n"


def _objective(signature: str) -> str:
    """The parts of a signature that change the loss most: the variant, its surrogate and its KL."""
    variant, *stages = signature.replace(",", ", ").split("|")
    main = [one.replace(":", " ") for one in stages if one.startswith(("surrogate:", "kl:"))]
    return ", ".join([variant, *main])


def _asset(name: str) -> str:
    return (files("grpo_cli.commands.page") / "assets" / name).read_text(encoding="utf-8")


def still_totals(numbers: Mapping[str, Any]) -> str:
    """Numbers by name, as the script draws them."""
    cells = (
        f"<div><dt>{markup(name.replace('_', ' '))}</dt><dd>{markup(shown(value))}</dd></div>"
        for name, value in numbers.items()
    )
    return f'<dl class="totals">{"".join(cells)}</dl>\n'


def still_record(picture: Picture) -> Iterator[str]:
    """The numbers of a record and the coloured tokens of the first response that is drawn."""
    yield still_totals({name: picture.record[name] for name in _TOTALS})
    for response in picture.responses[:1]:
        clips = response.row["tokens"]["clip"]
        texts = ("\n".join(map(markup, one.split("\n"))) for one in response.texts[:_STILL])
        words = zip(texts, response.values.tolist(), clips, strict=False)
        tokens = "".join(
            f'<bdi class="t s{picture.step(value) + STEPS} {clip or ""}">{text}</bdi>'
            f"{'' if response.named else ' '}"
            for text, value, clip in words
        )
        yield f"<h2>Responses</h2>\n<h3><b>{markup(response.title)}</b></h3>\n"
        yield f'<div class="tokens">{tokens}</div>\n'


_TOTALS = ("objective", "loss", "policy", "kl", "gradient_norm", "clip_fraction", "tokens")
_STILL = 2_000
"""Tokens in the page itself, outside its script."""


# ---- records ------------------------------------------------------------------------------------

_OF_RECORD = (
    *("objective", "loss", "policy", "kl", "gradient_norm", "clip_fraction", "ratio_mean"),
    *("id", "groups", "response_count", "tokens"),
)
_OF_RESPONSE = (
    *("group", "reward", "advantage", "length", "contribution", "gradient_norm", "clip_fraction"),
)
"""What the script shows of records and of responses."""
_BATCH = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout", "entropies")
_TOKEN = ("advantage", "surrogate", "correction", "kl", "weight", "contribution", "gradient")


Texts = Mapping[str, Any]
"""The fields of an object that may hold its prompt or the text of its responses."""


Drawn = tuple[Texts, int, Sequence[int]]
"""The texts of a record, its place among others, and which of its responses are drawn."""


def blocks(
    records: Sequence[Record], breakdown: Breakdown, drawn: Sequence[Drawn]
) -> Iterator[str]:
    """Records and their tokens, deflated and in base64: nothing in it means anything to HTML.

    Args:
        records: those that are drawn, and others.
        breakdown: of all of them, each a batch of its own.
        drawn: what is drawn of which, a block each.
    """
    source, batch = Source(records, breakdown), breakdown.batch
    wholes = rows(source, "record", chosen=_OF_RECORD)
    inner, columns = rows(source, "response", chosen=_OF_RESPONSE), [*_columns(breakdown)]
    ends = bounds(batch.responses)
    for texts_of, at, chosen in drawn:
        every, first = inner[at]["responses"], int(batch.records.starts[at])
        places = first + np.array(chosen, dtype=np.int64)
        responses = Segments(batch.responses.lengths[places])
        tokens: Any = slice(ends[places[0]], ends[places[-1] + 1]) if len(places) else slice(0)
        if tokens.stop - tokens.start != responses.total:  # another group's are between them
            tokens = responses.spread(batch.responses.starts[places]) + responses.positions
        record = records[at]
        positions = [source.positions[ends[one] : ends[one + 1]] for one in places.tolist()]
        ids = record.token_ids
        given, name = (ids, "token_id") if record.tokens is None else (record.tokens, "token")
        words, codes, named = words_of(
            [
                {"position": own} if given is None else {name: counted_words(given[one], own)}
                for one, own in zip(chosen, positions, strict=True)
            ]
        )
        own = {name: of[tokens] + 0.0 for name, of, has in columns if has[at]}
        clip, ends_of_clip = breakdown.clip[tokens], clip_range(breakdown, at)
        coefficient = _kl_coefficient(breakdown, at)
        guessed = _guessed(own, clip, ends_of_clip, coefficient)
        zeros = np.zeros(responses.total)
        values = np.stack([*own.values()])
        guesses = np.stack([guessed.get(name, zeros) for name in own])
        off = values.view(np.int64) ^ guesses.view(np.int64)
        signs = clip.astype(np.uint8)[None]
        letters, deflates, dense = _planes(np.concatenate((signs, codes[None], off)))
        prompts = prompts_of(texts_of, len(every))
        texts = [] if named else completions_of(texts_of, len(every))
        head = {
            **wholes[at],
            "responses": [every[one] for one in chosen],
            "lengths": responses.lengths.tolist(),
            "prompts": prompts if len(prompts) < 2 else [prompts[one] for one in chosen],
            "completions": [texts[one] for one in chosen] if texts else [],
            "clip_range": ends_of_clip,
            "kl_coefficient": coefficient,
            "on_policy": batch.log_probs_old is batch.log_probs_new,
            "named": named,
            "by_ids": not named and ids is not None,
            "words": words,
            "columns": dict(zip(("clip", "place", *own), letters, strict=True)),
        }
        yield deflated(head, deflates, dense)


def deflated(head: Mapping[str, Any], numbers: bytes = b"", dense: bytes = b"") -> str:
    """JSON and what follows it, as ``readBlock`` takes them; NaN and infinities in it as text.

    ``dense`` are bytes that no level makes smaller. They are stored, at level 0 within the zlib
    stream: level 1 would take three times as long for nothing.
    """
    text = _json(head)
    found = [b"\x78\x01"]  # how a zlib stream starts
    first = b"".join((len(text).to_bytes(4, "little"), text, numbers))
    for data, level, end in ((first, 1, zlib.Z_FULL_FLUSH), (dense, 0, zlib.Z_FINISH)):
        packer = zlib.compressobj(level, wbits=-zlib.MAX_WBITS)
        found += [packer.compress(data), packer.flush(end)]
    found.append(zlib.adler32(dense, zlib.adler32(first)).to_bytes(4, "big"))
    return b64encode(b"".join(found)).decode()


def _json(head: Mapping[str, Any]) -> bytes:
    with suppress(TypeError):  # an integer beyond 64 bits, or half a character
        text = orjson.dumps(head)
        if b"null" not in text or orjson.loads(text) == head:  # else one is NaN or infinite
            return text
    return json.dumps(finite(head), allow_nan=False).encode()


def finite(value: Any) -> Any:
    """The value with numbers that JSON cannot express as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    return value


def _columns(breakdown: Breakdown) -> Iterator[tuple[str, F64, NDArray[np.bool_]]]:
    """The columns of the page, and [M] which records would have them alone."""
    batch = breakdown.batch
    every = np.ones(batch.records.count, dtype=np.bool_)

    def differing(values: F64, usual: F64 | I64) -> NDArray[np.bool_]:
        return batch.record_tokens.sum((values != usual).astype(np.int64)) > 0

    for name in _BATCH:
        values = getattr(batch, name)
        if values is not None and not (name == "log_probs_old" and values is batch.log_probs_new):
            yield name, values, every
    if batch.positions is not None:
        positions = batch.positions.astype(np.float64)
        yield "position", positions, differing(positions, batch.responses.positions)
    yield "log_ratio", breakdown.log_ratio, every
    yield "ratio", breakdown.ratio, every
    differences = differences_of(breakdown)
    if "difference" in differences:
        found = differences["difference"]
        yield "difference", found, differing(found, breakdown.log_ratio)
    if "mismatch" in differences:
        yield "mismatch", differences["mismatch"], every
    named = {"weight": breakdown.token_weight}
    for name in _TOKEN:
        values = named.get(name, getattr(breakdown, name))
        if values is not None:
            yield name, values, every


def _guessed(
    c: Mapping[str, F64], clip: I64, clip_range: Sequence[float] | None, coefficient: float
) -> dict[str, F64]:
    """[n] what columns are by PPO's clip and k3, from columns before them.

    Only + − × of float64, in the order of ``guess`` in ``codec.js``, give the same bits there.
    """
    new, old, reference = (c.get(f"log_probs_{name}") for name in ("new", "old", "ref"))
    found = {"ratio": 1.0 + _near_expm1(c["log_ratio"])}
    if new is not None and old is not None:
        found["log_ratio"] = found["difference"] = new - old
    if old is not None and "log_probs_rollout" in c:
        found["mismatch"] = old - c["log_probs_rollout"]
    low, high = clip_range or (1.0, 1.0)
    with np.errstate(all="ignore"):
        free, weight = c["ratio"] * c["advantage"], c["weight"]
        found["surrogate"] = np.where(
            clip == 0, free, np.where(clip > 0, high, low) * c["advantage"]
        )
        contribution, slope = weight * c["surrogate"], np.where(clip == 0, free, 0.0)
        if "kl" in c and new is not None and reference is not None:
            shrunk = _near_expm1(reference - new)
            found["kl"] = shrunk + (new - reference)
            contribution = contribution + coefficient * weight * c["kl"]
            slope = slope + coefficient * -shrunk
        found |= {"contribution": contribution, "gradient": weight * slope}
    return {name: np.where(np.isfinite(one), one, 0.0) + 0.0 for name, one in found.items()}


_TAYLOR = [1.0 / math.factorial(power) for power in range(14, 0, -1)]


def _near_expm1(x: F64) -> F64:
    """eˣ − 1 but for some roundings where |x| is below 2."""
    x, found = np.clip(0.25 * x, -1.0, 1.0), np.zeros(len(x))
    for factor in _TAYLOR:
        found *= x
        found += factor
    found *= x
    found *= found + 2.0
    return found * (found + 2.0)


def _kl_coefficient(breakdown: Breakdown, record: int) -> float:
    """−β; 0 without a KL in J."""
    term = breakdown.term(KL)
    return 0.0 if term is None or not term.active else _of_record(term.coefficient, record)


def _of_record(value: float | F64, record: int) -> float:
    return float(value[record] if isinstance(value, np.ndarray) else value)


def _planes(numbers: NDArray[np.int64]) -> tuple[list[str], bytes, bytes]:
    """[columns, n] numbers by bytes: of each column the lowest of all numbers, then the next.

    Returns:
        Of each column a letter for each of the eight: "0" where all are 0, "s" where they are as
        good as random, so that they are stored, and "d" where they deflate; the bytes of all "d",
        and those of all "s".
    """
    count = numbers.shape[1]
    little = np.ascontiguousarray(numbers).astype("<i8", copy=False)
    filled = np.bitwise_or.reduce(little, axis=1)[:, None].view(np.uint8) != 0
    planes = little.view(np.uint8).reshape(len(numbers), count, 8).transpose(0, 2, 1)[filled]
    step = count // _SAMPLE
    sample = np.sort(planes[:, : step * _SAMPLE : max(step, 1)], axis=1)
    is_dense = (sample[:, 1:] != sample[:, :-1]).sum(axis=1) >= _DIFFERENT
    letters = np.full(filled.shape, "0")
    letters[filled] = np.where(is_dense, "s", "d")
    deflates = planes[~is_dense].tobytes()
    return ["".join(row) for row in letters.tolist()], deflates, planes[is_dense].tobytes()


_SAMPLE, _DIFFERENT = 128, 64
"""Of so many random bytes 101 differ, of seven random bits 81; of a column of zeros one."""


def clip_range(breakdown: Breakdown, record: int = 0) -> list[float] | None:
    """The ratios at which PPO's clip acts; None of other surrogates."""
    surrogate = breakdown.objective.surrogate
    low, high = (surrogate.by_record(name) for name in ("epsilon_low", "epsilon_high"))
    if surrogate.choice.window is None or low is None or high is None:
        return None
    return [_of_record(1.0 - low, record), _of_record(1.0 + high, record)]


# ---- texts -------------------------------------------------------------------------------------


def text_fields(value: Any) -> Texts:
    """What may be the prompt of a decoded object, or the text of its responses."""
    known = value if isinstance(value, dict) else {}
    names = (*PROMPTS, "prompt_ids", *COMPLETIONS)
    return {key: listed(known[key]) for key in names if key in known}


def completions_of(fields: Texts, responses: int) -> list[str]:
    """The text of each response; none where a response has none."""
    for key in COMPLETIONS:
        value = fields.get(key)
        each = value if isinstance(value, list) and not _is_one(value) else [value]
        if len(each) == responses and all(map(_is_text, each)):
            return [_prompt_text(one) or "" for one in each]
    return []


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(_is_message, value)))


def prompts_of(fields: Texts, responses: int) -> list[str]:
    """One prompt for all responses, or one for each; none where the record has none."""
    for key, value in fields.items():
        if key not in COMPLETIONS and (found := _prompts(value, responses)):
            return found[:1] if len(set(found)) == 1 else found
    return []


def _prompts(value: Any, responses: int) -> list[str]:
    if not isinstance(value, list) or _is_one(value):
        text = _prompt_text(value)
        return [] if text is None else [text]
    each = [_prompt_text(one) for one in value]
    if responses and each and responses % len(each) == 0 and all(each):
        share = responses // len(each)
        return [text for text in each if text is not None for _ in range(share)]
    return []


def _is_one(value: list[Any]) -> bool:
    """Whether a list is one prompt: messages, or ids."""
    return bool(value) and all(_is_message(one) or type(one) is int for one in value)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "content" in value


def _prompt_text(value: Any) -> str | None:
    if isinstance(value, str):
        return _part(value) if value else None
    if not isinstance(value, list) or not _is_one(value):
        return None
    if all(map(_is_message, value)):
        roles = (f"{_part(one['role'])}: " if one.get("role") else "" for one in value)
        texts = (_part(one["content"]) for one in value)
        return "\n".join(map(str.__add__, roles, texts))
    return "ids " + " ".join(map(str, value))


def _part(value: Any) -> str:
    return flowing(value if isinstance(value, str) else str(value)).replace("↵\n", "\n")
