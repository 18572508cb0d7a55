"""A record as one page that opens in any browser and asks nothing of the network."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from grpo_cli.commands.show.charts import bars, histogram
from grpo_cli.commands.show.heat import ranked
from grpo_cli.commands.show.picture import COLORS, Picture, Response
from grpo_cli.terminal.numbers import shown
from grpo_cli.terminal.palette import STEPS

_NUMBERS = ("objective", "loss", "policy", "kl", "gradient_norm", "clip_fraction", "tokens")
_TOKEN = ("ratio", "advantage", "contribution", "gradient", "kl", "difference")

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #667; --line: #ccd; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6ea; --paper: #16181c; --faint: #99a; --line: #445; }
}
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1rem; margin: 2rem 0 .4rem; }
h3 { font-size: .9rem; margin: 1.4rem 0 .3rem; font-weight: 600; }
code, .tokens, td, text { font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
code { font-size: .8rem; color: var(--faint); overflow-wrap: anywhere; }
dl { display: flex; flex-wrap: wrap; gap: .3rem 1.6rem; margin: .8rem 0; }
dt { color: var(--faint); font-size: .8rem; } dd { margin: 0; font-variant-numeric: tabular-nums; }
.legend { display: flex; align-items: center; gap: .5rem; flex-wrap: wrap; font-size: .85rem; }
.legend span.bar { display: inline-flex; border: 1px solid var(--line); }
.legend i { width: 1.1rem; height: 1rem; display: inline-block; }
.tokens { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.7; direction: ltr; }
.tokens bdi { border-radius: 2px; } .tokens.numbers bdi { margin-right: .5ch; }
.clipped { text-decoration: underline; text-decoration-thickness: 2px; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--ink); }
svg .number { text-anchor: end; } svg .axis { stroke: var(--line); }
svg .up { fill: #2166ac; } svg .down { fill: #b2182b; } svg .bin { fill: #7a8aa0; }
svg line.clip { stroke: #d95f02; stroke-width: 2; stroke-dasharray: 4 3; }
svg text.clip { fill: #d95f02; }
table { border-collapse: collapse; font-size: .85rem; } th, td { padding: .1rem .7rem .1rem 0; }
th { text-align: left; color: var(--faint); font-weight: 500; } td { white-space: pre; }
"""


def web_page(picture: Picture, top: int) -> str:
    """The whole record: its numbers, the bars, the histogram, the tokens."""
    title = f"grpo show: record {shown(picture.record['id'])}"
    body = "\n".join(_body(picture, top))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_colors()}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _colors() -> str:
    """A class per step: blue up, red down, as strong as the step, under ink of the page's own."""
    rules = []
    for step in range(1, STEPS + 1):
        share = 0.75 * step / STEPS
        rules.append(f".u{step} {{ background: rgb(55 126 200 / {share:.2f}); }}")
        rules.append(f".d{step} {{ background: rgb(214 66 52 / {share:.2f}); }}")
    return "\n".join(rules)


def _class(step: int) -> str:
    return f"u{step}" if step > 0 else f"d{-step}" if step < 0 else ""


def _body(picture: Picture, top: int) -> Iterator[str]:
    record = picture.record
    place = record["source"] + ("" if record["line"] is None else f":{record['line']}")
    yield f"<h1>record {escape(shown(record['id']))}</h1>"
    yield f"<p>{escape(place)}<br><code>{escape(record['signature'])}</code></p>"
    yield (
        "<dl>"
        + "".join(
            f"<div><dt>{name.replace('_', ' ')}</dt><dd>{escape(shown(record[name]))}</dd></div>"
            for name in _NUMBERS
        )
        + "</dl>"
    )
    if picture.responses:
        yield f"<h2>Contribution of each response to J</h2>{bars(picture.responses)}"
    ratios = [np.asarray(one.row["tokens"]["log_ratio"]) for one in picture.responses]
    if sum(map(len, ratios)):
        yield "<h2>Ratios (log scale; counts on a log scale)</h2>"
        yield histogram(np.concatenate(ratios), picture.clip_range)
    yield f"<h2>Tokens by {escape(COLORS[picture.color_by])}</h2>{_legend(picture)}"
    yield from (_response(picture, one) for one in picture.responses)
    if top:
        yield from _table(picture, top)


def _legend(picture: Picture) -> str:
    low, middle, high = picture.legend.split(" … ")
    cells = "".join(f'<i class="{_class(step)}"></i>' for step in range(-STEPS, STEPS + 1))
    return (
        f'<p class="legend"><span>{escape(low)}</span><span class="bar">{cells}</span>'
        f"<span>{escape(high)}</span><span>(centre {escape(middle)})</span>"
        '<span class="clipped">clipped</span></p>'
    )


def _response(picture: Picture, response: Response) -> str:
    tokens = response.row["tokens"]
    columns = {
        name: np.asarray(tokens[name]).tolist() for name in _TOKEN if tokens.get(name) is not None
    }
    clips, positions = tokens["clip"], tokens["position"].tolist()
    words = [
        _word(
            text,
            picture.step(value),
            clips[at],
            f"token {positions[at]}\n"
            + "\n".join(f"{name} {values[at]:.6g}" for name, values in columns.items()),
        )
        for at, (text, value) in enumerate(
            zip(response.texts, response.values.tolist(), strict=True)
        )
    ]
    kind = "tokens" if response.named else "tokens numbers"
    return (
        f'<section id="response-{response.row["response"]}"><h3>{escape(response.title)}</h3>'
        f'<div class="{kind}">{"".join(words) or "(no token counts)"}</div></section>'
    )


def _word(text: str, step: int, clip: int, numbers: str) -> str:
    classes = " ".join(filter(None, (_class(step), "clipped" if clip else "")))
    attribute = f' class="{classes}"' if classes else ""
    return f'<bdi{attribute} title="{escape(numbers)}">{escape(text)}</bdi>'


def _table(picture: Picture, top: int) -> Iterator[str]:
    rows = ranked(picture)[:top]
    if not rows:
        return
    names = [name for name in _TOKEN if name in rows[0]]
    head = "".join(f"<th>{name}</th>" for name in ("response", "position", "token", *names))
    lines = "".join(_line(row, names) for row in rows)
    yield f"<h2>The {len(rows)} tokens that matter most</h2><table><tr>{head}</tr>{lines}</table>"


def _line(row: dict[str, Any], names: list[str]) -> str:
    text = row["text"].replace("↵\n", "↵")
    cells = [str(row["response"]), str(row["position"]), text]
    cells += [shown(float(row[name])) for name in names]
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
