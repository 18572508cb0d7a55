"""What ``files.each`` makes of many cases: all are tried, and those that fail are named."""

from __future__ import annotations

import pytest
from files import each


def test_all_are_tried_and_those_that_fail_are_named(tmp_path):
    tried = []

    @each(("left", "right"), [(2, 2), (3, 3), (4, 4), (6, 6)], ids=lambda case: f"<{case[0]}>")
    @each("factor", [1, 10])
    def compared(folder, factor, left, right):
        tried.append((folder, factor * left))
        assert (left, factor) != (4, 10), "four"
        with pytest.raises(ZeroDivisionError):
            1 / (left - right if left != 6 else 1)

    with pytest.raises(AssertionError) as caught:
        compared(folder=tmp_path)
    assert tried == [(tmp_path, n) for n in (2, 20, 3, 30, 4, 40, 6, 60)]
    said = str(caught.value)
    assert said.startswith("2 of 4\nthe case <4>: 1 of 2\nthe case 10: four")
    assert "the case <6>: 2 of 2\nthe case 1: DID NOT RAISE" in said
    assert "<2>" not in said
