"""Wrong losses; most are one change to a loss with ordinary settings of a trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trials.strangers.losses import (
    Case,
    Recipe,
    Rows,
    advantages,
    clamp,
    informative,
    log_ratio,
    penalty,
    reduce,
    surrogate,
    weights,
    whitened,
)
from trials.strangers.mistake import Mistake, both
from trials.strangers.settings import Wish
from trials.tape import Array

ENGINE = r"correction|importance.sampling|\btis\b|rollout|vllm|engine|sampler|icepop"
KL = r"\b(kl|penalty|k3|k1|beta)\b|β"
TRL, VERL, PAPER = ("trl",), ("verl",), ("paper",)
RETURNS = ("-v", "dapo", "--advantage", "returns", "-p", "gamma=1", "--kl", "k1-in-reward")
SKYRL = ("-v", "skyrl/grpo")
SEQUENCE: dict[str, Any] = {"sequence": True, "low": 0.02, "high": 0.03}
TIS: dict[str, Any] = {"correction": "token", "cap": 2.0}
TOP: dict[str, Any] = {"top": 0.3}


def _wish(*values: Any, **more: Any) -> Wish:
    return Wish(*values, large=True, **more)


def _again(rows: Rows, recipe: Recipe) -> Array:
    return whitened(advantages(rows, recipe)[:, None] * rows.mask, rows.mask)


def _padded_statistics(rows: Rows, recipe: Recipe) -> Array:
    """The padding's zeros count in the mean and the std."""
    plain = advantages(rows, replace(recipe, advantage="group", std=False))[:, None]
    return whitened(plain * rows.mask, np.ones_like(rows.mask)) * rows.mask


def _on_policy(rows: Rows, recipe: Recipe) -> Array:
    return log_ratio(replace(rows, old=np.real(rows.new)), recipe)


def _by_engine(rows: Rows, recipe: Recipe) -> Array:
    return log_ratio(replace(rows, old=rows.rollout), recipe)


def _current_weight(rows: Rows, recipe: Recipe, adv: Array) -> Array:
    return weights(replace(rows, old=np.real(rows.new)), recipe, adv)


