"""The page in a real browser: what is visible there, and that it asks nothing of the network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--window-size=1000,1400"),
)
DATA = Path(__file__).parent.parent / "data" / "rollouts" / "trl-1.16.0-grpo.jsonl"

PROBE = """<script>
addEventListener("load", () => {
  const seen = (one) => { const box = one.getBoundingClientRect();
    const style = getComputedStyle(one);
    return box.width > 0 && box.height > 0 && style.visibility === "visible"; };
  const box = (one) => { const b = one.getBoundingClientRect(); return [b.left, b.right, b.top]; };
  const all = (query) => [...document.querySelectorAll(query)];
  const clip = (one) => getComputedStyle(one).textDecorationLine;
  document.title = "probe" + JSON.stringify({
    text: document.body.innerText,
    tokens: all("bdi").filter(seen).length,
    colors: new Set(all("bdi").map((one) => getComputedStyle(one).backgroundColor)).size,
    underlined: all("bdi").filter((one) => clip(one) === "underline").length,
    bars: all("svg.bars rect").filter(seen).map((one) => [one.getAttribute("class"), ...box(one)]),
    axis: box(document.querySelector("svg.bars .axis"))[0],
    bins: all("svg.histogram rect.bin").map((one) => one.getBoundingClientRect().height),
    clip: all("svg.histogram line.clip").filter((one) => box(one)[0] > 0).length,
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    paper: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color,
    asked: performance.getEntriesByType("resource").length,
  });
});
</script>"""


@pytest.fixture
def browse(grpo, tmp_path):
    """Draws a record as a page and asks the browser what is visible in it."""

    def run(path, *flags: str, dark: bool = False) -> dict:
        out = tmp_path / "page.html"
        assert grpo("show", str(path), "--html", str(out), *flags).exit_code == 0
        out.write_text(out.read_text(encoding="utf-8") + PROBE, encoding="utf-8")
        theme = ("--blink-settings=preferredColorScheme=0",) if dark else ()
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        done = subprocess.run(
            [
                BROWSER,
                *FLAGS,
                *theme,
                profile,
                "--virtual-time-budget=2000",
                "--dump-dom",
                out.as_uri(),
            ],
            capture_output=True,
            timeout=90,
            check=True,
        )
        found = re.search(r"<title>probe(.*?)</title>", done.stdout.decode(), re.DOTALL)
        assert found, done.stderr.decode()[-500:]
        text = found.group(1)
        for name, sign in (("&lt;", "<"), ("&gt;", ">"), ("&nbsp;", "\u00a0"), ("&amp;", "&")):
            text = text.replace(name, sign)
        return json.loads(text)

    return run


def test_a_real_record_is_visible(browse, grpo):
    seen = browse(DATA, "--record", "grpo/3")
    record = [json.loads(line) for line in DATA.read_text().splitlines()][3]
    evaluated = json.loads(
        grpo("eval", str(DATA), "--level", "token", "-f", "jsonl", "--nest").stdout.splitlines()[3]
    )
    clips = [clip for one in evaluated["responses"] for clip in one["tokens"]["clip"]]
    assert seen["tokens"] == sum(map(len, record["per_token_logps"]))
    assert seen["underlined"] == sum(clip is not None for clip in clips) > 0
    assert seen["colors"] > 5
    assert "record grpo/3" in seen["text"]
    assert f"{evaluated['objective']:.6g}" in seen["text"]
    assert "clip 0.8" in seen["text"]
    assert "clip 1.2" in seen["text"]
    assert seen["clip"] == 2
    assert seen["asked"] == 0
    assert seen["wide"] == 0


def test_bars_go_to_the_side_of_their_sign(browse, grpo):
    seen = browse(DATA, "--record", "grpo/3")
    flags = ("--level", "response", "-f", "jsonl", "--nest")
    line = grpo("eval", str(DATA), *flags).stdout.splitlines()[3]
    values = [one["contribution"] for one in json.loads(line)["responses"]]
    assert len(seen["bars"]) == len(values)
    size = max(map(abs, values))
    longest = max(right - left for _, left, right, _ in seen["bars"])
    for value, (kind, left, right, _) in zip(values, seen["bars"], strict=True):
        assert kind == ("up" if value >= 0 else "down")
        edge = left if value >= 0 else right
        assert edge == pytest.approx(seen["axis"], abs=1.5)
        assert right - left == pytest.approx(longest * abs(value) / size, abs=1.5)
    tops = [top for *_, top in seen["bars"]]
    assert tops == sorted(tops)


def test_light_and_dark_are_both_readable(browse):
    def brightness(color: str) -> float:
        return sum(float(part) for part in re.findall(r"[\d.]+", color)[:3]) / 3

    for dark in (False, True):
        seen = browse(DATA, dark=dark)
        contrast = brightness(seen["ink"]) - brightness(seen["paper"])
        assert contrast > 150 if dark else contrast < -150


def test_tokens_are_seen_as_they_are_written(browse, dump):
    path = dump(
        {
            "id": "<i>&amp;",
            "log_probs_new": [[-0.1, -0.9, -0.3, -1.0], [-1.0]],
            "log_probs_old": [[-0.4, -0.5, -0.3, -1.0], [-1.0]],
            "log_probs_ref": [[-0.4, -0.5, -0.3, -1.0], [-1.0]],
            "tokens": [["[red]", "<b>x</b>", "\n", "שלום"], ["界"]],
        }
    )
    seen = browse(path)
    assert "record <i>&amp;" in seen["text"]
    assert "[red]<b>x</b>↵\nשלום" in seen["text"]
    assert "界" in seen["text"]


def test_the_screenshot_is_not_blank(grpo, tmp_path):
    out, picture = tmp_path / "page.html", tmp_path / "page.png"
    grpo("show", str(DATA), "--html", str(out))
    subprocess.run(
        [
            BROWSER,
            *FLAGS,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={picture}",
            out.as_uri(),
        ],
        capture_output=True,
        timeout=90,
        check=True,
    )
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 20_000
