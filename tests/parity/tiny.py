"""A Qwen2 of two layers and a tokenizer of single characters, made here: nothing is downloaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

CHARACTERS = "0123456789+-*/=?abcdefghijklmnopqrst "


CONFIGS = {GRPOTrainer: GRPOConfig, RLOOTrainer: RLOOConfig, GMPOTrainer: GMPOConfig}


@cache
def model() -> str:
    """The folder of the model, which is written once."""
    return save(Path(tempfile.mkdtemp()))


def trainer(folder: Path, kind: type = GRPOTrainer, **settings: Any) -> Any:
    """A trainer of the model, with its reward functions among the settings."""
    rewards, data = settings.pop("reward_funcs", [letters]), prompts()
    given = CONFIGS[kind](**arguments(folder, **settings))
    return kind(model(), rewards, args=given, train_dataset=data, eval_dataset=data)


def losses(trainer: Any) -> list[float]:
    """What it logged of each step."""
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def save(folder: Path) -> str:
    """Writes model and tokenizer, from which TRL also loads its reference."""
    torch.manual_seed(0)
    tokenizer = _tokenizer()
    # Wide enough at the start that one step moves a probability by some tenths.
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<eos>", "<unk>", *CHARACTERS]
    inner = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = Split(Regex("."), behavior="isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )


class Engine:
    """What vLLM would be: TRL samples, and ``score`` gives the log-probs of what it sampled.

    Args:
        trainer: its generation is replaced.
        score: prompt and response → a log-prob for each token, or None.
    """

    def __init__(
        self, trainer: Any, score: Callable[[list[int], list[int]], list[float | None]]
    ) -> None:
        self.trainer, self.generate, self.score = trainer, trainer._generate, score
        trainer._generate, trainer.use_vllm = self, True

    def __call__(self, prompts: list[Any]) -> Any:
        """What TRL's generation returns, with the engine's log-probs."""
        self.trainer.use_vllm = False
        result = list(self.generate(prompts))
        self.trainer.use_vllm = True
        result[4] = [self.score(*pair) for pair in zip(result[0], result[1], strict=True)]
        return tuple(result)


@torch.no_grad()
def log_probs(
    trainer: Any, prompt: list[int], response: list[int], temperature: float
) -> torch.Tensor:
    """[T] the log-probs of a response under the trainer's policy, in float64."""
    logits = trainer.model(torch.tensor([[*prompt, *response]])).logits
    kept = logits[0, len(prompt) - 1 : -1].double() / temperature
    return kept.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]


def prompts() -> Dataset:
    return Dataset.from_dict({"prompt": [f"{a}+{b}=?" for a in range(4) for b in range(4)]})


def letters(completions: list[str], **_: Any) -> list[float]:
    """A reward that differs within a group: the share of letters before "k"."""
    return [sum(one in "abcdefghij" for one in text) / max(len(text), 1) for text in completions]


def short(completions: list[str], **_: Any) -> list[float]:
    """Another one: the shorter, the better."""
    return [-len(text) / 10 for text in completions]


def arguments(folder: Path, **settings: Any) -> dict[str, Any]:
    """The trainer's settings: two passes over every generation, so that ratios move and clip."""
    return {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "num_iterations": 2,
        "max_completion_length": 16,
        "max_steps": 4,
        "learning_rate": 5e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "seed": 7,
        "disable_tqdm": True,
        **settings,
    }
