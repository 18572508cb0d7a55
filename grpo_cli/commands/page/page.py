"""The file that opens in any browser and asks nothing of the network."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from grpo_cli.terminal.numbers import markup
from grpo_cli.terminal.palette import STEPS

_SCRIPTS = (
    *("codec.js", "words.js", "strip.js", "sorts.js", "responses.js", "record.js", "tip.js"),
    *("run.js", "step.js", "toolbar.js", "jumps.js", "page.js", "route.js"),
)


def html(
    *,
    title: str,
    place: str,
    command: str,
    signature: str,
    settings: Mapping[str, Any],
    blocks: Sequence[tuple[str, str]],
) -> Iterator[str]:
    """The page in parts.

    Nothing of the user's is in it but escaped, or in base64. The browser may only run this one
    script and to fetch nothing.

    Args:
        title: what it shows.
        place: where that was read.
        command: what made the page.
        signature: of the objective.
        settings: what the script starts with.
        blocks: an id and base64 each.
    """
    script = '"use strict";\n' + "".join(_asset(name) for name in _SCRIPTS)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    yield '<meta name="viewport" content="width=device-width">\n'
    yield f"<title>{markup(title)}</title>\n"
    yield f"<style>\n{_asset('style.css')}{_colors()}</style></head>\n"
    yield f"<body>\n<header><h1>{markup(title)}</h1><p>{markup(place)}</p>\n"
    yield "</header>\n"
    yield "<main><noscript><p>This page needs JavaScript.</p></noscript></main>\n"
    yield f"<footer><code>{markup(command)}</code><code>{markup(signature)}</code></footer>\n"
    started = json.dumps(settings, allow_nan=False).replace("<", "\\u003c")
    for name, data in (("settings", started), *blocks):
        yield f'<script type="application/octet-stream" id="{name}">{data}</script>\n'
    yield f"<script>{script}</script>\n</body></html>\n"


def _asset(name: str) -> str:
    return (files("grpo_cli.commands.page") / "assets" / name).read_text(encoding="utf-8")


def _colors() -> str:
    """Ten steps; paler the nearer to the middle."""
    return "".join(
        f".s{step + STEPS} {{ background: rgb({'55 126 200' if step > 0 else '214 66 52'} / "
        f"{0.12 + 0.63 * abs(step) / STEPS:.3f}); }}\n"
        for step in range(-STEPS, STEPS + 1)
        if step
    )
