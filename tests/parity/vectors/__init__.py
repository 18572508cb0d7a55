"""What the frameworks and a plain loss claim of the vectors: ``claims.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo_cli.vectors import Claims

_CLAIMS = json.loads((Path(__file__).parent / "claims.json").read_text(encoding="utf-8"))


def claims(name: str, **more: Any) -> Claims:
    """The claims of a framework or of the plain loss; ``more`` replaces or adds some."""
    return Claims(**_CLAIMS[name] | more)
