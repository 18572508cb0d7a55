from common import *
import io
from contextlib import redirect_stdout

N = "NVIDIA-NeMo+RL"
U = load(
    N,
    "nemo_rl/algorithms/utils.py",
    [
        "calculate_kl",
        "masked_mean",
        "calculate_baseline_and_std_per_prompt",
        "get_gdpo_reward_component_keys",
    ],
)
L = load(
    N,
    "nemo_rl/algorithms/loss/loss_functions.py",
    ["ClippedPGLossConfig", "ClippedPGLossFn"],
    calculate_kl=U.calculate_kl,
    masked_mean=U.masked_mean,
)
A = load(
    N,
    "nemo_rl/algorithms/advantage_estimator.py",
    [
        "GRPOAdvantageEstimator",
        "OPDAdvantageEstimator",
        "ReinforcePlusPlusAdvantageEstimator",
        "GDPOAdvantageEstimator",
    ],
    **vars(U),
)
S = load(
    N,
    "nemo_rl/algorithms/grpo.py",
    ["compute_and_apply_seq_logprob_error_masking", "_clip_grpo_advantages"],
)


def sh(t):
    return torch.cat([torch.zeros_like(t[:, :1]), t], 1)


def draw(rng):
    est_first = str(rng.choice(["loo", "mean", "loo-nostd", "mean-nostd", "rpp", "rpp-raw", "opd"]))
    b = draw_batch(rng)
    lab = []
    st = {}
    v = {}
    cfg = {}
    p = lambda q: rng.random() < q
    # loss form
    form = rng.choice(["grpo", "gspo", "cispo", "reinforce", "on-policy"])
    lab.append(form)
    variant = {
        "grpo": "nemo-rl/grpo",
        "gspo": "nemo-rl/gspo",
        "cispo": "nemo-rl/cispo",
        "reinforce": "nemo-rl/reinforce",
        "on-policy": "nemo-rl/on-policy",
    }[form]
    lo, hi = float(rng.uniform(0.05, 0.9)), float(rng.uniform(0.05, 4))
    cfg.update(ratio_clip_min=lo, ratio_clip_max=hi)
    if form in ("grpo", "gspo", "cispo"):
        v.update(epsilon_low=lo, epsilon_high=hi)
    if form in ("grpo", "gspo") and p(0.4):
        c = float(rng.uniform(1.01, 8))
        cfg["ratio_clip_c"] = c
        v["dual_clip"] = c
        lab.append("dual")
    if form == "cispo":
        cfg["use_cispo"] = True
    if form == "reinforce":
        cfg["disable_ppo_ratio"] = True
    if form == "on-policy":
        cfg["force_on_policy_ratio"] = True
    tok = form != "gspo"
    if form == "gspo":
        cfg.update(sequence_level_importance_ratios=True, token_level_loss=False)
    elif form != "cispo" and p(0.4):
        cfg["token_level_loss"] = False
        tok = False
        st["aggregate"] = "nemo-rl/response-mean"
        lab.append("seqmean")
    # correction
    k = rng.choice(["none", "plain", "tis", "icepop", "seq-mask-tis", "error"])
    if form == "gspo" and k == "seq-mask-tis":
        k = "tis"
    lab.append(k)
    thr = None
    seq = form == "gspo"
    if form in ("reinforce", "on-policy") and not tok and p(0.4) and k != "seq-mask-tis":
        cfg["sequence_level_importance_ratios"] = True
        seq = True
        lab.append("seq-is")
    if k in ("plain", "tis", "icepop", "seq-mask-tis"):
        cfg["use_importance_sampling_correction"] = True
        bl, bh = float(rng.uniform(0.1, 0.99)), float(rng.uniform(1.0, 3))
        if k == "seq-mask-tis":
            bl, bh = 1 - (1 - bl) * 0.3, 1 + (bh - 1) * 0.2
        if k == "plain":
            st["correction"] = "sequence-truncate" if seq else "token-truncate"
            v.update(is_low=None, is_high=None)
        else:
            cfg["truncated_importance_sampling_type"] = k
            cfg["truncated_importance_sampling_ratio"] = bh
            v["is_high"] = bh
            if k != "tis" or p(0.5):
                cfg["truncated_importance_sampling_ratio_min"] = bl
                v["is_low"] = bl
            else:
                v["is_low"] = None
            st["correction"] = {
                "tis": "sequence-truncate" if seq else "token-truncate",
                "icepop": "sequence-mask" if seq else "token-mask",
                "seq-mask-tis": "geometric-mask",
            }[k]
    elif k == "error":
        thr = float(1 + rng.exponential(0.3))
        st["correction"] = "nemo-rl/seq-logprob-error"
        v["seq_logprob_error_threshold"] = thr
    else:
        st["correction"] = "none"
    if (
        form != "on-policy"
        and k in ("plain", "tis", "icepop", "seq-mask-tis")
        and not est_first.startswith("rpp")
        and p(0.4)
    ):
        thr = float(1 + rng.exponential(0.3))
        st["correction"] = "nemo-rl/seq-logprob-error-" + st["correction"]
        v["seq_logprob_error_threshold"] = thr
        lab.append("error+is")
    if form == "on-policy" and k not in ("none", "error"):
        st["correction"] = "nemo-rl/on-policy-" + st["correction"]
    # kl
    est = est_first
    0 and rng.choice(["loo", "mean", "loo-nostd", "mean-nostd", "rpp", "rpp-raw", "opd"])
    lab.append(est)
    beta = float(rng.choice([0, 0.01, 1.0]) * rng.uniform(0.5, 2))
    kt = str(rng.choice(["k1", "k2", "k3"]))
    inrew = False
    cfg.update(reference_policy_kl_penalty=beta, reference_policy_kl_type=kt)
    v["beta"] = beta
    if est.startswith("rpp") and p(0.7):
        inrew = True
        cfg["use_kl_in_reward"] = True
        st["kl"] = f"{kt}-in-reward"
        lab.append("inreward")
    else:
        roll = p(0.4)
        if roll:
            cfg["use_on_policy_kl_approximation"] = True
            lab.append("klroll")
        st["kl"] = f"nemo-rl/{kt}" + ("-rollout" if roll else "")
        ci = [None, 20.0, float(rng.uniform(0.2, 3))][rng.integers(3)]
        co = [None, 10.0, float(rng.uniform(0.1, 3))][rng.integers(3)]
        cfg.update(kl_input_clamp_value=ci, kl_output_clamp_value=co)
        v.update(kl_input_clamp=ci, kl_output_clamp=co)
    lab.append(kt if beta else "nokl")
    st["advantage"] = {
        "loo": "nemo-rl/grpo",
        "mean": "nemo-rl/group-std",
        "loo-nostd": "nemo-rl/leave-one-out",
        "mean-nostd": "nemo-rl/group-mean",
        "rpp": "nemo-rl/reinforce_plus_plus",
        "rpp-raw": "nemo-rl/reinforce_plus_plus-raw",
        "opd": "nemo-rl/opd",
    }[est]
    if est == "mean":
        v.update(std_ddof=1, std_eps=1e-6, std_min=0.0)
    ac = [None, None]
    if p(0.3):
        ac = [
            -float(rng.uniform(0.1, 2)) if p(0.7) else None,
            float(rng.uniform(0.1, 2)) if p(0.7) else None,
        ]
        if CLIPALL or est == "loo":
            v.update(advantage_clip_low=ac[0], advantage_clip_high=ac[1])
        else:
            ac = [None, None]
        if ac != [None, None]:
            lab.append("advclip")

    def theirs(x):
        c = L.ClippedPGLossConfig(**cfg)
        data = {
            "token_mask": sh(x.mask),
            "sample_mask": torch.ones(len(x.mask)),
            "prev_logprobs": sh(x.old),
            "generation_logprobs": sh(x.gen),
            "reference_policy_logprobs": sh(x.ref),
        }
        fn = L.ClippedPGLossFn(c)
        if thr is not None:
            with redirect_stdout(io.StringIO()):
                S.compute_and_apply_seq_logprob_error_masking(data, x.rewards, thr)
        ec = NS(
            normalize_rewards="nostd" not in est,
            use_leave_one_out_baseline=est.startswith("loo"),
            minus_baseline=est == "rpp",
        )
        cls = {
            "rpp": A.ReinforcePlusPlusAdvantageEstimator,
            "rpp-raw": A.ReinforcePlusPlusAdvantageEstimator,
            "opd": A.OPDAdvantageEstimator,
        }.get(est, A.GRPOAdvantageEstimator)
        lc = NS(
            use_kl_in_reward=inrew, reference_policy_kl_penalty=beta, reference_policy_kl_type=kt
        )
        e = cls(ec, lc)
        if est == "opd":
            e._compute_metrics = lambda *a: None
        m = x.mask * data["sample_mask"][:, None]
        logs = dict(
            logprobs_policy=x.old,
            logprobs_reference=x.ref,
            prev_logprobs=x.old,
            teacher_logprobs=x.ref,
        )
        adv = e.compute_advantage(x.groups[:, None], x.rewards.clone(), m, **logs)
        adv = S._clip_grpo_advantages(adv, NS(advantage_clip_low=ac[0], advantage_clip_high=ac[1]))
        data["advantages"] = sh(adv)
        # 1e-8 that it adds to both counts is known and not ours
        return fn(
            x.new,
            data,
            (data["sample_mask"].sum() - 1e-8).clamp(min=1e-9),
            (m.sum() - 1e-8).clamp(min=1e-9),
        )[0]

    return dict(batch=b, theirs=theirs, variant=variant, stages=st, values=v, label=lab)


CLIPALL = True
