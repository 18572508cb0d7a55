"""One short test for each promise that was found broken; what is not mended is a strict xfail."""

from __future__ import annotations

from typing import Any

import pytest


def unmet(reason: str, **more: Any) -> pytest.MarkDecorator:
    """A promise that is not kept yet: the test has to fail, and says so once it does not."""
    return pytest.mark.xfail(strict=True, reason=reason, **more)
