"""Mistakes of agents: turns, trajectories, tools, several versions of the weights."""

from __future__ import annotations

import numpy as np

from trials.strangers.losses import Array, Case, Recipe, Rows, normalised
from trials.strangers.mistake import Mistake, both
from trials.strangers.settings import Wish

SPAN, ROWS = ("span",), ("rows",)
RETURNS = ("-v", "dapo", "--advantage", "returns", "-p", "gamma=1")
GAE = ("-v", "dapo", "--advantage", "gae", "-p", "gamma=1", "-p", "gae_lambda=0.9")
TOOL = r"tool|observation|environment|mask|\bgap|\bhole"


def _reset(rows: Rows, recipe: Recipe) -> Array:
    """The running return is set to 0 at every token that a tool wrote."""
    found = np.zeros(rows.mask.shape)
    for row, mask in enumerate(rows.mask):
        places = np.flatnonzero(rows.written[row])
        last = np.flatnonzero(mask)[-1]
        running = 0.0
        for place in places[::-1]:
            running = (rows.rewards[row] if place == last else 0.0) + recipe.gamma * running
            found[row, place] = running
            running *= mask[place]
    return found


def _gae_everywhere(rows: Rows, recipe: Recipe) -> Array:
    """Every written token is a step, those of tools too."""
    found = np.zeros(rows.mask.shape)
    for row in range(len(found)):
        running = value = 0.0
        places = np.flatnonzero(rows.written[row])
        last = np.flatnonzero(rows.mask[row])[-1]
        for place in places[::-1]:
            reward = rows.rewards[row] if place == last else 0.0
            here = rows.values[row, place]
            running = reward + recipe.gamma * value - here + recipe.gamma * recipe.decay * running
            found[row, place], value = running, here
    return found


def _padded_value(rows: Rows, recipe: Recipe) -> Array:
    """The critic's value of the slot behind the end is the next value of the last token."""
    found = np.zeros(rows.mask.shape)
    for row, mask in enumerate(rows.mask):
        places = np.flatnonzero(mask)
        behind = min(places[-1] + 1, rows.mask.shape[1] - 1)
        running, value = 0.0, rows.values[row, behind] if behind > places[-1] else 0.0
        for place in places[::-1]:
            reward = rows.rewards[row] if place == places[-1] else 0.0
            here = rows.values[row, place]
            running = reward + recipe.gamma * value - here + recipe.gamma * recipe.decay * running
            found[row, place], value = running, here
    return found


def _leaking(rows: Rows, recipe: Recipe) -> Array:
    """The KL of tools' tokens is paid by the tokens before them."""
    paid = recipe.beta * (rows.old - rows.ref) * rows.written
    later = np.cumsum(paid[:, ::-1], axis=1)[:, ::-1]
    return (rows.rewards[:, None] - later) * rows.mask


def _lasts(rows: Rows) -> Array:
    """[R] the last row of each row's trajectory."""
    last = {key: row for row, key in enumerate(rows.trajectories)}
    return np.array([last[key] for key in rows.trajectories])


def _last_places(case: Case) -> Case:
    """Right-aligned rows get the advantages of the last turn where that has tokens."""
    right = case.stage("advantages")

    def advantages(rows: Rows, recipe: Recipe) -> Array:
        adv, last = right(rows, recipe), _lasts(rows)
        found = np.zeros(rows.mask.shape)
        for row in range(len(found)):
            places = np.flatnonzero(rows.mask[row])
            count = int(rows.mask[last[row]].sum())
            found[row, places[-count:]] = adv[row]
        return found

    return case.but(advantages=advantages)


def _by_row(rows: Rows, recipe: Recipe) -> Array:
    return normalised(rows.rewards, rows.groups, recipe)


def _cumulated(case: Case) -> Case:
    """Turns come in the order of their numbers, and the advantages by counting last turns."""
    rows = case.rows
    right = case.stage("advantages")(rows, case.recipe)
    at = np.unique(rows.trajectories, return_index=True)[1]
    once = right[at]
    number = np.concatenate([[0], np.cumsum(_lasts(rows) == np.arange(len(right)))[:-1]])
    order = np.argsort(_numbers(rows), kind="stable")
    found = np.zeros(len(right))
    found[order] = once[number]
    return case.but(advantages=lambda rows, recipe: found)


def _numbers(rows: Rows) -> Array:
    """[R] the number of each row in its trajectory."""
    seen: dict[int, int] = {}
    found = []
    for key in rows.trajectories.tolist():
        found.append(seen.get(key, 0))
        seen[key] = found[-1] + 1
    return np.array(found)


