"""Every row of a paper, by its formula."""

from __future__ import annotations

from collections.abc import Callable

from mpmath import mpf

from exactness.advantages import (
    deepseek,
    gdpo,
    gpg,
    icepop,
    lite_ppo,
    max_rl,
    opo,
    pass_at_k,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
    tis,
)
from exactness.cases import Case
from exactness.recent import (
    bapo,
    ce_gppo,
    dcpo,
    gfpo,
    gfpo_efficiency,
    minirl,
    nsr,
    psr,
    w_reinforce,
)
from exactness.surrogates import (
    bnpo,
    cispo,
    clip_cov,
    dapo,
    dapo_prompt,
    dppo_kl,
    dppo_tv,
    dr,
    dro,
    dual_clip,
    fipo,
    gmpo,
    grpo,
    grpo_k1,
    grpo_unbiased_kl,
    gspo,
    gspo_token,
    kl_cov,
    luspo,
    real,
    sapo,
    scale_rl,
    topr,
    two_sided,
    vespo,
)

ROWS: dict[str, Callable[[Case], mpf]] = {
    "grpo": grpo,
    "dr": dr,
    "grpo-unbiased-kl": grpo_unbiased_kl,
    "grpo-k1": grpo_k1,
    "dapo": dapo,
    "bnpo": bnpo,
    "gspo": gspo,
    "cispo": cispo,
    "dapo-prompt": dapo_prompt,
    "gspo-token": gspo_token,
    "luspo": luspo,
    "gmpo": gmpo,
    "sapo": sapo,
    "vespo": vespo,
    "dppo-tv": dppo_tv,
    "dppo-kl": dppo_kl,
    "dro": dro,
    "topr": topr,
    "kl-cov": kl_cov,
    "clip-cov": clip_cov,
    "two-sided": two_sided,
    "dual-clip": dual_clip,
    "fipo": fipo,
    "real": real,
    "lite-ppo": lite_ppo,
    "rloo": rloo,
    "reinforce++": reinforce_plus_plus,
    "reinforce++-baseline": reinforce_plus_plus_baseline,
    "opo": opo,
    "gpg": gpg,
    "pass-at-k": pass_at_k,
    "max-rl": max_rl,
    "gdpo": gdpo,
    "scale-rl": scale_rl,
    "tis": tis,
    "icepop": icepop,
    "deepseek-v3.2": deepseek,
    "ce-gppo": ce_gppo,
    "dcpo": dcpo,
    "bapo": bapo,
    "minirl": minirl,
    "psr": psr,
    "nsr": nsr,
    "w-reinforce": w_reinforce,
    "gfpo": gfpo,
    "gfpo-efficiency": gfpo_efficiency,
}
"""Every row of a paper; those of ``GIVEN`` with hyperparameters at which they do something."""

GIVEN: dict[str, dict[str, object]] = {
    "kl-cov": {"kl_cov_ratio": 0.3},
    "clip-cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_seed": 7},
    "deepseek-v3.2": {"off_policy_mask_threshold": 0.1},
    "gfpo": {"gfpo_keep": 2},
    "gfpo-efficiency": {"gfpo_keep": 2},
}

SHIFTED = ("psr", "nsr", "w-reinforce")
"""Rows that tell rewards above 0 from others; the cases have hardly any others."""
