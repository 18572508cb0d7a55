"""Mistakes of single answers: clips, penalties, corrections, baselines, denominators."""

from __future__ import annotations

import numpy as np

from trials.strangers.losses import (
    Array,
    Case,
    Recipe,
    Rows,
    clamp,
    lower,
    normalised,
    penalty,
    whitened,
)
from trials.strangers.mistake import Mistake, both
from trials.strangers.settings import Wish

ENGINE = r"correction|importance.sampling|\btis\b|rollout|vllm|engine|sampling|sampler"
KL = r"\b(kl|penalty|k3)\b"
TRL, VERL = ("trl",), ("verl",)
NOISY = {"engine": 0.6}
BIASED = ("-v", "verl/bypass_pg_is", "-p", "rollout_is=token")
REJECTING = (
    "-v",
    "verl/decoupled_token_is",
    "-p",
    "rollout_rs=token_k1",
    "-p",
    "rollout_rs_threshold=0.6_1.6",
)


def _low_clip(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    return lower(rho * adv, clamp(rho, recipe.low, 1.0 + recipe.high) * adv)


def _live_weight(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    """REINFORCE with a weight that is differentiated as well."""
    w = np.exp((rows.new - rows.rollout) * rows.mask)
    w = np.where(np.real(w) > recipe.cap, recipe.cap, w)
    return rows.new * adv * w / np.real(w)


def _dropped(rows: Rows, recipe: Recipe, adv: Array) -> Array:
    w = np.exp((rows.old - rows.rollout) * rows.mask)
    return w * (w <= recipe.cap)


def _mean_weight(rows: Rows, recipe: Recipe, adv: Array) -> Array:
    d = ((rows.old - rows.rollout) * rows.mask).sum(-1, keepdims=True) / rows.lengths[:, None]
    return np.minimum(np.exp(d + 0.0 * rows.mask), recipe.cap)


def _all_counted(case: Case) -> Case:
    def over(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
        return (values * mask).sum((-2, -1)) / rows.mask.sum()

    return case.but(reduce=over)


def _by_old(case: Case) -> Case:
    """The off-policy mask measures from the old policy, not from the engine."""

    def weights(rows: Rows, recipe: Recipe, adv: Array) -> Array:
        far = ((rows.old - np.real(rows.new)) * rows.mask).sum(-1) / rows.lengths
        return 1.0 - ((adv[..., :1] < 0) & (far[..., None] > recipe.opsm)) * 1.0

    return case.but(weights=weights)


def _kl_in_reward(case: Case) -> Case:
    def advantages(rows: Rows, recipe: Recipe) -> Array:
        paid = (recipe.beta * (rows.old - rows.ref) * rows.mask).sum(axis=1)
        return normalised(rows.rewards - paid, rows.groups, recipe)

    return case.but(advantages=advantages)


def _centred_columns(rows: Rows, recipe: Recipe) -> Array:
    d = rows.new - rows.old
    return d - d.mean(axis=-2, keepdims=True)


def _padded_luspo(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    weighed = values * mask.sum(axis=1)[:, None]
    return weighed.mean((-2, -1)) / recipe.steps


def _finished_alone(rows: Rows, recipe: Recipe) -> Array:
    """Mean and std of the responses that ended; those that were cut are compared with them."""
    found = np.zeros(len(rows.rewards))
    for group in np.unique(rows.groups):
        own = rows.groups == group
        among = rows.rewards[own & rows.finished]
        if len(among) < 2:
            continue
        found[own] = rows.rewards[own] - among.mean()
        if recipe.std:
            found[own] /= among.std(ddof=1) + recipe.eps
    return found


def _first(rows: Rows, recipe: Recipe) -> Array:
    found = np.zeros(len(rows.rewards))
    for group in np.unique(rows.groups):
        own = np.flatnonzero(rows.groups == group)
        found[own] = rows.rewards[own] - rows.rewards[own[0]]
    return found


def _sliced(case: Case) -> Case:
    """Every n rows are a group, n being the size of those in which nothing failed."""
    size = int(np.bincount(case.rows.groups).max())
    return case.of(groups=np.arange(len(case.rows.groups)) // size)


def _lone_zero(case: Case) -> Case:
    return case.by(lone=False)


def _halves(rows: Rows, recipe: Recipe) -> Array:
    """Two context-parallel ranks each whiten the half of every row that they hold."""
    plain = normalised(rows.rewards, rows.groups, recipe)[:, None] * rows.mask
    place = np.cumsum(rows.mask, axis=1)
    first = rows.mask * (place <= np.ceil(rows.lengths / 2)[:, None])
    return whitened(plain, first) + whitened(plain, rows.mask - first)


def _absolute(case: Case) -> Case:
    right = case.stage("advantages")

    def advantages(rows: Rows, recipe: Recipe) -> Array:
        place = np.maximum(np.cumsum(rows.mask, axis=1) - 1, 0)
        return right(rows, recipe) * recipe.gamma**place

    return case.but(advantages=advantages)


def _live_tokens(case: Case) -> Case:
    """Groups whose rewards tie are filtered, and with them their tokens."""

    def over(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
        live = np.array([np.ptp(rows.rewards[rows.groups == group]) > 0 for group in rows.groups])
        count = (mask * live[:, None]).sum()
        return (values * mask * live[:, None]).sum((-2, -1)) / count / recipe.steps

    return case.but(reduce=over)


def _copied(case: Case) -> Case:
    """The last row fills the batch up once more."""
    right = case.stage("reduce")

    def over(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
        more = np.concatenate([values, values[..., -1:, :]], axis=-2)
        return right(rows, recipe, more, np.concatenate([mask, mask[-1:]]))

    return case.but(reduce=over)


def _entropy_over(case: Case) -> Case:
    return case.but(
        bonus=lambda rows, recipe: np.asarray((rows.entropies * rows.mask).sum() / recipe.items)
    )


def _entropy_all(case: Case) -> Case:
    def bonus(rows: Rows, recipe: Recipe) -> Array:
        return np.asarray((rows.entropies * rows.written).sum() / rows.written.sum() / recipe.steps)

    return case.but(bonus=bonus)


MISTAKES = [
    Mistake(
        "clip from epsilon up",
        "ChenmienTan/RL2#21",
        lambda case: case.but(surrogate=_low_clip),
        r"lower|epsilon_low|ε_low|\blow\b|below|one.sided|upper bound (alone|only)",
        Wish(("paper", "trl", "slime"), spec={"update": 0.6}),
    ),
    Mistake(
        "KL without a gradient",
        "allenai/open-instruct#531",
        lambda case: case.but(
            penalty=lambda rows, recipe, rho: np.real(penalty(rows, recipe, rho))
        ),
        both(KL, r"gradient|detach|no_grad|constant|stop.?grad|slope"),
        Wish(beta=True),
        value=False,
    ),
    Mistake(
        "KL in the reward as well",
        "NVIDIA-NeMo/RL#2530",
        _kl_in_reward,
        both(KL, r"reward|advantage|shap"),
        Wish(("paper", "trl"), beta=True, recipe={"beta": 0.1}, spec={"reference": 0.5}),
    ),
    Mistake(
        "CISPO's bound counted from one",
        "NovaSky-AI/SkyRL#1928",
        lambda case: case.by(high=1.0 + case.recipe.high),
        r"epsilon_high|upper|ε_high|eps\w*.?high|\bbound|1 ?\+",
        Wish(
            TRL,
            ("items",),
            recipe={"surrogate": "cispo", "high": 1.3},
            framework={"loss_type": "cispo"},
            spec={"update": 0.7},
        ),
    ),
    Mistake(
        "engine's weight with a gradient",
        "verl-project/verl#4105",
        lambda case: case.but(surrogate=_live_weight),
        r"detach|stop.?grad|(gradient|slope|differentiat).{0,100}(weight|correct|importance|ratio)"
        r"|(weight|correct|importance|ratio).{0,100}(gradient|slope|differentiat)",
        Wish(
            VERL,
            ("token",),
            beta=False,
            recipe={"surrogate": "pg", "correction": "token", "dual": None},
            words=BIASED,
            columns=("rollout",),
            spec=NOISY,
        ),
        value=False,
    ),
    Mistake(
        "engine's weights not truncated",
        "OpenRLHF/OpenRLHF#1295",
        lambda case: case.by(cap=np.inf),
        both(ENGINE, r"truncat|\bcap|bound|clip|limit|is_high|threshold")
        + r"|correction by π_old/π_engine, token by token$",
        Wish(TRL, recipe={"correction": "token"}, columns=("rollout",), spec={"engine": 0.9}),
    ),
    Mistake(
        "engine's weights beyond the cap dropped",
        "verl-project/verl#3750",
        lambda case: case.but(weights=_dropped),
        both(ENGINE, r"mask|drop|zero|to 0\b|0 above|reject|icepop|remov|left out|discard"),
        Wish(TRL, recipe={"correction": "token"}, columns=("rollout",), spec={"engine": 0.9}),
    ),
    Mistake(
        "sequence's weight a mean",
        "NVIDIA-NeMo/RL#2269",
        lambda case: case.but(weights=_mean_weight),
        r"ms-swift/sequence|areal/sequence-mask|"
        + both(ENGINE, r"mean|geometric|averag|length|1/L|per token"),
        Wish(TRL, recipe={"correction": "sequence"}, columns=("rollout",), spec={"engine": 0.35}),
    ),
    Mistake(
        "rejected tokens in the denominator",
        "THUDM/slime#657",
        _all_counted,
        both(
            r"reject|dropp|mask|left out|denied|correct|discard|filter",
            r"denominat|divid|count|averag|\bmean\b|weigh",
        ),
        Wish(
            VERL,
            ("token",),
            beta=False,
            recipe={"correction": "rejected"},
            words=REJECTING,
            columns=("rollout",),
            spec=NOISY,
        ),
    ),
    Mistake(
        "off-policy mask by the old policy",
        "huggingface/trl#4857",
        _by_old,
        r"off.?policy|sequence.mask|opsm|(mask|drop).{0,60}(old|rollout|engine)"
        r"|engine.{0,40}not used|old log-probs are read for the engine",
        Wish(
            TRL,
            recipe={"opsm": 0.04},
            framework={"off_policy_mask_threshold": 0.04},
            columns=("rollout",),
            spec={"engine": 0.45, "update": 0.15},
        ),
    ),
    Mistake(
        "entropy over the tokens of the generation batch",
        "huggingface/trl#6648",
        _entropy_over,
        both(r"entrop", r"denominat|divid|num_items|averag|\bmean\b|tokens|factor|times|aggregat"),
        Wish(TRL, ("items",), recipe={"entropy": 0.05, "steps": 2}, columns=("entropies",)),
    ),
    Mistake(
        "entropy of truncated rows",
        "marin-community/marin#5676",
        _entropy_all,
        both(r"entrop", r"mask|truncat|cut|left out|all tokens|every token|written"),
        Wish(TRL, recipe={"entropy": 0.2}, columns=("entropies",), masked="cut"),
    ),
    Mistake(
        "log ratio centred over the batch",
        "MakazhanAlpamys/Soup#723",
        lambda case: case.but(log_ratio=_centred_columns),
        r"cent(re|er)|(mean|average) of (the )?(batch|column|position)|less (its|the|their) mean"
        r"|subtract.{0,40}mean",
        Wish(("paper", "trl", "slime"), recipe={"sequence": False}),
    ),
    Mistake(
        "LUSPO over the padded width",
        "huggingface/trl#6654",
        lambda case: case.but(reduce=_padded_luspo),
        r"padd|width|longest|greatest length|columns|length.{0,40}(squar|twice|²)"
        r"|mask.{0,60}(element|width|length)",
        Wish(
            TRL,
            ("sum",),
            recipe={"length": 1.0},
            framework={"loss_type": "luspo"},
        ),
    ),
    Mistake(
        "baseline of the finished responses",
        "OpenRLHF/OpenRLHF#1239",
        lambda case: case.but(advantages=_finished_alone),
        both(
            r"baseline|\bmean\b|\bstd\b|advantage|group|statistic",
            r"truncat|mask|\bcut\b|empty|no (counted )?tokens|finished|exclud|\bended",
        ),
        Wish(("paper", "trl"), masked="cut", spec={"longest": 20}),
    ),
    Mistake(
        "first response's reward as the baseline",
        "ServiceNow/PipelineRL#54",
        lambda case: case.but(advantages=_first),
        r"first (response|reward|rollout|row)|(single|one) (response|reward)"
        r"|(another|wrong|other|different) (baseline|mean)",
        Wish(("paper",), ("sum",), spec={"rewards": "graded"}),
    ),
    Mistake(
        "reward functions not weighted",
        "nvidia-cosmos/cosmos-rl#107",
        lambda case: case.but(
            advantages=lambda rows, recipe: normalised(rows.functions.sum(1), rows.groups, recipe)
        ),
        r"reward_weights|weights? of (the )?reward|unweighted|(reward|function).{0,80}weigh"
        r"|weigh.{0,80}(reward|function)",
        Wish(
            TRL,
            recipe={"reward_weights": (1.0, 0.3)},
            framework={"reward_weights": [1.0, 0.3]},
            functions=True,
        ),
    ),
    Mistake(
        "uneven groups cut at one size",
        "areal-project/AReaL#1454",
        _sliced,
        r"group.{0,120}(size|uneven|boundar|slice|consecutive|fixed|across|wrong|mixed|shift|every"
        r"|responses each)|across (groups|prompts)|(wrong|another|different).{0,40}group",
        Wish(("paper", "verl"), spec={"sizes": (5, 3, 4)}, recipe={"lone": False}),
    ),
    Mistake(
        "lone response without an advantage",
        "rllm-org/rllm#917",
        _lone_zero,
        r"group(s)? of (one|1|a single)|\blone\b|\balone\b|singleton|(one|single) response"
        r"|response of its own",
        Wish(VERL, spec={"sizes": (4, 1, 5), "rewards": "graded"}),
    ),
    Mistake(
        "whitened by halves of each row",
        "THUDM/slime#2235",
        lambda case: case.but(advantages=_halves),
        both(
            r"whiten|normali[sz]|standardi[sz]|advantage",
            r"\bhal(f|ves)|\bparts?\b|rank|slice|shard|micro|chunk|context|separate",
        ),
        Wish(
            ("slime",),
            recipe={"advantage": "slime"},
            words=("-v", "slime/grpo", "--advantage", "slime/normalised"),
        ),
    ),
    Mistake(
        "discount by the absolute position",
        "huggingface/trl#6626",
        _absolute,
        r"gamma|discount|γ",
        Wish(
            ("paper",),
            ("token",),
            beta=False,
            recipe={"advantage": "returns", "gamma": 0.95},
            words=("-v", "dapo", "--advantage", "returns", "-p", "gamma=0.95"),
        ),
    ),
    Mistake(
        "tokens of tied groups left out",
        "PrimeIntellect-ai/prime-rl#2192",
        _live_tokens,
        both(
            r"\btie|no signal|without a signal|filter|dead|(equal|same|constant) reward|dropped"
            r"|zero.{0,20}(advantage|signal|std|reward)|advantages? (is |are |of )?(0\b|zero)",
            r"denominat|divid|count|token|averag|\bmean\b",
        ),
        Wish(
            ("paper", "trl", "verl"), ("token",), beta=False, spec={"sizes": (4, 4, 4)}, tied=True
        ),
    ),
    Mistake(
        "own mean of each response for Dr. GRPO's sum",
        "THUDM/slime#2060",
        lambda case: case.by(reduction="response", length=1.0),
        r"response-?mean|own (length|tokens)|mean (of|over) (each|every|its)|mean instead of a sum"
        r"|(per|each|every|its|their) (own )?response'?s? (mean|length|tokens)|seq(uence)?-?mean",
        Wish(("paper", "trl"), ("sum",)),
    ),
    Mistake(
        "a row counted twice",
        "rllm-org/rllm#924",
        _copied,
        r"twice|duplicat|double|repeat|copied|\bcopy|counted again",
        Wish(reductions=("response", "token", "sum")),
    ),
]