def _own_raw(rows: Rows, recipe: Recipe) -> Array:
    return rows.rewards / (1.0 + 1e-6)


def _by_number(rows: Rows, recipe: Recipe) -> Array:
    return normalised(rows.rewards, 1_000 * rows.groups + _numbers(rows), recipe)


def _ratio_by_turn(rows: Rows, recipe: Recipe) -> Array:
    d = (rows.new - rows.old) * rows.mask
    found = 0.0 * d
    for turn in range(int(rows.turns.max()) + 1):
        own = rows.mask * (rows.turns == turn)
        mean = (d * own).sum(-1) / np.maximum(own.sum(axis=1), 1.0)
        found = found + mean[..., None] * own
    return found


def _across(rows: Rows, recipe: Recipe) -> Array:
    """The discounted sum does not stop where a trajectory ends."""
    found, running = np.zeros(len(rows.rewards)), 0.0
    for row in range(len(found))[::-1]:
        running = rows.turn_rewards[row] + recipe.gamma * running
        found[row] = running
    return found


def _last_turn(case: Case) -> Case:
    rows = case.rows
    last = np.where(rows.mask > 0, rows.turns, -1).max(axis=1, keepdims=True)
    return case.of(mask=rows.mask * (rows.turns == last))


def _fresh(case: Case, counted: bool) -> Case:
    """Tokens that older weights sampled are not trained; they may still be counted."""
    rows = case.rows
    mask = rows.mask * (rows.versions == rows.versions.max())
    if not counted:
        return case.of(mask=mask)
    return case.but(weights=lambda rows, recipe, adv: mask)


