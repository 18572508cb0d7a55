"""Kinds by what is dumped: turns, layouts, lengths, rewards."""

from __future__ import annotations

from trials.kinds.kind import Kind
from trials.simulate.policy import Sharpness
from trials.simulate.setup import Dump, Moves, Rewards, Setup, Text

_ROLLOUT = Dump(rollout=True, ids=True)
_LATER = Moves(update=0.08, same_pass=False)

DUMPS = (
    Kind(
        "tools",
        "Agents of four turns: the tool's tokens stand between the model's, are masked, and have "
        "no log-prob of the engine (0.0).",
        Setup(
            text=Text(length=160, turns=4, shortest=60),
            dump=Dump(words="verl", rollout=True, ids=True),
        ),
    ),
    Kind(
        "sure",
        "Long reasoning of low entropy after much training: nine of ten tokens are sure, a third "
        "of the log-probs exactly 0.0, a far reference.",
        Setup(
            group=4,
            sharpness=Sharpness(sure=0.93, sure_from=8.0, sure_to=60.0),
            text=Text(length=350, spread=0.3, longest=900),
            moves=Moves(update=0.05, reference=0.3, sharper=0.15, same_pass=False),
            dump=Dump(ref=True, rollout=True, ids=True),
        ),
    ),
    Kind(
        "capped",
        "Half of the responses are cut at the greatest length and have no end of text.",
        Setup(
            text=Text(length=100, spread=0.4, longest=100),
            dump=Dump(words="trl", rollout=True, ids=True, padding="right"),
        ),
    ),
    Kind(
        "many-groups",
        "Eight groups of unequal sizes in one record (failed rollouts are dropped), group_ids, "
        "rewards of a reward model.",
        Setup(
            prompts=8,
            uneven=True,
            rewards=Rewards(kind="continuous"),
            text=Text(length=50),
            dump=_ROLLOUT,
        ),
    ),
    Kind(
        "hook",
        "Micro-batches as a trainer's hook writes them: rows of all groups shuffled, a group torn "
        "over several records, advantages given, rewards beside them.",
        Setup(
            prompts=4,
            text=Text(length=50),
            rewards=Rewards(given="group-std"),
            dump=Dump(words="trl", ids=True, strings=True, layout="micro", padding="right"),
        ),
    ),
    Kind(
        "micro-of-one",
        "The same with one row a micro-batch, and no rewards: a policy loss sees none.",
        Setup(
            text=Text(length=70),
            moves=_LATER,
            rewards=Rewards(given="group-mean", written=False),
            dump=Dump(words="verl", layout="micro", micro=1),
        ),
    ),
    Kind(
        "rows",
        "A row a response, as prime-rl and NeMo-RL write them, with uid, advantage and reward.",
        Setup(
            rewards=Rewards(given="group-std", eps=1e-6),
            dump=Dump(layout="rows", rollout=True, ids=True),
        ),
    ),
    Kind(
        "functions",
        "Three reward functions (right, tidy, brief), one column each; a record a group.",
        Setup(
            prompts=3,
            rewards=Rewards(kind="functions"),
            moves=_LATER,
            dump=Dump(layout="group", ref=True),
        ),
    ),
    Kind(
        "short-answers",
        "Answers of one to six tokens (multiple choice): copies and one-token responses are "
        "natural, groups are often dead.",
        Setup(
            prompts=4,
            sharpness=Sharpness(sure=0.6),
            text=Text(length=2.5, spread=0.5, shortest=1, longest=6),
            dump=Dump(rollout=True, ids=True, strings=True),
        ),
    ),
    Kind(
        "shaped",
        "Rewards shaped by length, Dr. GRPO's advantages, left padding with a mask, entropies.",
        Setup(
            prompts=3,
            rewards=Rewards(kind="shaped", given="group-mean"),
            moves=_LATER,
            dump=Dump(entropies=True, rollout=True, padding="left", ids=True),
        ),
    ),
    Kind(
        "tables",
        "Code and tables: every response has stretches of one token (indentation, rules), now and "
        "then as the last thing before the end of text.",
        Setup(
            text=Text(length=150, shortest=40, runs=3),
            dump=Dump(words="trl", rollout=True, ids=True, padding="right"),
        ),
    ),
    Kind(
        "beginning",
        "Reasoning models begin alike: the responses of a group share their first dozen tokens, "
        "because the policy is sure of them, not because they are the prompt.",
        Setup(prompts=4, group=4, text=Text(beginning=14), moves=_LATER, dump=Dump(rollout=True)),
    ),
    Kind(
        "solved",
        "A prompt set that the policy has learned: all groups are dead, all given advantages 0, "
        "only the KL acts.",
        Setup(
            moves=_LATER,
            rewards=Rewards(kind="solved", given="group-std"),
            dump=Dump(words="trl", ref=True, ids=True, layout="micro", padding="right"),
        ),
    ),
)
