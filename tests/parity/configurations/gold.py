"""Writes tests/golden/configurations.json."""

import json, collections
from common import *
import common
import nemo, orlhf, sky, slime
from grpo_cli.variants.trainer import choose, plan

old = common.draw_batch


def small(rng, **k):
    while True:
        b = old(rng, **k)
        if b.lens.sum() <= 26 and b.R <= 9:
            break
    for n in ("new", "old", "gen", "ref"):
        setattr(b, n, np.where(b.pad, np.minimum(np.round(getattr(b, n), 3), -0.001), 0.0))
    b.ent = np.round(b.ent, 2)
    b.rewards = np.round(b.rewards * 8) / 8
    return b


cases = []
for fw, m, repo, want in (
    ("NVIDIA-NeMo/RL", nemo, "7ea279a", 20),
    ("openrlhf", orlhf, "0.11.2", 10),
    ("NovaSky-AI/SkyRL", sky, "a9564572", 12),
    ("THUDM/slime", slime, "624b824", 16),
):
    m.draw_batch = small
    have = collections.Counter()
    n = 0
    i = 0
    while n < want:
        i += 1
        rng = np.random.default_rng([11, i])
        c = m.draw(rng)
        b = c["batch"]
        lab = [str(l) for l in c["label"]]
        if fw.startswith("NVIDIA") and "error" in lab and ("rpp" in lab or "rpp-raw" in lab):
            continue
        if "kl_cov" in lab or "clip_cov" in lab:
            continue
        if min(have[l] for l in lab) > 1 and i < 4000:
            continue
        x = X(b)
        try:
            loss = c["theirs"](x)
        except (AssertionError, ValueError):
            continue
        if not np.isfinite(float(loss)) or abs(float(loss)) < 1e-6:
            continue
        if m is slime:
            try:
                ch = choose(c["fw"])
                if ch.missing:
                    continue
            except Exception:
                continue
            settings = c["fw"]
            variant = None
        if loss.requires_grad:
            loss.backward()
        g = -x.new.grad.numpy()[b.mask]
        e = {"framework": fw, "record": record(b)}
        if m is slime:
            e["record"]["framework"] = {k: v for k, v in c["fw"].items() if v is not None}
        else:
            e.update(
                variant=c["variant"],
                stages={k: str(v) for k, v in c["stages"].items()},
                hyperparameters=c["values"],
            )
        e["loss"] = float(f"{float(loss):.13e}")
        e["gradient"] = [float(f"{q:.11e}") for q in g]
        cases.append(e)
        n += 1
        for l in lab:
            have[l] += 1
d = {
    "provenance": "the frameworks' own functions under whole configurations drawn at random, executed in float64 with torch "
    + torch.__version__
    + "; slime's reducer is written out, and NeMo-RL's 1e-8 on the number of tokens or responses of the step is left out",
    "commits": {
        "NVIDIA-NeMo/RL": "7ea279a",
        "openrlhf": "openrlhf 0.11.2",
        "NovaSky-AI/SkyRL": "a9564572",
        "THUDM/slime": "624b824",
    },
    "cases": cases,
}
t = json.dumps(d, separators=(",", ":")).replace('},{"framework"', '},\n{"framework"')
open("../../golden/configurations.json", "w").write(t + "\n")
print(len(cases), len(t))
