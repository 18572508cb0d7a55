from common import *
import collections

N = "NovaSky-AI+SkyRL"
R = "skyrl/backends/skyrl_train/utils"
U = load(N, R + "/torch_utils.py", ["masked_mean", "safe_exp_delta"])
C = load(
    N,
    R + "/off_policy_correction_utils.py",
    [
        "apply_off_policy_correction",
        "compute_off_policy_correction",
        "compute_outlier_token_mask",
        "compute_sequence_mask",
        "compute_tis_ratio",
        "compute_token_mask",
        "off_policy_correction_enabled",
    ],
    **vars(U),
)
sys.modules.setdefault("loguru", NS(logger=NS(warning=lambda *a: None)))
P = load(
    N,
    R + "/ppo_utils.py",
    [
        "dppo_policy_loss",
        "sapo_policy_loss",
        "gspo_policy_loss",
        "compute_policy_loss_cispo",
        "rollout_is_policy_loss",
        "compute_policy_loss_clip_cov",
        "compute_policy_loss_kl_cov",
        "ppo_policy_loss",
        "importance_sampling_loss",
        "apply_loss_reduction_to_advantages_minibatch",
        "reduce_loss",
        "compute_approx_kl",
        "compute_grpo_outcome_advantage",
        "compute_rloo_outcome_advantage",
        "compute_maxrl_advantage",
        "masked_whiten",
        "masked_var",
        "compute_reinforce_plus_plus_outcome_advantage",
    ],
    **vars(U),
    **vars(C),
)
tree = ast.parse(text(N, "skyrl/train/trainer.py"))
step = [
    n
    for n in ast.walk(tree)
    if isinstance(n, ast.If)
    and ast.unparse(n.test) == "self.cfg.trainer.algorithm.advantage_batch_normalize"
][0]
step = compile(ast.Module(body=step.body, type_ignores=[]), "t", "exec")