def _tools_counted(case: Case) -> Case:
    def over(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
        count = rows.written.sum(axis=1)
        total = (values * mask).sum(-1)
        if recipe.reduction == "response":
            return (total / count).mean(-1)
        return total.sum(-1) / count.sum()

    return case.but(reduce=over)


def _tools_in_ratio(rows: Rows, recipe: Recipe) -> Array:
    d = rows.new - rows.old
    return ((d * rows.written).sum(-1) / rows.written.sum(axis=1))[..., None] + 0.0 * d


GSPO = Wish(
    SPAN,
    recipe={"sequence": True, "reduction": "response", "low": 0.05, "high": 0.08},
    words=("-v", "gspo"),
    columns=("turn_ids",),
)
MISTAKES = [
    Mistake(
        "return cut off by a tool's answer",
        "verl-project/verl#7300",
        lambda case: case.but(advantages=_reset),
        both(
            TOOL + r"|\bturn|earlier|last",
            r"return|reward|advantage|reset|propagat|credit|zero|no gradient|not (trained|counted)",
        ),
        Wish(SPAN, recipe={"advantage": "returns"}, words=RETURNS),
    ),
    Mistake(
        "GAE steps over tools' tokens",
        "radixark/miles#1827",
        lambda case: case.but(advantages=_gae_everywhere),
        both(TOOL, r"\bgae\b|decay|step|discount|λ|lambda|value|advantage|critic"),
        Wish(
            SPAN,
            recipe={"advantage": "gae", "decay": 0.9},
            words=GAE,
            columns=("values",),
        ),
    ),
    Mistake(
        "critic's value behind the end",
        "alibaba/ROLL#447",
        lambda case: case.but(advantages=_padded_value),
        both(r"value|bootstrap|critic", r"padd|mask|last|\bend\b|after|terminal|behind|next"),
        Wish(
            SPAN,
            recipe={"advantage": "gae", "decay": 0.9},
            words=GAE,
            columns=("values",),
        ),
    ),
    Mistake(
        "KL of tools' tokens in the returns",
        "THUDM/slime#1372",
        lambda case: case.but(advantages=_leaking),
        both(r"\b(kl|penalty|k1)\b", TOOL + r"|left out|all tokens"),
        Wish(
            SPAN,
            recipe={"advantage": "returns", "beta": 0.1, "in_reward": True},
            words=(*RETURNS, "--kl", "k1-in-reward"),
            spec={"reference": 0.6},
        ),
    ),
    Mistake(
        "advantages at the places of the last turn",
        "NovaSky-AI/SkyRL#1507",
        _last_places,
        both(
            r"advantage|token|gradient|not trained|mask",
            r"position|place|last (turn|row|response|step)|\bother (turn|row|response)|zero|align"
            r"|(is|are) 0\b|first tokens|beginning",
        ),
        Wish(ROWS),
    ),
    Mistake(
        "a trajectory counts once for each turn",
        "microsoft/agent-lightning#462",
        lambda case: case.but(advantages=_by_row),
        both(
            r"baseline|advantage|\bstd\b|reward|group|statistic|standard",
            r"trajector|\bturn|(per|each|every) (row|step)|rows? count",
        ),
        Wish(ROWS),
    ),
    Mistake(
        "advantages of interleaved turns",
        "NovaSky-AI/SkyRL#1281",
        _cumulated,
        r"\border|interleav|contigu|adjacent|(another|other|wrong|different) (trajector|row|respon"
        r"|turn)|permut|shuffl|of (another|other) ",
        Wish(ROWS),
    ),
    Mistake(
        "every trajectory a group of its own",
        "rllm-org/rllm#605",
        lambda case: case.but(advantages=_own_raw),
        r"\braw\b|no baseline|reward(s)? (itself|alone|as)|not cent|without.{0,40}(baseline|mean)"
        r"|(baseline|mean).{0,40}(missing|left out|not)|group(s)? of (one|1)|own group|lone\b"
        r"|the reward is|trajector.{0,60}group",
        Wish(ROWS),
    ),
    Mistake(
        "a trajectory's turns as the group",
        "alibaba/ROLL#397",
        lambda case: case.but(advantages=lambda rows, recipe: 0.0 * rows.rewards),
        r"advantages?.{0,100}(\b0\b|zero)|(\b0\b|zero).{0,60}advantages?|own group"
        r"|no (policy )?grad|group.{0,80}trajector|trajector.{0,80}group|dead|no signal"
        r"|gradient is (0|zero)",
        Wish(ROWS),
        value=False,
    ),
    Mistake(
        "turns compared by their number",
        "rllm-org/rllm#924",
        lambda case: case.but(advantages=_by_number),
        r"per_step|" + both(r"\bturn|\bstep", r"number|position|group|peer|compar|same|per|each"),
        Wish(ROWS, spec={"turns": (2, 4)}),
    ),
    Mistake(
        "a ratio for each turn",
        "NovaSky-AI/SkyRL#1278",
        lambda case: case.but(log_ratio=_ratio_by_turn),
        both(r"\bturn|\bspan|segment", r"ratio|sequence|level|mean|own|each"),
        GSPO,
    ),
    Mistake(
        "tools' tokens in the sequence's ratio",
        "MakazhanAlpamys/Soup#735",
        lambda case: case.but(log_ratio=_tools_in_ratio),
        both(TOOL + r"|left out|all tokens", r"ratio|sequence|mean|level|length|count"),
        GSPO,
    ),
    Mistake(
        "each turn weighs alike",
        "radixark/miles#1927",
        lambda case: case.by(reduction="response"),
        r"response-?mean|turn-?mean|rows? (count|weigh)|over (the )?(rows|responses|turns)"
        r"|(each|every|per) (row|turn|response|step).{0,30}(alike|mean|weigh|count)",
        Wish(
            ROWS,
            recipe={
                "advantage": "trajectory",
                "eps": 1e-8,
                "lone": False,
                "dual": None,
                "reduction": "trajectory",
            },
            words=(
                "-v",
                "dapo",
                "--advantage",
                "trajectory-group-std",
                "--aggregate",
                "trajectory-mean",
            ),
        ),
    ),
    Mistake(
        "returns run on into another trajectory",
        "areal-project/AReaL#1666",
        lambda case: case.but(advantages=_across),
        both(
            r"return|discount",
            r"trajector|boundar|another|other|across|reset|run on|next",
        ),
        Wish(
            ROWS,
            recipe={"advantage": "turn-returns", "gamma": 0.9, "dual": None},
            words=("-v", "dapo", "--advantage", "turn-returns", "-p", "gamma=0.9"),
        ),
    ),
    Mistake(
        "the last turn alone is trained",
        "modelscope/ms-swift#7838",
        _last_turn,
        both(
            r"\bturn|\bspan|earlier|before",
            r"last|final|only|alone|not (trained|counted)|left out|drop|mask|missing",
        ),
        Wish(SPAN, columns=("turn_ids",)),
    ),
    Mistake(
        "tokens of older weights left out",
        "THUDM/slime#1445",
        _fresh,
        r"weight.?versions?|versions? of the weights|version \d|stale|older (weight|version|token)"
        r"|partial|off.?policy|newest",
        Wish(SPAN, columns=("versions",), spec={"versions": 2}),
        strengths=(False, True),
    ),
    Mistake(
        "tools' tokens in the denominator",
        "AgentR1/Agent-R1#16",
        _tools_counted,
        both(
            TOOL + r"|all tokens|written",
            r"denominat|divid|length|count|\bmean\b|averag",
        ),
        Wish(SPAN),
    ),
]
MISTAKES = [Mistake(**{**vars(one), "agent": True}) for one in MISTAKES]
