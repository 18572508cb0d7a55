import sys, collections
from common import *
import slime as m
from grpo_cli.variants.trainer import choose, completed, plan

m.MODE = sys.argv[3]
n, seed = int(sys.argv[1]), int(sys.argv[2])
agree = 0
bad = []
err = collections.Counter()
ref = collections.Counter()
for i in range(n):
    rng = np.random.default_rng([seed, i])
    c = m.draw(rng)
    b = c["batch"]
    x = X(b)
    try:
        loss = c["theirs"](x)
    except (AssertionError, ValueError) as e:
        ref[str(e)[:90]] += 1
        continue
    try:
        ch = choose(c["fw"])
        completed(ch, advantages_given=False, stages={}, hyperparameters={})
        made = plan(ch.row, stages=ch.stages, batch="record")
        taken = {k: v for k, v in ch.hyperparameters.items() if k in made.takes()}
        ev = evaluate(record(b), ch.row, stages=dict(ch.stages), **taken)
    except Exception as e:
        err[f"{type(e).__name__}: {str(e)[:110]}"] += 1
        continue
    if not np.isfinite(float(loss)):
        err["theirs not finite"] += 1
        continue
    o, t, dl, dg, g, og = compare(ev, loss, x)
    if dl <= 1e-10 and dg <= 1e-10:
        agree += 1
    else:
        bad.append((i, o, t, dl, dg, c, ev.signature))
print("n", n, "agree", agree, "differ", len(bad))
print("refused", dict(ref))
print("ours refused", dict(err))
cnt = collections.Counter()
tot = collections.Counter()
for i, o, t, dl, dg, c, s in bad:
    for k in c["label"]:
        cnt[k] += 1
print(cnt.most_common())
for i, o, t, dl, dg, c, s in sorted(bad, key=lambda q: len(q[5]["label"]))[:14]:
    print(i, o, t, "%.1e %.1e" % (dl, dg), c["label"], s[:330])
