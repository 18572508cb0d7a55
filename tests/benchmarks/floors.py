"""Measures how far the log-probs of one set of weights differ between two ways to compute them.

    python tests/benchmarks/floors.py [--steps 150] [--seeds 2] [--layers 4 8]

A tiny Llama, random and then trained for some steps on this repository's own text, scores tokens
that its float32 form sampled. Needs torch and transformers (the environment of ``tests/parity``).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH, BATCH, VOCABULARY = 128, 16, 256


def corpus() -> torch.Tensor:
    """The bytes of this repository's help pages."""
    pages = Path(__file__).parents[2] / "grpo_cli" / "commands" / "help" / "pages"
    text = b"".join(page.read_bytes() for page in sorted(pages.glob("*.md")))
    return torch.tensor(list(text))


def make(layers: int, width: int, seed: int, attention: str = "eager") -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2 * LENGTH,
        attention_dropout=0.1,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


def train(model: Any, steps: int, seed: int) -> None:
    """Makes it surer than random weights are."""
    data, generator = corpus(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(steps):
        at = torch.randint(len(data) - LENGTH - 1, (BATCH,), generator=generator)
        rows = torch.stack([data[one : one + LENGTH] for one in at.tolist()])
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def sample(model: Any, count: int, seed: int) -> torch.Tensor:
    """Tokens sampled at temperature 1 behind a byte of the corpus."""
    torch.manual_seed(seed)
    prompt = corpus()[torch.randint(len(corpus()), (count, 1))]
    return model.generate(
        prompt,
        do_sample=True,
        max_new_tokens=LENGTH,
        min_new_tokens=LENGTH,
        top_k=0,
        pad_token_id=0,
    )


@torch.no_grad()
def score(
    model: Any,
    rows: torch.Tensor,
    *,
    batch: int = 16,
    left: int = 0,
    cached: bool = False,
    head: bool = False,
) -> np.ndarray:
    """The log-prob of each token but the first, the softmax in float32 as engines have it."""
    found = []
    for some in rows.split(batch):
        mask = torch.ones_like(some)
        if left:
            some = torch.cat([torch.zeros((len(some), left), dtype=some.dtype), some], dim=1)
            mask = torch.cat([torch.zeros((len(mask), left), dtype=mask.dtype), mask], dim=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        if cached:
            logits, past = [], None
            for at in range(some.shape[1]):
                out = model(input_ids=some[:, at : at + 1], past_key_values=past, use_cache=True)
                past = out.past_key_values
                logits.append(out.logits[:, 0])
            logits = torch.stack(logits, dim=1)
        elif head:
            hidden = model.model(input_ids=some, attention_mask=mask, position_ids=positions)[0]
            logits = hidden.float() @ model.lm_head.weight.float().T
        else:
            logits = model(input_ids=some, attention_mask=mask, position_ids=positions).logits
        logits = logits[:, left:]
        taken = torch.log_softmax(logits.float(), -1)[:, :-1].gather(-1, some[:, left + 1 :, None])
        found.append(taken[..., 0].double().numpy())
    return np.concatenate(found)


def measure(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    d = (first - second).ravel()
    return {
        "rms": float(np.sqrt(np.mean(d * d))),
        "mean_abs": float(np.abs(d).mean()),
        "kl": float(np.mean(np.expm1(d) - d)),
        "max": float(np.abs(d).max()),
    }


def rows_of(model: Any, ids: torch.Tensor) -> dict[str, dict[str, float]]:
    """What each other way to compute differs by, from float32 or from the first of its pair."""
    import copy

    def other(dtype: torch.dtype, attention: str = "eager") -> Any:
        made = copy.deepcopy(model)
        made.set_attn_implementation(attention)
        return made.to(dtype).eval()

    exact = score(model, ids)
    half, brain = other(torch.float16), other(torch.bfloat16)
    in_brain = score(brain, ids)
    found = {
        "fp32, sdpa for eager": measure(exact, score(other(torch.float32, "sdpa"), ids)),
        "fp32, batches of 1 for 16": measure(exact, score(model, ids, batch=1)),
        "fp32, 16 tokens of padding left": measure(exact, score(model, ids, left=16)),
        "fp32, token by token with a cache": measure(exact, score(model, ids, cached=True)),
        "fp16 against fp32": measure(exact, score(half, ids)),
        "bf16 against fp32": measure(exact, in_brain),
        "bf16 with an fp32 head against fp32": measure(exact, score(brain, ids, head=True)),
        "bf16, sdpa for eager": measure(in_brain, score(other(torch.bfloat16, "sdpa"), ids)),
        "bf16, batches of 1 for 16": measure(in_brain, score(brain, ids, batch=1)),
        "bf16, 16 tokens of padding left": measure(in_brain, score(brain, ids, left=16)),
        "bf16, token by token with a cache": measure(in_brain, score(brain, ids, cached=True)),
        "fp16, token by token with a cache": measure(
            score(half, ids), score(half, ids, cached=True)
        ),
        "log-probs rounded to bf16": measure(
            exact, torch.tensor(exact).bfloat16().double().numpy()
        ),
        "log-probs rounded to fp16": measure(exact, torch.tensor(exact).half().double().numpy()),
    }
    dropped = copy.deepcopy(model).train()
    torch.manual_seed(1)
    found["dropout 0.1 of attention in the trainer"] = measure(score(dropped, ids), exact)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--layers", type=int, nargs="*", default=[2, 8])
    parser.add_argument("--width", type=int, default=64)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    every: dict[str, list[dict[str, float]]] = {}
    for layers in asked.layers:
        for seed in range(10_000, 10_000 + asked.seeds):
            model = make(layers, asked.width, seed)
            for state in ("random", "trained"):
                if state == "trained":
                    model.train()
                    train(model, asked.steps, seed)
                    model.eval()
                ids = sample(model, 16, seed)
                for name, values in rows_of(model, ids).items():
                    every.setdefault(f"{name} ({state})", []).append(values)
                print(
                    layers, seed, state, "nats a token", -score(model, ids).mean(), file=sys.stderr
                )
    table = {
        name: {
            key: [min(one[key] for one in rows), max(one[key] for one in rows)] for key in rows[0]
        }
        for name, rows in every.items()
    }
    for name, values in table.items():
        print(
            json.dumps(
                {
                    "setting": name,
                    **{key: [float(f"{one:.3g}") for one in values[key]] for key in values},
                }
            )
        )


if __name__ == "__main__":
    main()
