from common import *
import itertools

U = load(
    "openrlhf",
    "openrlhf/models/utils.py",
    ["compute_approx_kl", "compute_reward", "masked_mean"],
    KL_IS_WEIGHT_CLIP=10.0,
)
L = load(
    "openrlhf",
    "openrlhf/models/loss.py",
    ["PolicyLoss", "aggregate_loss"],
    masked_mean=U.masked_mean,
)
M = load(
    "openrlhf",
    "openrlhf/trainer/ppo_utils/experience_maker.py",
    ["compute_advantages_and_returns", "get_cumulative_returns"],
    compute_reward=U.compute_reward,
    apply_length_penalties=lambda *_: None,
    itertools=itertools,
    logger=NS(warning=lambda *a: None),
)
import re

assert re.search(r"KL_IS_WEIGHT_CLIP = 10\.0", text("openrlhf", "openrlhf/models/utils.py"))


def draw(rng):
    b = draw_batch(rng, equal=True)
    lab = []
    st = {}
    v = {}
    p = lambda q: rng.random() < q
    cfg = {}
    gspo = p(0.35)
    lab.append("gspo" if gspo else "ppo")
    lo, hi = float(rng.uniform(0.05, 0.9)), float(rng.uniform(0.05, 4))
    cfg.update(clip_eps_low=lo, clip_eps_high=hi)
    v.update(epsilon_low=lo, epsilon_high=hi)
    if p(0.4):
        c = float(rng.uniform(1.01, 8))
        cfg["dual_clip"] = c
        v["dual_clip"] = c
        lab.append("dual")
    variant = "openrlhf/gspo" if gspo else "openrlhf/ppo"
    if gspo:
        cfg["policy_loss_type"] = "gspo"
    if p(0.4):
        cfg["token_level_loss"] = False
        lab.append("seqmean")
        if not gspo:
            st["aggregate"] = "openrlhf/seq-mean-token-mean"
    k = rng.choice(["off", "clip", "tok", "seq", "tok-kl", "seq-kl", "tok-tv", "seq-tv"])
    lab.append(k)
    if k != "off":
        cfg["is_correction_level"] = "seq" if k.startswith("seq") else "token"
        if k == "clip":
            cfg["is_correction_mode"] = "clip"
        bl, bh = float(rng.uniform(0.1, 0.99)), float(rng.uniform(1, 3))
        if k.endswith("kl"):
            cfg["is_correction_gating"] = "binary_kl"
            bl = 0.0
            bh = float(rng.exponential(0.05))
        if k.endswith("tv"):
            cfg["is_correction_gating"] = "tv"
            bl = 0.0
            bh = float(rng.exponential(0.1))
        cfg["is_correction_threshold"] = [bl, bh]
        if gspo:
            variant = "openrlhf/gspo-is"
        elif "-" in k:
            st["correction"] = (
                f"openrlhf/{'seq' if 'seq' in k else 'token'}-{'binary-kl' if 'kl' in k else 'tv'}-mask"
            )
            v["rejection_threshold"] = bh
        else:
            st["correction"] = {
                "clip": "token-truncate",
                "tok": "token-mask",
                "seq": "geometric-mask",
            }[k]
            v.update(is_low=bl, is_high=bh)
    est = str(
        rng.choice(["group_norm", "dr_grpo", "rloo", "reinforce_baseline", "flash_reinforce"])
    )
    lab.append(est)
    st["advantage"] = "openrlhf/" + est
    clip = float(rng.choice([10.0, 0.5, 1.0]))
    v["reward_clip"] = clip
    kt = str(rng.choice(["k1", "k2", "k3"]))
    beta = float(rng.choice([0, 0.01, 1.0]) * rng.uniform(0.5, 2))
    v["beta"] = beta
    inloss = p(0.6)
    unb = p(0.5)
    lab.append(
        kt + ("loss" if inloss else "reward") + ("+" if unb and inloss else "") if beta else "nokl"
    )
    if inloss:
        st["kl"] = f"openrlhf/{kt}+" if unb else kt
    else:
        st["kl"] = f"{kt}-in-reward"
    ent = float(rng.choice([0, 0.1, -0.3]))
    v["entropy_coef"] = ent
    if ent:
        lab.append("ent")

    def theirs(x):
        args = NS(
            algo=NS(advantage=NS(estimator=est, gamma=1.0, lambd=1.0, no_std_norm=False)),
            rollout=NS(n_samples_per_prompt=b.size),
            reward=NS(clip_range=(-clip, clip)),
        )
        mk = NS(
            strategy=NS(args=args),
            kl_ctl=NS(value=beta),
            advantage_estimator=est,
            get_cumulative_returns=lambda *a: M.get_cumulative_returns(None, *a),
        )
        kl = (
            torch.zeros_like(x.old)
            if inloss
            else U.compute_approx_kl(x.old, x.ref, kl_estimator=kt)
        )
        kl = kl * x.mask  # below
        e = NS(index=list(range(b.R)), rewards=x.rewards, kl=kl, action_mask=x.mask, info={})
        M.compute_advantages_and_returns(mk, [e])
        tot = L.PolicyLoss(**cfg)(x.new, x.old, e.advantages, x.mask, x.gen)[0]
        if inloss and beta > 0:
            tot = tot + beta * L.aggregate_loss(
                U.compute_approx_kl(x.new, x.ref, x.old, kt, unb), x.mask
            )
        return tot - ent * L.aggregate_loss(x.ent, x.mask)

    return dict(batch=b, theirs=theirs, variant=variant, stages=st, values=v, label=lab)
