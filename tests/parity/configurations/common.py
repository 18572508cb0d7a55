"""Random whole configurations: a batch, sources of the frameworks, and how numbers compare.

CLONES is a folder with clones named OWNER+NAME, OPENRLHF an unpacked wheel of openrlhf 0.11.2. From this folder:
``python run.py nemo 1000 SEED`` (or orlhf, sky), ``python run_slime.py 1000 SEED all``, and ``python gold.py``, which
writes tests/golden/configurations.json.
"""

from __future__ import annotations
import ast, os, subprocess, sys, math, json, warnings
from types import SimpleNamespace as NS
import numpy as np, torch

warnings.filterwarnings("ignore")
from framework_sources import _STAND_INS, _definitions, _bare, _FUTURE, in_float64

in_float64()
torch.set_num_threads(1)
import grpo_cli
from grpo_cli import evaluate

COMMITS = {"NVIDIA-NeMo+RL": "7ea279a", "NovaSky-AI+SkyRL": "a9564572", "THUDM+slime": "624b824"}


def text(repo, path):
    if repo == "openrlhf":
        return open(os.environ["OPENRLHF"] + "/" + path).read()
    return subprocess.run(
        ["git", "-C", os.environ["CLONES"] + "/" + repo, "show", COMMITS[repo] + ":" + path],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def load(repo, path, names, **known):
    wanted = set(names)
    found = [_bare(n) for n in _definitions(text(repo, path), wanted)]
    assert {n.name for n in found} == wanted, wanted - {n.name for n in found}
    mod = ast.Module(body=[_FUTURE, *found], type_ignores=[])
    space = {**_STAND_INS, **known}
    exec(compile(ast.fix_missing_locations(mod), path, "exec"), space)
    return NS(**{n: space[n] for n in wanted})


class B:
    pass


def draw_batch(rng, equal=False, size1=True, sorted_groups=True):
    b = B()
    G = int(rng.integers(1, 5))
    if equal:
        s = int(rng.integers(2, 6))
        sizes = [s] * G
    else:
        sizes = [int(rng.integers(1 if size1 else 2, 6)) for _ in range(G)]
    b.groups = np.repeat(np.arange(G), sizes)
    R = len(b.groups)
    b.R = R
    b.size = sizes[0]
    kind = rng.integers(0, 5)
    if kind == 0:
        lens = np.full(R, int(rng.integers(1, 7)))
    elif kind == 1:
        lens = np.ones(R, int)
    else:
        lens = rng.integers(0 if rng.random() < 0.4 else 1, 9, R)
    if lens.sum() < 3:
        lens[:] = 3
    b.lens = lens
    T = int(lens.max())
    b.T = T
    pad = np.arange(T)[None] < lens[:, None]
    mask = pad.copy()
    if rng.random() < 0.6:
        mask &= rng.random((R, T)) < rng.choice([0.5, 0.8, 0.95])
    if mask.sum() < 3:
        mask = pad.copy()
    b.mask = mask
    b.pad = pad

    def cap(x):
        return np.where(pad, np.minimum(x, -1e-4), 0.0)

    base = -np.exp(rng.normal(-0.5, 1, (R, T)))
    sc = lambda: float(rng.choice([0.0, 0.01, 0.1, 0.4, 1.5, 5.0]))
    b.new = cap(base)
    b.old = cap(base + sc() * rng.normal(size=(R, T)))
    b.gen = cap(b.old + sc() * rng.normal(size=(R, T)))
    b.ref = cap(base + sc() * rng.normal(size=(R, T)))
    k = rng.integers(0, 5)
    r = rng.integers(0, 2, R).astype(float)
    if k == 0:
        r = rng.integers(-8, 9, R) / 4.0
    if k == 1:
        r = np.full(R, 0.5)
    if k == 2:
        r = rng.normal(size=R) * 3
    if k == 3 and G > 1:
        r = np.where(b.groups == 0, 1.0, r)
    if rng.random() < 0.1:
        r = r * 20
    b.rewards = r
    b.ent = np.where(pad, rng.random((R, T)) * 3, 0.0)
    return b


def rows(a, b):
    return [a[i, : b.lens[i]].tolist() for i in range(b.R)]


def record(b, **more):
    d = dict(
        log_probs_new=rows(b.new, b),
        log_probs_old=rows(b.old, b),
        log_probs_ref=rows(b.ref, b),
        log_probs_rollout=rows(b.gen, b),
        mask=[[int(x) for x in b.mask[i, : b.lens[i]]] for i in range(b.R)],
        group_ids=b.groups.tolist(),
        rewards=b.rewards.tolist(),
        entropies=rows(b.ent, b),
    )
    d.update(more)
    return d


class X:
    def __init__(s, b):
        t = lambda a: torch.tensor(np.asarray(a, float))
        s.b = b
        s.mask = t(b.mask)
        s.new = t(b.new).requires_grad_()
        s.old = t(b.old)
        s.gen = t(b.gen)
        s.ref = t(b.ref)
        s.ent = t(b.ent)
        s.rewards = t(b.rewards)
        s.groups = torch.tensor(b.groups)


def compare(ev, loss, x):
    b = x.b
    theirs = float(loss)
    if loss.requires_grad:
        loss.backward()
    g = -(x.new.grad if x.new.grad is not None else torch.zeros_like(x.new)).numpy()[b.mask]
    bd = ev.breakdown
    ours = ev.loss
    og = (
        np.concatenate([np.asarray(r, float) for r in ev.gradient])
        if len(ev.gradient)
        else np.zeros(0)
    )
    scale = (
        float(np.sum(np.abs(np.concatenate([np.asarray(r, float) for r in ev.contribution]))))
        if hasattr(ev, "contribution")
        else 0.0
    )
    for t in bd.active if hasattr(bd, "active") else []:
        pass
    dl = abs(ours - theirs) / max(scale, abs(theirs), 1e-12)
    gs = max(np.abs(g).max(initial=0), np.abs(og).max(initial=0), 1e-9)
    dg = np.abs(g - og).max(initial=0) / gs
    return ours, theirs, dl, dg, g, og
