"""What somebody would write instead of ``grpo eval --level batch``: each prints J of GRPO.

    python tests/benchmarks/peers.py numpy_orjson rollouts.jsonl

Groups' standard deviation (ddof 1, ε 1e-8), clip at 0.2, k3 with β 0.04, mean over responses of
token means, in float64. Nothing is checked, no error has a place, no other number is computed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref")


def orjson_loop(path: str) -> None:
    """The floor for JSON: decoding every line, and nothing else."""
    import orjson

    with open(path, "rb") as stream:  # noqa: PTH123
        for line in stream:
            orjson.loads(line)


def pyarrow_read(path: str) -> None:
    """The floor for Parquet: reading the file, and nothing else."""
    import pyarrow.parquet as pq

    pq.read_table(path)


def numpy_json(path: str) -> float:
    """A loop over the responses."""
    import json

    return _numpy(path, json.loads)


def numpy_orjson(path: str) -> float:
    """The same by a faster parser."""
    import orjson

    return _numpy(path, orjson.loads)


def _numpy(path: str, loads: Callable[[bytes], Any]) -> float:
    import numpy as np

    total, count = 0.0, 0
    with open(path, "rb") as stream:  # noqa: PTH123
        for line in stream:
            record = loads(line)
            rewards = np.array(record["rewards"])
            advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-8)
            for i, a in enumerate(advantages):
                new, old, ref = (np.array(record[name][i]) for name in COLUMNS)
                ratio = np.exp(new - old)
                clipped = np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a)
                kl = np.exp(ref - new) - (ref - new) - 1
                total += (clipped - 0.04 * kl).mean()
                count += 1
    return total / count


def torch(path: str) -> float:
    """Padded, masked, TRL's formula, on one core: with more it takes longer, not less."""
    import orjson
    import torch

    torch.set_num_threads(1)
    total, count = 0.0, 0
    with open(path, "rb") as stream:  # noqa: PTH123
        for line in stream:
            record = orjson.loads(line)
            rewards = torch.tensor(record["rewards"], dtype=torch.float64)
            a = ((rewards - rewards.mean()) / (rewards.std() + 1e-8))[:, None]
            new, old, ref = (
                torch.nn.utils.rnn.pad_sequence(
                    [torch.tensor(row, dtype=torch.float64) for row in record[name]],
                    batch_first=True,
                )
                for name in COLUMNS
            )
            mask = (new != 0).double()
            ratio = torch.exp(new - old)
            clipped = torch.min(ratio * a, torch.clamp(ratio, 0.8, 1.2) * a)
            value = clipped - 0.04 * (torch.exp(ref - new) - (ref - new) - 1)
            total += ((value * mask).sum(-1) / mask.sum(-1)).sum().item()
            count += len(rewards)
    return total / count


def numba(path: str) -> float:
    """One compiled loop over the tokens of each response; it is compiled before, and kept."""
    import numpy as np
    import orjson
    from compiled import response_value

    total, count = 0.0, 0
    with open(path, "rb") as stream:  # noqa: PTH123
        for line in stream:
            record = orjson.loads(line)
            rewards = np.array(record["rewards"])
            advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-8)
            for i, a in enumerate(advantages):
                total += response_value(*(np.array(record[name][i]) for name in COLUMNS), a)
                count += 1
    return total / count


def jax(path: str) -> float:
    """One compiled function of arrays padded to powers of two, as each length compiles anew."""
    import jax
    import numpy as np
    import orjson

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    of_record = jax.jit(_jax_means)
    total, count = 0.0, 0
    with open(path, "rb") as stream:  # noqa: PTH123
        for line in stream:
            record = orjson.loads(line)
            lengths = np.array([len(row) for row in record["log_probs_new"]])
            columns = np.zeros((3, len(lengths), 1 << int(lengths.max() - 1).bit_length()))
            for column, name in zip(columns, COLUMNS, strict=True):
                for row, numbers in zip(column, record[name], strict=True):
                    row[: len(numbers)] = numbers
            total += float(of_record(columns, lengths, np.array(record["rewards"])))
            count += len(lengths)
    return total / count


def _jax_means(columns: Any, lengths: Any, rewards: Any) -> Any:
    import jax.numpy as jnp

    new, old, ref = columns
    a = ((rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-8))[:, None]
    ratio, gap = jnp.exp(new - old), ref - new
    clipped = jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a)
    mask = jnp.arange(new.shape[1]) < lengths[:, None]
    return (((clipped - 0.04 * (jnp.exp(gap) - gap - 1)) * mask).sum(-1) / lengths).sum()


def duckdb(path: str) -> float:
    """SQL, over JSON or Parquet."""
    import duckdb

    source = f"'{path}'"
    return duckdb.sql(f"""
        with records as (select row_number() over () as n, * from {source}),
        responses as (select n, unnest(rewards) as r, unnest(log_probs_new) as new,
            unnest(log_probs_old) as old, unnest(log_probs_ref) as ref from records),
        centred as (select row_number() over () as i, new, old, ref,
            (r - avg(r) over (partition by n)) / (stddev_samp(r) over (partition by n) + 1e-8) as a
            from responses),
        tokens as (select i, a, unnest(new) as new, unnest(old) as old, unnest(ref) as ref
            from centred),
        terms as (select i, least(exp(new - old) * a,
            greatest(least(exp(new - old), 1.2), 0.8) * a)
            - 0.04 * (exp(ref - new) - (ref - new) - 1) as v from tokens)
        select avg(m) from (select avg(v) as m from terms group by i)
    """).fetchall()[0][0]


def polars(path: str) -> float:
    """Lazy expressions, over JSON or Parquet."""
    import polars as pl

    scan = pl.scan_parquet if path.endswith(".parquet") else pl.scan_ndjson
    records = scan(path).select("rewards", *COLUMNS).with_row_index("n")
    return _polars(records.explode("rewards", *COLUMNS).rename({"rewards": "reward"}))


def polars_rows(path: str) -> float:
    """The same over rows of one response each."""
    import polars as pl

    return _polars(pl.scan_parquet(path).rename({"uid": "n"}))


def _polars(responses: Any) -> float:
    import polars as pl

    r, new, old, ref = (pl.col(name) for name in ("reward", *COLUMNS))
    a = (r - r.mean().over("n")) / (r.std().over("n") + 1e-8)
    ratio, gap = (new - old).exp(), ref - new
    clipped = pl.min_horizontal(ratio * pl.col("a"), ratio.clip(0.8, 1.2) * pl.col("a"))
    tokens = responses.with_columns(a.alias("a")).with_row_index("i").explode(*COLUMNS)
    value = clipped - 0.04 * (gap.exp() - gap - 1)
    means = tokens.select("i", value.alias("v")).group_by("i").agg(pl.col("v").mean())
    return means.select(pl.col("v").mean()).collect().item()


if __name__ == "__main__":
    print(globals()[sys.argv[1]](sys.argv[2]))