def _cispo_window(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    return clamp(np.real(rho), 0.8, recipe.high) * adv * rows.new


def _sapo(case: Case, how: str) -> Case:
    positive, negative = case.recipe.taus
    if how == "one temperature":
        return case.by(taus=(positive, positive))

    def unscaled(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
        tau = np.where(adv > 0, positive, negative)
        return surrogate(rows, recipe, rho, adv) * (tau / 4.0)

    return case.but(surrogate=unscaled)


def _token_weighted(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    return penalty(rows, recipe, np.exp(rows.new - rows.old))


def _of_the_mean(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    d = (rows.ref - rows.new) * rows.mask
    mean = d.sum(-1, keepdims=True) / rows.lengths[:, None] + 0.0 * d
    return np.exp(mean) - mean - 1.0


def _kl_by_response(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return reduce(rows, replace(recipe, reduction="response"), values, mask)


def _untied(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    live = [np.ptp(rows.rewards[rows.groups == group]) > 0 for group in rows.groups]
    return penalty(rows, recipe, rho) * np.array(live)[:, None]


def _unbiased(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    """The value of k3, with the gradient of the importance-weighted score."""
    score = np.real(rho) * (np.real(rows.new) - rows.ref)
    return np.real(penalty(rows, recipe, rho)) + score * (rows.new - np.real(rows.new))


def _scaled_kl(case: Case, by: int) -> Case:
    return case.but(penalty=lambda rows, recipe, rho: by * penalty(rows, recipe, rho))


def _numerator(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return (values * rows.written).sum((-2, -1)) / mask.sum() / recipe.steps


def _without_ends(case: Case) -> Case:
    return case.of(mask=case.rows.mask * ~case.rows.ends)


def _padded_threshold(rows: Rows, recipe: Recipe, adv: Array) -> Array:
    limit = np.quantile(rows.entropies, 1.0 - recipe.top)
    return rows.mask * (rows.entropies >= limit)


def _kept_divide(case: Case) -> Case:
    return case.but(
        reduce=lambda rows, recipe, values, mask: reduce(
            rows, recipe, values, informative(rows, recipe)
        ),
        reduce_kl=reduce,
    )


def _ranks(case: Case, count: int) -> Case:
    """Each rank divides by its own tokens, and the ranks are averaged."""

    def over(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
        parts = np.array_split(np.arange(len(mask)), count)
        means = [(values * mask)[part].sum((-2, -1)) / mask[part].sum() for part in parts]
        return sum(means) * (1.0 / count / recipe.steps)

    return case.but(reduce=over)


def _all_slots(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return (values * mask).sum((-2, -1)) / mask.size / recipe.steps


def _sixteenth(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return reduce(rows, recipe, values, mask) / 16.0


def _bonus_of_all(rows: Rows, recipe: Recipe) -> Array:
    return np.asarray((rows.entropies * rows.mask).sum() / rows.mask.sum() / recipe.steps)


MISTAKES = [
    Mistake(
        "group's std for the batch's",
        "huggingface/trl#3991",
        lambda case: case.by(advantage="group"),
        both(r"\bstd\b|standard deviation|scale_rewards|normali", r"group"),
        _wish(TRL, recipe={"advantage": "batch"}, framework={"scale_rewards": "batch"}),
        stage="advantage",
    ),
    Mistake(
        "advantages whitened after their normalisation",
        "amazon-science/reskill#12",
        lambda case: case.but(advantages=_again),
        both(
            r"advantage|whiten|normali|standardi",
            r"twice|again|second|doubl|whiten|whole batch|the batch|over (all|the) (rows|tokens)",
        ),
        _wish(("paper", "verl"), ("token",)),
        stage="advantage",
    ),
    Mistake(
        "whitened over the padding",
        "verl-project/verl#1527",
        lambda case: case.but(advantages=_padded_statistics),
        both(r"whiten|normali|standardi|\bmean\b|\bstd\b|statistic|advantage", r"padd|mask|width"),
        _wish(
            PAPER,
            ("token",),
            beta=False,
            recipe={"advantage": "whitened"},
            words=("-v", "dapo", "--advantage", "token-whiten"),
        ),
        stage="advantage",
    ),
    Mistake(
        "current log-probs for the old ones, by sequence",
        "PrimeIntellect-ai/verifiers#320",
        lambda case: case.but(log_ratio=_on_policy),
        r"on.?policy|ratio.{0,60}\b1\b|detach|stop.?grad"
        r"|old.{0,80}(current|new\b|itself|ignored|not (used|read)|missing)",
        _wish(TRL, ("response",), beta=True, recipe=SEQUENCE, spec={"update": 0.4}),
        stage="ratio",
    ),
    Mistake(
        "engine's ratio twice",
        "THUDM/slime#1912",
        lambda case: case.but(log_ratio=_by_engine),
        both(
            ENGINE,
            r"twice|doubl|squar|again|bypass|instead of|in (the )?place of|for (the )?old"
            r"|ratio (is |was )?(against|to|over|with|of)|π_θ ?/ ?π_(rollout|engine)",
        ),
        _wish(
            ("slime",),
            recipe=TIS,
            words=("-v", "slime/tis"),
            columns=("rollout",),
            spec={"engine": 0.2},
        ),
        stage="ratio",
    ),
    Mistake(
        "engine's weight of the current policy",
        "OpenRLHF/OpenRLHF#1098",
        lambda case: case.but(weights=_current_weight),
        both(ENGINE, r"π_θ|current|new (policy|log)|log_probs_new|(instead|place) of (the )?old"),
        _wish(
            ("slime",),
            recipe=TIS,
            words=("-v", "slime/tis"),
            columns=("rollout",),
            spec={"engine": 0.1},
        ),
        stage="correction",
    ),
    Mistake(
        "clip computed, not used",
        "rllm-org/rllm#81",
        lambda case: case.but(surrogate=lambda rows, recipe, rho, adv: rho * adv),
        r"\bclip\w*.{0,80}(not|never|miss|ignored|left out|without|unused)|unclipped|not clipped"
        r"|(\bno|without|missing|drops? the).{0,40}clip",
        _wish(("paper", "verl"), ("token",), spec={"update": 0.4}),
        stage="clip",
    ),
    Mistake(
        "dual clip not passed on",
        "THUDM/slime#2247",
        lambda case: case.by(dual=None),
        r"dual|clip_ratio_c|lower bound.{0,40}(A < 0|negative)|c·A",
        _wish(VERL, beta=True, spec={"update": 0.8}),
        stage="clip",
    ),
    Mistake(
        "two-sided bound not passed on",
        "linkedin/Liger-Kernel#1202",
        lambda case: case.by(delta=None),
        r"two.?sided|\bdelta\b|δ|upper bound.{0,60}(negative|unclipped|A < 0)",
        _wish(TRL, beta=True, recipe={"delta": 1.5}, spec={"update": 0.6}),
        stage="clip",
    ),
    Mistake(
        "CISPO's ratio bounded below",
        "areal-project/AReaL#1412",
        lambda case: case.but(surrogate=_cispo_window),
        r"lower|1 ?[−-] ?ε|\bbelow|epsilon_low|both sides|minimum|areal/cispo|nemo-rl/cispo|\[low",
        _wish(
            TRL,
            ("items",),
            recipe={"surrogate": "cispo", "high": 1.4},
            framework={"loss_type": "cispo"},
            spec={"update": 0.5},
        ),
        stage="clip",
    ),
    Mistake(
        "SAPO's gate simplified",
        "modelscope/ms-swift#6766",
        _sapo,
        both(
            r"tau|τ|temperature|\bgate|sigmoid|sapo|4 ?/",
            r"pos|neg|sign|both|4 ?/|factor|scale|same|\bone\b|divid|missing|without|tau_",
        ),
        _wish(
            TRL,
            ("response",),
            recipe={"surrogate": "sapo", "taus": (1.0, 1.5)},
            hyper={"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.5},
            framework={"loss_type": "sapo"},
        ),
        ("one temperature", "unscaled"),
        stage="clip",
    ),
    Mistake(
        "KL weighted by the token's own ratio",
        "huggingface/trl#6594",
        lambda case: case.but(penalty=_token_weighted),
        both(KL, r"own ratio|token'?s? ratio|token.?level|per token|by token|kl_weight"),
        _wish(
            TRL,
            ("response",),
            beta=True,
            recipe={**SEQUENCE, "weighted": True, "beta": 0.1},
            spec={"reference": 0.5},
        ),
        stage="kl",
    ),
    Mistake(
        "KL's importance weight not passed on",
        "linkedin/Liger-Kernel#1202",
        lambda case: case.by(weighted=False),
        both(KL, r"weigh|ratio|unbiased|bias.?correct|importance"),
        _wish(
            TRL,
            beta=True,
            recipe={"weighted": True, "beta": 0.1},
            spec={"reference": 0.5, "update": 0.3},
        ),
        stage="kl",
    ),
    Mistake(
        "KL without the term of the draw",
        "NVIDIA-NeMo/RL#2506",
        lambda case: case.by(scored=False),
        both(
            KL,
            r"score|gradient|slope|detach|stop.?grad|differentiat|weigh|ratio"
            r"|k3 instead of nemo-rl/k3",
        ),
        _wish(
            PAPER,
            ("token",),
            beta=True,
            recipe={"scored": True, "beta": 0.1},
            words=("-v", "nemo-rl/grpo"),
            spec={"reference": 0.5},
            given=True,
        ),
        value=False,
        stage="kl",
    ),
    Mistake(
        "k3 of the response's mean log ratio",
        "walkinglabs/hands-on-modern-rl#75",
        lambda case: case.but(penalty=_of_the_mean),
        both(
            KL,
            r"sequence|whole response|response.?level|mean log|log ratio.{0,30}(mean|averag)"
            r"|(mean|averag).{0,40}\blog",
        ),
        _wish(PAPER, ("response",), beta=True, recipe={"beta": 0.1}, spec={"reference": 0.5}),
        stage="kl",
    ),
    Mistake(
        "KL averaged by response, the policy term by token",
        "huggingface/trl#2995",
        lambda case: case.but(reduce_kl=_kl_by_response),
        both(KL, r"aggregat|denominat|response|sequence|averag|\bmean\b"),
        _wish(
            ("paper", "trl", "verl"),
            ("token",),
            beta=True,
            recipe={"beta": 0.1},
            spec={"reference": 0.5, "spread": 0.8},
        ),
        stage="kl",
    ),
    Mistake(
        "engine's weight on the KL too",
        "linkedin/Liger-Kernel#1088",
        lambda case: case.but(
            penalty=lambda rows, recipe, rho: (
                penalty(rows, recipe, rho) * weights(rows, recipe, np.zeros((1, 1)))
            )
        ),
        both(KL, ENGINE),
        _wish(
            TRL,
            beta=True,
            recipe={**TIS, "beta": 0.1},
            columns=("rollout",),
            spec={"engine": 0.4, "reference": 0.5},
        ),
        stage="kl",
    ),
    Mistake(
        "KL left out where rewards tie",
        "huggingface/trl#5777",
        lambda case: case.but(penalty=_untied),
        both(
            KL,
            r"\btie|(equal|same|constant) reward|zero.?(std|advantage|signal)|dead|no signal"
            r"|advantages? (is|are|of) (0|zero)|groups? (with|whose|that)|some (groups|responses)",
        ),
        _wish(
            ("paper", "trl"),
            beta=True,
            recipe={"beta": 0.1},
            spec={"reference": 0.5},
            tied=True,
        ),
        stage="kl",
    ),
    Mistake(
        "KL times the context-parallel size",
        "NovaSky-AI/SkyRL#1751",
        _scaled_kl,
        both(KL, r"times|factor|twice|doubl|coefficient|beta|β|scal|rank|parallel|multipl|larger"),
        _wish(
            PAPER,
            ("token",),
            beta=True,
            recipe={"beta": 0.05, "eps": 1e-6, "lone": True, "kl_reduction": "response"},
            words=SKYRL,
            spec={"reference": 0.5},
        ),
        (2, 4),
        stage="kl",
    ),
    Mistake(
        "KL in the reward left out",
        "THUDM/slime#399",
        lambda case: case.by(beta=0.0),
        both(
            KL,
            r"left out|missing|not (applied|subtracted|in|taken|counted)|without|ignored|absent"
            r"|\bno\b|reward|zero|(β|beta) ?(=|is|of|at) ?0",
        ),
        _wish(
            PAPER,
            ("token",),
            beta=True,
            recipe={"advantage": "returns", "beta": 0.1, "in_reward": True},
            words=RETURNS,
            spec={"reference": 0.6},
        ),
        stage="kl",
    ),
    Mistake(
        "k3 with the gradient of the reverse KL",
        "OpenRLHF/OpenRLHF#1309",
        lambda case: case.but(penalty=_unbiased),
        both(KL, r"\bk2\b|gradient|slope|unbiased|score|detach|estimator|straight"),
        _wish(PAPER, ("response",), beta=True, recipe={"beta": 0.1}, spec={"reference": 0.5}),
        value=False,
        stage="kl",
    ),
    Mistake(
        "engine's weights missing at the sequence level",
        "verl-project/verl#3245",
        lambda case: case.by(correction=""),
        both(
            ENGINE,
            r"missing|not (applied|used|multipl|weigh)|\bno\b|without|left out|ignored|none"
            r"|unweighted",
        ),
        _wish(
            TRL,
            ("response",),
            recipe={**SEQUENCE, **TIS},
            columns=("rollout",),
            spec={"engine": 0.3},
        ),
        stage="correction",
    ),
    Mistake(
        "IcePop's mask not applied",
        "arcee-ai/NeMo-RL#24",
        lambda case: case.by(correction="token", cap=np.inf),
        both(
            ENGINE,
            r"mask|drop|keep|kept|zero|truncat|bound|limit|clip|beyond|outside|above|ignored"
            r"|π_old/π_engine, token by token",
        ),
        _wish(
            ("slime",),
            recipe={"correction": "masked", "cap": 2.0},
            words=("-v", "slime/icepop"),
            columns=("rollout",),
            spec={"engine": 0.6},
        ),
        stage="correction",
    ),
    Mistake(
        "masked tokens in the numerator",
        "alibaba/ROLL#444",
        lambda case: case.but(reduce=_numerator),
        both(
            r"mask|truncat|\bcut\b|padd|left out|not counted|exclud",
            r"ignored|numerator|\bsum|all tokens|every token|counted|not applied|includ|gradient",
        ),
        _wish(
            ("paper", "verl"),
            ("token",),
            spec={"length": 50.0, "longest": 70},
            masked="cut",
        ),
        stage="mask",
    ),
    Mistake(
        "ends of turns left out by a mask of ids",
        "huggingface/trl#4970",
        _without_ends,
        both(
            r"end.?of.?(text|turn|sequence|message)|\beos\b|im_end|(last|final|stop|end) token",
            r"mask|left out|drop|not (counted|trained)|missing|exclud|without|zero|count",
        ),
        _wish(("span",), columns=("token_ids",)),
        agent=True,
        stage="mask",
    ),
    Mistake(
        "entropy threshold over the padding",
        "huggingface/trl#3715",
        lambda case: case.but(weights=_padded_threshold),
        both(
            r"entrop|quantile|threshold",
            r"padd|mask|all (positions|tokens)|width|(another|different|lower|higher) "
            r"|more tokens|fewer tokens|kept|keeps",
        ),
        _wish(TRL, recipe=TOP, columns=("entropies",), spec={"spread": 0.8}),
        stage="mask",
    ),
    Mistake(
        "ranks divide by their own tokens",
        "PrimeIntellect-ai/prime-rl#2562",
        _ranks,
        r"micro.?batch|\branks?\b|process|shard|chunk|means? of (the )?(means|parts|pieces|halves)"
        r"|separate|\bparts\b|slices",
        _wish(("paper", "verl"), ("token",), spec={"size": 8, "spread": 0.8}),
        (2, 4),
        stage="aggregation",
    ),
    Mistake(
        "padding counted as tokens",
        "PrimeIntellect-ai/prime-rl#674",
        lambda case: case.but(reduce=_all_slots),
        r"padd|width|longest|columns|slots|all positions|(count|divid)\w*.{0,60}mask",
        _wish(("paper", "verl"), ("token",)),
        stage="aggregation",
    ),
    Mistake(
        "kept tokens alone divide",
        "huggingface/trl#3744",
        _kept_divide,
        both(r"entrop|kept|keeps|quantile|drop|mask", r"denominat|divid|count|averag|\bmean\b"),
        _wish(TRL, ("token", "response"), recipe=TOP, columns=("entropies",)),
        stage="aggregation",
    ),
    Mistake(
        "constant length of 1,000",
        "radixark/miles#1328",
        lambda case: case.by(length=1_000.0),
        r"max_completion_length|constant (length|divisor|denominator)|loss_scale_factor"
        r"|(divid|denominat|divisor|length).{0,80}1[,_ ]?000",
        _wish(TRL, ("sum",), recipe={"length": 256.0}),
        stage="aggregation",
    ),
    Mistake(
        "data-parallel size in the denominator",
        "verl-project/verl#5798",
        lambda case: case.but(reduce=_sixteenth),
        r"dp_size|data.?parallel|\branks?\b|process|\bworld|global_batch_size|gpus?\b",
        _wish(
            VERL,
            ("response",),
            beta=False,
            hyper={"dp_size": 4, "global_batch_size": 96},
            spec={"sizes": (8, 8, 8), "length": 35.0},
        ),
        stage="scale",
    ),
    Mistake(
        "logged loss divided by the micro-batches again",
        "verl-project/verl#4711",
        lambda case: replace(case, logged=lambda loss: loss / case.recipe.steps),
        r"accumulation|micro.?batch|\bsteps\b",
        _wish(TRL, ("token", "response", "sum"), recipe={"steps": 4}),
        stage="scale",
    ),
    Mistake(
        "logged loss times the ranks",
        "NVIDIA-NeMo/RL#3751",
        lambda case: replace(case, logged=lambda loss: 8.0 * loss),
        r"\branks?\b|process|dp_size|data.?parallel|\bworld|gpus?\b",
        _wish(
            PAPER,
            ("token",),
            beta=True,
            recipe={"scored": True},
            words=("-v", "nemo-rl/grpo"),
            given=True,
        ),
        stage="scale",
    ),
    Mistake(
        "entropy by token, the policy term by response",
        "agentscope-ai/Trinity-RFT#388",
        lambda case: case.by(same_entropy=False),
        both(r"entrop", r"aggregat|denominat|divid|averag|\bmean\b|response|token"),
        _wish(
            VERL,
            ("response",),
            recipe={"same_entropy": True, "entropy": 0.1},
            columns=("entropies",),
            spec={"spread": 0.9},
        ),
        stage="entropy",
    ),
    Mistake(
        "entropy times the context-parallel size",
        "NovaSky-AI/SkyRL#1751",
        lambda case: case.by(entropy=2.0 * case.recipe.entropy),
        both(
            r"entrop", r"times|factor|twice|doubl|coefficient|scal|rank|parallel|multipl|entropy_"
        ),
        _wish(
            PAPER,
            ("token",),
            beta=True,
            recipe={
                "beta": 0.01,
                "eps": 1e-6,
                "lone": True,
                "kl_reduction": "response",
                "entropy": 0.02,
            },
            words=SKYRL,
            columns=("entropies",),
        ),
        stage="entropy",
    ),
    Mistake(
        "entropy bonus of the dropped tokens too",
        "huggingface/trl#6140",
        lambda case: case.but(bonus=_bonus_of_all),
        both(r"entrop", r"kept|quantile|all tokens|every token|drop|mask|\btop|exclud"),
        _wish(TRL, recipe={**TOP, "entropy": 0.02}, columns=("entropies",)),
        stage="entropy",
    ),
]
