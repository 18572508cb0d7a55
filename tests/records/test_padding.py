"""Padded columns next to columns without padding: the mask says what is padding."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_cli import InputError, evaluate

PADDED: dict[str, Any] = {
    "per_token_logps": [[-1.0, -2.0, -0.5], [-3.0, 0.0, 0.0]],
    "old_per_token_logps": [[-1.5, -2.5, -0.25], [-2.0, 0.0, 0.0]],
    "completion_mask": [[1, 1, 1], [1, 0, 0]],
    "advantages": [1.0, -1.0],
}
RAGGED = {
    "completion_tokens": [["a", "b", "c"], ["d"]],
    "old_per_token_logps": [[-1.5, -2.5, -0.25], [-2.0]],
    "per_token_logps": [[-1.0, -2.0, -0.5], [-3.0]],
    "completion_mask": [[1, 1, 1], [1]],
    "advantages": [[1.0, 1.0, 1.0], [-1.0]],
}


WITHOUT = [[key] for key in RAGGED if key != "completion_mask"]


@pytest.mark.parametrize("keys", [*WITHOUT, [*RAGGED], ["completion_ids"]])
def test_columns_may_lack_the_padding_that_others_have(keys: list[str]) -> None:
    more = RAGGED | {"completion_ids": [[1, 2, 3], [4]]}
    record = PADDED | {key: more[key] for key in keys}
    assert evaluate(record).objective == evaluate(PADDED).objective


def test_texts_under_the_name_of_trl_are_shown() -> None:
    record = PADDED | {"completion_tokens": RAGGED["completion_tokens"]}
    assert [*evaluate(record).columns("token")["token"]] == ["a", "b", "c", "d"]
    counted = evaluate(PADDED | {"completion_tokens": [3, 1]})
    assert "ignored keys: completion_tokens" in counted.notices


@pytest.mark.parametrize("mask", [[[1, 1, 1], [0, 0, 1]], [[1, 1, 1], [1, 1, 0]], [[1, 1, 1]]])
def test_a_mask_that_does_not_say_what_is_padding_is_no_help(mask: list[list[int]]) -> None:
    record = PADDED | {"old_per_token_logps": RAGGED["old_per_token_logps"]}
    with pytest.raises(InputError, match="expected"):
        evaluate(record | {"completion_mask": mask})
