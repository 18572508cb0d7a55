from common import *

N = "THUDM+slime"
O = load(
    N,
    "slime/utils/ppo_utils.py",
    [
        "compute_approx_kl",
        "compute_cispo_loss",
        "compute_gspo_kl",
        "compute_opsm_mask",
        "compute_policy_loss",
        "get_reinforce_plus_plus_baseline_advantages",
        "get_grpo_returns",
    ],
)
E_ = load(
    N,
    "slime/backends/megatron_utils/loss.py",
    [
        "icepop_function",
        "vanilla_tis_function",
        "apply_opd_kl_to_advantages",
        "policy_loss_function",
        "compute_advantages_and_returns",
    ],
    Any=object,
    Callable=object,
    Namespace=NS,
    RolloutBatch=dict,
    all_gather_with_cp=lambda t, *a: t,
    _maybe_capture_log_probs=lambda *a: None,
    get_rollout_top_p_logprob_kwargs=lambda *a: {},
    **vars(O),
    mpu=NS(
        is_pipeline_last_stage=lambda: True,
        get_context_parallel_world_size=lambda: 1,
        get_data_parallel_group=lambda **k: None,
        get_context_parallel_rank=lambda: 0,
    ),
)
W = load(N, "slime/utils/distributed_utils.py", ["distributed_masked_whiten"])
RW = load(N, "slime/ray/rollout.py", ["_post_process_rewards"])
G = E_.policy_loss_function.__globals__
G.update(
    distributed_masked_whiten=W.distributed_masked_whiten,
    load_function=lambda p: E_.icepop_function,
)
E_.compute_advantages_and_returns.__globals__.update(G)


def draw(rng):
    b = draw_batch(rng, equal=True)
    lab = []
    st = {}
    p = lambda q: rng.random() < q
    v = {}
    a = NS(
        advantage_estimator=str(
            rng.choice(["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"])
        ),
        kl_coef=0.0,
        kl_loss_type=str(rng.choice(["k1", "k2", "k3", "low_var_kl"])),
        use_kl_loss=False,
        kl_loss_coef=0.0,
        use_rollout_logprobs=False,
        custom_advantage_function_path=None,
        use_opd=False,
        opd_kl_coef=1.0,
        opd_type="x",
        normalize_advantages=p(0.4),
        use_opsm=p(0.3),
        opsm_delta=float(rng.choice([1e-4, 0.05, 0.3])),
        eps_clip=float(rng.uniform(0.05, 0.9)),
        eps_clip_high=float(rng.uniform(0.05, 4)),
        eps_clip_c=None,
        use_tis=p(0.4),
        tis_clip_low=float(rng.uniform(0, 0.9)),
        tis_clip=float(rng.uniform(1, 3)),
        get_mismatch_metrics=False,
        custom_tis_function_path=None,
        entropy_coef=float(rng.choice([0, 0.1, -0.2])),
        calculate_per_token_loss=p(0.4),
        use_unbiased_kl=False,
        rewards_normalization=p(0.8),
        grpo_std_normalization=p(0.8),
        n_samples_per_prompt=b.size,
        rollout_batch_size=b.R // b.size,
        gamma=1.0,
        lambd=1.0,
    )
    if p(0.4):
        a.eps_clip_c = float(rng.uniform(1.01, 8))
    if a.advantage_estimator.startswith("rein"):
        a.normalize_advantages = True
    if p(0.5):
        a.use_kl_loss = True
        a.kl_loss_coef = float(rng.uniform(0.01, 1))
        a.use_unbiased_kl = p(0.5)
    elif p(0.4):
        a.kl_coef = float(rng.uniform(0.01, 1))
    elif p(0.3):
        a.kl_loss_coef = float(rng.uniform(0.01, 1))
        lab.append("coef-without-use")
    if p(0.2):
        a.use_opd = True
        a.opd_kl_coef = float(rng.uniform(0.1, 1))
    if not a.use_tis and p(0.3):
        a.use_rollout_logprobs = True
    if a.use_tis and p(0.3):
        a.custom_tis_function_path = "icepop"
    if MODE == "mild":
        a.rewards_normalization = a.grpo_std_normalization = True
    names = [
        "advantage_estimator",
        "kl_coef",
        "kl_loss_type",
        "use_kl_loss",
        "kl_loss_coef",
        "use_rollout_logprobs",
        "use_opd",
        "opd_kl_coef",
        "normalize_advantages",
        "use_opsm",
        "opsm_delta",
        "eps_clip",
        "eps_clip_high",
        "eps_clip_c",
        "use_tis",
        "tis_clip_low",
        "tis_clip",
        "entropy_coef",
        "calculate_per_token_loss",
        "use_unbiased_kl",
        "rewards_normalization",
        "grpo_std_normalization",
    ]
    fw = {"name": "slime", **{n: getattr(a, n) for n in names}}
    if a.custom_tis_function_path:
        fw["custom_tis_function_path"] = "slime.backends.megatron_utils.loss.icepop_function"
    lab += (
        [a.advantage_estimator]
        + [n for n in names if getattr(a, n) is True]
        + (["kl_coef"] if a.kl_coef else [])
        + (["dual"] if a.eps_clip_c else [])
        + (["icepop"] if a.custom_tis_function_path else [])
        + (
            ["noRN"]
            if not a.rewards_normalization
            else ["noSTD"]
            if not a.grpo_std_normalization
            else []
        )
        + ([a.kl_loss_type] if a.use_kl_loss or a.kl_coef else [])
    )

    def theirs(x):
        ls = lambda t: [t[i, : b.lens[i]] for i in range(b.R)]
        mgr = NS(args=a, custom_reward_post_process_func=None)
        samples = [NS(get_reward_value=lambda _, r=r: r) for r in b.rewards.tolist()]
        scores = RW._post_process_rewards(mgr, samples)[1]
        d = dict(
            log_probs=ls(x.old),
            rollout_log_probs=ls(x.gen),
            ref_log_probs=ls(x.ref),
            teacher_log_probs=ls(x.ref),
            rewards=scores,
            response_lengths=b.lens.tolist(),
            total_lengths=b.lens.tolist(),
            loss_masks=ls(x.mask),
            unconcat_tokens=None,
        )
        E_.compute_advantages_and_returns(a, d)
        G["get_log_probs_and_entropy"] = lambda *_, **k: (
            None,
            {"log_probs": ls(x.new), "entropy": ls(x.ent)},
        )
        lens = b.lens.tolist()

        def reducer(tl, rl, masks, sums, per_token):
            sizes = [m.shape[0] for m in masks]
            if per_token:
                return lambda v: (
                    sum(((q * m).sum() for q, m in zip(v.split(sizes), masks)), torch.tensor(0.0))
                    / sum(m.sum().clamp(min=1) for m in masks)
                )
            return lambda v: (
                sum(
                    (
                        (q * m).sum() / torch.clamp_min(m.sum(), 1)
                        for q, m in zip(v.split(sizes), masks)
                    ),
                    torch.tensor(0.0),
                )
                / len(masks)
            )

        G["get_sum_of_sample_mean"] = reducer
        d["rollout_mask_sums"] = None
        return E_.policy_loss_function(
            a, d, torch.zeros(1), reducer(0, 0, d["loss_masks"], None, a.calculate_per_token_loss)
        )[0]

    return dict(
        batch=b,
        theirs=theirs,
        variant=None,
        stages={},
        values={},
        label=lab,
        more={"framework": fw},
        fw=fw,
    )


MODE = "all"