def draw(rng):
    b = draw_batch(rng)
    lab = []
    st = {}
    v = {}
    p = lambda q: rng.random() < q
    f = str(
        rng.choice(
            [
                "regular",
                "dual_clip",
                "gspo",
                "sapo",
                "cispo",
                "rollout_is",
                "dppo",
                "dppo-kl",
                "kl_cov",
                "clip_cov",
                "importance_sampling",
            ]
        )
    )
    lab.append(f)
    lo, hi = float(rng.uniform(0.05, 0.9)), float(rng.uniform(0.05, 4))
    cc = float(rng.uniform(1.01, 8))
    tp, tn = float(rng.uniform(0.5, 2)), float(rng.uniform(0.5, 2))
    dl, dh = float(rng.exponential(0.1)), float(rng.exponential(0.1))
    frac, coef = float(rng.uniform(0.05, 0.9)), float(rng.uniform(0.01, 1))
    cl, cu = sorted(rng.exponential(0.1, 2).tolist())
    anchor = "old"
    cfg = NS(
        eps_clip_low=lo,
        eps_clip_high=hi,
        policy_loss_type="dual_clip" if f == "dual_clip" else "regular",
        clip_ratio_c=cc,
        sapo=NS(tau_pos=tp, tau_neg=tn),
        cispo=NS(cispo_anchor="old", cispo_eps_clip_low=lo, cispo_eps_clip_high=hi),
        dppo=NS(
            dppo_type="binary_kl" if f == "dppo-kl" else "binary_tv", delta_low=dl, delta_high=dh
        ),
        kl_cov=NS(kl_cov_frac=frac, ppo_kl_coef=coef),
        clip_cov=NS(clip_ratio=1.0, clip_cov_lb=cl, clip_cov_ub=cu),
    )
    if f in ("regular", "dual_clip", "gspo", "rollout_is", "clip_cov"):
        v.update(epsilon_low=lo, epsilon_high=hi)
    if f == "dual_clip":
        v["dual_clip"] = cc
    if f == "cispo":
        st["surrogate"] = "cispo"
        v.update(epsilon_low=lo, epsilon_high=hi)
        if p(0.4):
            cfg.cispo.cispo_anchor = anchor = "rollout"
            st["ratio"] = "rollout"
            lab.append("rollout-anchor")
    if f == "sapo":
        v.update(tau_pos=tp, tau_neg=tn)
    if "dppo" in f:
        v.update(divergence_low=dl, divergence_high=dh)
    if f == "kl_cov":
        v.update(kl_cov_ratio=frac, ppo_kl_coef=coef)
    if f == "clip_cov":
        v.update(clip_cov_ratio=1.0, clip_cov_lb=cl, clip_cov_ub=cu)
    summed = f in ("kl_cov", "clip_cov", "importance_sampling")
    red = "token_mean" if f != "importance_sampling" else "sum"
    msl = int(rng.integers(5, 30))
    if not summed:
        red = str(
            rng.choice(["token_mean", "sequence_mean", "seq_mean_token_sum_norm", "prompt_mean"])
        )
        lab.append(red)
        st["aggregate"] = red
        if red == "seq_mean_token_sum_norm":
            v["max_completion_length"] = msl
    off = dict(
        tis_ratio_type=None,
        token_tis_ratio_clip_high=2.0,
        sequence_tis_ratio_clip_high=5.0,
        sequence_mask_metric=None,
        geo_mask_high=1.01,
        geo_mask_low=0.99,
        product_mask_high=2.0,
        product_mask_low=0.5,
        outlier_token_is_threshold_low=None,
        outlier_token_is_threshold_high=None,
        token_mask_is_threshold_low=None,
        token_mask_is_threshold_high=None,
    )
    if not summed and p(0.6):
        u = rng.uniform
        if p(0.6):
            off.update(
                tis_ratio_type=str(rng.choice(["token", "sequence"])),
                token_tis_ratio_clip_high=float(u(0.5, 3)),
                sequence_tis_ratio_clip_high=float(u(0.5, 6)),
            )
        if p(0.5):
            off.update(
                sequence_mask_metric=str(rng.choice(["geometric", "product"])),
                geo_mask_low=float(u(0.5, 1)),
                geo_mask_high=float(u(1, 2)),
                product_mask_low=float(u(0.1, 1)),
                product_mask_high=float(u(1, 5)),
            )
        if p(0.3):
            off["outlier_token_is_threshold_low"] = float(u(0.1, 0.9))
        if p(0.3):
            off["outlier_token_is_threshold_high"] = float(u(1, 4))
        if p(0.4):
            off["token_mask_is_threshold_low"] = float(u(0.1, 1))
        if p(0.4):
            off["token_mask_is_threshold_high"] = float(u(1, 4))
        st["correction"] = "skyrl/off-policy"
        v.update(off)
        lab.append("off")
    cfg.off_policy_correction = NS(**off)
    est = str(rng.choice(["grpo", "grpo_nostd", "rloo", "maxrl"] + ([] if summed else ["norm"])))
    lab.append(est)
    st["advantage"] = {
        "grpo": "skyrl/grpo",
        "grpo_nostd": "skyrl/grpo_nostd",
        "rloo": "skyrl/rloo",
        "maxrl": "skyrl/maxrl",
        "norm": "skyrl/batch-normalised",
    }[est]
    if est == "norm":
        v.update(response_length=b.T, global_batch_size=b.R)
    kt = str(rng.choice(["k1", "abs", "k2", "k3"]))
    beta = float(rng.choice([0, 0.01, 1.0]) * rng.uniform(0.5, 2))
    v["beta"] = beta
    inrew = p(0.3) and est != "norm"
    lab.append((kt + ("rew" if inrew else "")) if beta else "nokl")
    name = {"k3": "verl/low_var_kl"}.get(kt, kt)
    if inrew:
        name = {"k3": "verl/low_var_kl"}.get(kt, kt) + "-in-reward"
    st["kl"] = name
    ent = 0.0
    if p(0.3):
        ent = float(rng.choice([0.1, -0.2]))
        v["entropy_coef"] = ent
        lab.append("ent")
    fn = {
        "regular": P.ppo_policy_loss,
        "dual_clip": P.ppo_policy_loss,
        "gspo": P.gspo_policy_loss,
        "sapo": P.sapo_policy_loss,
        "cispo": P.compute_policy_loss_cispo,
        "rollout_is": P.rollout_is_policy_loss,
        "dppo": P.dppo_policy_loss,
        "dppo-kl": P.dppo_policy_loss,
        "kl_cov": P.compute_policy_loss_kl_cov,
        "clip_cov": P.compute_policy_loss_clip_cov,
        "importance_sampling": P.importance_sampling_loss,
    }[f]
    cfg.loss_reduction = red

    def theirs(x):
        last = x.mask.shape[1] - 1 - x.mask.flip(1).argmax(1)
        tab = torch.zeros_like(x.mask).scatter_(1, last.long()[:, None], x.rewards[:, None])
        if inrew:
            tab = tab - P.compute_approx_kl(
                x.old, x.ref, loss_mask=x.mask, kl_estimator_type=kt
            ) * max(0, beta)
        idx = np.array([f"g{g}" for g in b.groups], dtype=object)
        if est == "rloo":
            adv = P.compute_rloo_outcome_advantage(tab, x.mask, idx)[0]
        elif est == "maxrl":
            adv = P.compute_maxrl_advantage(tab, x.mask, idx)[0]
        else:
            adv = P.compute_grpo_outcome_advantage(
                tab, x.mask, idx, grpo_norm_by_std=est != "grpo_nostd"
            )[0]
        if est == "norm":
            sp = {"advantages": adv, "response_mask": x.mask, "data": {}}
            exec(step, sp)
            adv = sp["data"]["advantages"]
        if red != "sum":
            e = np.flatnonzero(np.diff(b.groups)) + 1
            e = [0, *e.tolist(), b.R]
            adv = P.apply_loss_reduction_to_advantages_minibatch(
                adv, x.mask, red, b.R, msl, list(zip(e[:-1], e[1:]))
            )
        tot = fn(x.new, x.old, adv, cfg, x.mask, x.gen)[0]
        if not inrew and beta:
            tot = (
                tot
                + beta
                * U.masked_mean(
                    P.compute_approx_kl(x.new, x.ref, loss_mask=x.mask, kl_estimator_type=kt),
                    x.mask,
                    dim=-1,
                ).mean()
            )
        return tot - ent * U.masked_mean(x.ent, x.mask)

    var = {"dppo-kl": "skyrl/dppo-kl"}.get(f, "skyrl/" + f)
    return dict(batch=b, theirs=theirs, variant=var, stages=st, values=v, label=lab)
