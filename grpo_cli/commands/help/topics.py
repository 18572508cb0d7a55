"""The pages of ``grpo help``: Markdown files of the package, one a topic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PAGES = Path(__file__).parent / "pages"


def topics() -> Mapping[str, str]:
    """Topic → the first line of its page, which says what is in it."""
    return {path.stem: _title(path) for path in sorted(PAGES.glob("*.md"))}


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next(lines, "").lstrip("# ").rstrip()


def text(topic: str) -> str:
    """The page as it was written."""
    return (PAGES / f"{topic}.md").read_text(encoding="utf-8")
