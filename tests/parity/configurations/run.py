import sys, importlib, collections, traceback
import numpy as np
from common import *

name, n, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tol = float(sys.argv[4]) if len(sys.argv) > 4 else 1e-10
m = importlib.import_module(name)
agree = 0
bad = []
refused = collections.Counter()
both = 0
err = collections.Counter()
for i in range(n):
    rng = np.random.default_rng([seed, i])
    c = m.draw(rng)  # dict: batch, theirs(x)->loss, variant, stages, values, label
    b = c["batch"]
    x = X(b)
    try:
        loss = c["theirs"](x)
    except (AssertionError, ValueError) as e:
        refused[str(e)[:80]] += 1
        continue
    try:
        ev = evaluate(
            record(b, **c.get("more", {})), c["variant"], stages=c["stages"], **c["values"]
        )
    except Exception as e:
        if not np.isfinite(float(loss)):
            both += 1
            continue
        err[f"{type(e).__name__}: {str(e)[:150]}"] += 1
        if err.total() < 4:
            print("ERR", i, c["variant"], c["stages"], c["values"], e)
        continue
    if not np.isfinite(float(loss)):
        err["theirs not finite"] += 1
        continue
    o, t, dl, dg, g, og = compare(ev, loss, x)
    if dl <= tol and dg <= tol:
        agree += 1
    else:
        bad.append((i, o, t, dl, dg, c))
print(name, "n", n, "agree", agree, "differ", len(bad), "both nonfinite", both)
print("refused", dict(refused))
print("ours refused", dict(err))
cnt = collections.Counter()
for i, o, t, dl, dg, c in bad:
    for k in c["label"]:
        cnt[k] += 1
print(cnt.most_common(25))
for i, o, t, dl, dg, c in sorted(bad, key=lambda q: -max(q[3], q[4]))[:8] + bad[:4]:
    print(
        i,
        "ours",
        o,
        "theirs",
        t,
        "dl %.1e dg %.1e" % (dl, dg),
        c["variant"],
        c["stages"],
        c["values"],
        c["label"],
    )
