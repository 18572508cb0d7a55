"""Results as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; numbers are right-justified."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def page(parts: Sequence[str], notes: Iterable[str] = ()) -> str:
    """Tables, and lines of text below."""
    said = "".join(f"<div><small>{escape(note)}</small></div>" for note in notes)
    return f"<div>{''.join(parts)}{said}</div>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td style="text-align:right" title="{value!r}">{value:.6g}</td>'
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td style="text-align:right">{value}</td>'
    return f'<td style="text-align:left">{escape("–" if value is None else str(value))}</td>'
