"""An agent with a calculator, trained by TRL's real loop: hook, check, verify, eval, trend, page.

The policy is a Qwen2 of two layers that was shown for some steps how to call the tool. A turn that
is arithmetic, as ``3+4``, calls the calculator; its result is appended, and the policy goes on.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import answer, run
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from grpo_cli import evaluate
from grpo_cli.hooks.trl import record

from . import tiny
from .agreement import relative_error

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own

SINGLE = 2e-6
"""Relative: the trainer computes in float32, in sums of a few hundred terms."""

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}{% endfor %}<eos>"
    "{% elif m.role == 'tool' %}= {{ m.content }} {% else %}{{ m.content }} {% endif %}"
    "{% endfor %}"
)
"""Ends each turn with the end of text, so that what the policy wrote is never rendered anew."""

CALL = re.compile(r"\s*(\d)\s*([+*-])\s*(\d)\s*")


class CallingTokenizer(PreTrainedTokenizerFast):
    """Single characters; a turn that is arithmetic calls the calculator."""

    def parse_response(self, ids: Any, prefix: Any = None, **_: Any) -> dict[str, Any]:
        text = self.decode(ids, skip_special_tokens=True).replace(" ", "")
        found = {"role": "assistant", "content": text}
        if call := CALL.fullmatch(text):
            arguments = dict(zip("asb", call.groups(), strict=True))
            function = {"name": "calculator", "arguments": arguments}
            found["tool_calls"] = [{"type": "function", "function": function}]
        return found


def calculator(a: str, s: str, b: str) -> str:
    """Computes a sum, a difference or a product.

    Args:
        a: the first digit.
        s: the sign, + - or *.
        b: the second digit.

    Returns:
        The result.
    """
    return str({"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[s])


QUESTIONS = [f"{a}+{b}=?" for a in range(4) for b in range(4)]


def right(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """1 for the right answer in the last turn, and a tenth for each call."""
    found = []
    for prompt, completion in zip(prompts, completions, strict=True):
        a, b = int(prompt[0]["content"][0]), int(prompt[0]["content"][2])
        calls = sum(message["role"] == "tool" for message in completion)
        found.append(float(completion[-1]["content"] == str(a + b)) + 0.1 * calls)
    return found


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, CallingTokenizer]:
    """A policy that calls the calculator more often than not, and its tokenizer."""
    folder = tiny.save(tmp_path_factory.mktemp("agent"))
    tokenizer = CallingTokenizer.from_pretrained(folder)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, {"start": ""}
    model = Qwen2ForCausalLM.from_pretrained(folder)
    sums = [(question, int(question[0]) + int(question[2])) for question in QUESTIONS]
    shown = [f"{q} {q[:3]}<eos>= {n} {n}<eos>" for q, n in sums]
    shown += [f"{q} {q[:3]}<eos>= {n} {n}+0<eos>= {n} {n}<eos>" for q, n in sums]
    ids = tokenizer(shown, return_tensors="pt", padding=True)["input_ids"]
    labels = ids.masked_fill(ids == tokenizer.pad_token_id, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    torch.manual_seed(0)
    for _ in range(60):
        loss = model(ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder, tokenizer


@pytest.fixture(scope="module")
def trained(
    agent: tuple[str, CallingTokenizer], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, float]]]:
    """The records of a training with the calculator, and what TRL logged of each step."""
    folder = tmp_path_factory.mktemp("trained")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    settings = {"loss_type": "grpo", "beta": 0.04, "learning_rate": 1e-3}
    settings["max_completion_length"] = 32
    arguments = GRPOConfig(**tiny.arguments(folder, **settings))
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": q}] for q in QUESTIONS]})
    trainer = GRPOTrainer(
        agent[0],
        [right],
        args=arguments,
        train_dataset=data,
        processing_class=agent[1],
        tools=[calculator],
    )
    path = folder / "rollouts.jsonl"
    with record(trainer, path):
        trainer.train()
    torch.set_num_threads(before)
    return path, [row for row in trainer.state.log_history if "loss" in row]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def spans(mask: list[Any]) -> int:
    """How many runs of tokens count."""
    return int(np.count_nonzero(np.diff([0, *mask]) == 1))


def test_the_hook_records_turns_as_holes_of_the_mask(trained: Any) -> None:
    """What the calculator wrote is in the record, and does not count; each turn ends with <eos>."""
    counts = []
    for one in records(trained[0]):
        batch = evaluate(one, "trl/grpo").breakdown.batch
        found = np.bincount(batch.responses.index[batch.turns.starts])
        assert found.tolist() == [spans(row) for row in one["mask"]]
        counts += found.tolist()
        for words, mask in zip(one["tokens"], one["mask"], strict=True):
            tool = "".join(word for word, kept in zip(words, mask, strict=True) if not kept)
            assert re.fullmatch(r"(= -?\d+ )*", tool)
            ends = [at for at, change in enumerate(np.diff(mask)) if change == -1]
            assert {words[at] for at in ends} <= {"<eos>"}
    assert {1, 2, 3} <= {*counts}


def test_what_it_trained_is_what_the_record_evaluates_to(trained: Any) -> None:
    path, logged = trained
    losses: dict[int, float] = {}
    for one in records(path):
        ours, theirs = evaluate(one, "trl/grpo"), one["expected"]
        scale = float(np.abs(ours.breakdown.contribution).sum())
        assert abs(ours.loss - theirs["loss"]) <= SINGLE * scale
        kept = np.concatenate([np.array(row) for row in one["mask"]]) == 1
        gradient = np.concatenate([np.array(row) for row in theirs["loss_gradient"]])
        assert not gradient[~kept].any()  # the policy learns nothing of what the tool wrote
        assert relative_error(-np.concatenate(ours.gradient), gradient[kept], floor=1.0) <= SINGLE
        losses[one["step"]] = losses.get(one["step"], 0.0) + ours.loss
    for step, row in enumerate(logged):
        assert losses[step] == pytest.approx(row["loss"], rel=1e-5, abs=1e-6)


def test_check_verify_and_eval_take_it(trained: Any) -> None:
    path, _ = trained
    checked = answer("check", path)
    assert [one for one in checked["findings"] if one["severity"] != "info"] == []
    verified = answer("verify", path)
    assert verified["verified"] == len(records(path))
    total = answer("eval", path, "-v", "trl/grpo")["total"]
    assert total["responses"] == 64
    kept = [sum(row) for one in records(path) for row in one["mask"]]
    assert total["tokens"] == sum(kept)


LOGGED = (
    "loss",
    *("kl", "clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"),
    *("reward", "reward_std", "frac_reward_zero_std"),
    *(f"completions/{name}_length" for name in ("mean", "min", "max")),
)


def test_trend_gives_what_trl_logged(trained: Any) -> None:
    """Lengths are of the policy's own tokens; TRL logs those of a generation once."""
    path, logged = trained
    steps = answer("trend", path, "-v", "trl/grpo", "--names", "trl")["steps"]
    assert len(steps) == len(logged)
    for ours, theirs in zip(steps, logged, strict=True):
        names = [name for name in LOGGED if name in theirs]
        assert len(names) >= 5
        for name in names:
            assert ours[name] == pytest.approx(theirs[name], rel=2e-5, abs=1e-6), name


def test_a_page_of_the_run_is_written(trained: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("report", trained[0], "-v", "trl/grpo", "-o", page).exit_code == 0
    text = page.read_text()
    assert "trl/grpo" in text
    assert "<title>" in text
