"""``grpo trend`` on real runs of TRL, 60 steps each; tests/parity/runs.py has more seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import answer

from . import runs, tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("fault", runs.FAULTS)
def test_a_fault_is_found_where_it_began_and_nothing_else(
    fault: str, model: str, tmp_path: Path
) -> None:
    found = runs.judge(runs.train(model, tmp_path, fault, 21))
    onsets = [finding["onset"] for finding in found]
    wrong = [finding["onset"] for finding in found if finding["severity"] == "warning"]
    if fault == "healthy":
        assert wrong == [], [one for one in found if one["severity"] == "warning"]
    else:
        assert any(abs(onset - runs.ONSET) <= runs.WITHIN for onset in onsets), onsets
        assert min(wrong, default=runs.ONSET) >= runs.ONSET - 2, wrong


def test_what_trl_logs_over_several_micro_batches(model: str, tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": 2, "max_steps": 6, "num_iterations": 2}
    path = runs.train(model, tmp_path, "healthy", 3, **settings)
    log = tmp_path / "out" / "trainer_state.json"
    flags = ("-v", "trl/grpo", "--correction", "trl/sequence-mask", "--names", "trl", "--log", log)
    series = answer("trend", path, *flags)["log"]["series"]
    found = {logged["name"]: logged for logged in series}
    assert len(json.loads(path.read_text().splitlines()[0])["group_ids"]) == 32
    for name in ("kl", "clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"):
        assert found[name]["agrees"], found[name]
