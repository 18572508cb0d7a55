"""What a record says of the trainer that made it → the row and the stages that reproduce it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.frameworks.framework import Reading, Settings, as_of, is_gone
from grpo_cli.hyperparameters import HOLDERS
from grpo_cli.variants.plan import OWN_AGGREGATES, Plan, as_flags, plan
from grpo_cli.variants.registry import FRAMEWORKS, NAMES, ROWS, STAGES, framework

__all__ = ["USUAL", "Reading", "choose", "completed", "frameworks_of", "named_row", "other_row"]


_KEYS: Mapping[str, str] = {
    "trl": "per_token_logps old_per_token_logps ref_per_token_logps sampling_per_token_logps "
    "completion_mask completion_ids num_items_in_batch steps_per_generation num_generations",
    "verl": "old_log_probs ref_log_prob rollout_log_probs response_mask uid",
    "openrlhf": "action_log_probs base_action_log_probs action_mask rollout_log_probs",
    "slime": "ref_log_probs rollout_log_probs loss_mask group_index",
    "skyrl": "old_action_log_probs rollout_action_logprobs base_action_log_probs response_mask",
    "nemo-rl": "prev_logprobs generation_logprobs generation_log_probs reference_policy_logprobs",
    "areal": "prox_logp ref_logp behavior_logprobs loss_mask",
    "prime-rl": "trainer_logprobs inference_logprobs loss_mask",
    "roll": "infer_logprobs old_log_probs ref_log_probs response_mask",
    "tinker": "sampling_logprobs",
}
"""What frameworks call what a record holds, where not all do."""


USUAL: Mapping[str, tuple[str, str]] = {
    "trl": ("TRL", "trl/dapo"),
    "verl": ("verl", "verl/vanilla"),
}
"""Framework → its name, and the row of its usual loss."""


def frameworks_of(keys: Collection[str]) -> tuple[str, ...]:
    """The frameworks whose names for fields a record uses most; none for everybody's names."""
    counts = {name: len({*names.split()}.intersection(keys)) for name, names in _KEYS.items()}
    most = max(counts.values())
    return tuple(name for name, count in counts.items() if most and count == most)


def settings_of(value: Any) -> Any:
    """What a decoded record says of its framework; None where it says nothing.

    It is its ``framework``, or else a word that names a variant, or TRL's settings, also among its
    hyperparameters, with fields that have TRL's names.
    """
    record = value if isinstance(value, dict) else {}
    if "framework" in record:
        return record["framework"]
    words = (record.get("variant"), record.get("algorithm"))
    name = next((one for one in words if isinstance(one, str)), None)
    if name is not None and name in NAMES:  # which may load every framework's rows
        return {"name": NAMES[name]}
    holders = "hyperparameters", "hyper", *HOLDERS
    held = [record, *(one for key in holders if isinstance(one := record.get(key), dict))]
    found = {w: one[w] for one in reversed(held) for w in _CHOICES["trl"].split() if w in one}
    row = f"trl/{found.get('loss_type')}"
    is_trls = "loss_type" in found and frameworks_of(record) == ("trl",)
    return {"name": "trl", **found} if is_trls and NAMES.get(row) == row else None


def named_row(value: Any) -> str | None:
    """The row of the framework that computed a decoded record, where the record says so.

    It is that of ``settings_of``, whose ``framework`` may be a variant's name (``"trl/dapo"``).
    """
    settings = settings_of(value)
    word = settings.get("name") if isinstance(settings, dict) else settings
    if isinstance(word, str) and word in NAMES and ("/" in word or "framework" not in value):
        return NAMES[word]
    if not isinstance(settings, dict):
        return None
    loss = settings.get("loss_type") or settings.get("policy_loss")
    row = f"{str(settings.get('name', '')).lower()}/{loss}"
    return _as_of(row, settings) if NAMES.get(row) == row else None


def other_row(named: str | None, plans: Iterable[Plan]) -> dict[str, None]:
    """The notice that records name a row, where others were evaluated unasked."""
    used = [plan.variant for plan in plans if not plan.asked]
    if not named or not used:
        return {}
    if any(variant.startswith(f"{named.partition('/')[0]}/") for variant in used):
        return {}
    if len(used) > 1:
        return {f"the records name {named}, which is not among these variants": None}
    if used != ["grpo"]:  # asked for from Python, where nobody says whether grpo was
        return {}
    return {not_grpo(named): None}


def not_grpo(named: str) -> str:
    """The notice that records name a row, where grpo was evaluated because nothing was asked."""
    return f"the records name {named}, but grpo was evaluated: choose -v {named} or -v grpo"


_CHOICES = {
    "trl": "loss_type importance_sampling_level scale_rewards use_bias_correction_kl "
    "multi_objective_aggregation vllm_importance_sampling_mode",
    "verl": "policy_loss loss_mode loss_agg_mode kl_loss_type adv_estimator "
    "norm_adv_by_std_in_grpo",
}
"""Framework → its settings that choose a variant or a stage, the loss first."""
_LOSSES = ("loss_type", "policy_loss", "loss_mode")
_PER_GROUP = ("group", True)
"""Values of TRL's ``scale_rewards`` for its default, which its ``framework`` need not say."""


def unapplied(
    given: Mapping[str, Any], plans: Sequence[Plan], named: str, keys: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Sentences on settings of a trainer that choose a variant which no plan has → their keys.

    Args:
        given: the keys of a record that are no hyperparameters, with their values.
        plans: the objectives; a setting is not named if one of them has it. Without any those of
            ``named`` are not.
        named: the row of which another sentence says that the settings are its; "" for none.
        keys: the canonical names that the record has.

    Returns:
        With "" in the place of the sentence where none is needed.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, words in _CHOICES.items():
        paths = {
            path.rpartition(".")[2]: path
            for path, value in given.items()
            if isinstance(value, (str, bool))
        }
        chosen = {word: given[paths[word]] for word in words.split() if word in paths}
        if chosen and not plans and named.startswith(f"{name}/"):
            found[""] = (*map(paths.__getitem__, chosen),)  # which name the row
        elif chosen and plans:
            flags = [_flags(name, chosen, used, named, keys) for used in plans]
            rest = {word: {w: v for w, v in chosen.items() if w != word} for word in chosen}
            each = [
                f"{paths[word]} {chosen[word]!r}"
                for word, others in rest.items()
                if _flags(name, others, plans[0], named, keys) != flags[0]
            ]
            is_are, them = ("is", "it") if len(each) == 1 else ("are", "them")
            text = f"{', '.join(each)} {is_are} not applied: {flags[0]} applies {them}"
            sentence = text if all(flags) else ""
            found[sentence] = (*found.get(sentence, ()), *map(paths.__getitem__, chosen))
    return found


def _flags(
    name: str, chosen: Mapping[str, Any], used: Plan, named: str, keys: Collection[str]
) -> str:
    """The flags with which a framework's settings are what a plan computes; "" where they are."""
    settings = {"name": name, **chosen}
    settings.setdefault("policy_loss", settings.get("loss_mode", "vanilla"))
    try:
        reading = choose(settings)
    except InputError:
        return "no variant of grpo's"
    stages, words = dict(reading.stages), []
    if chosen.get("scale_rewards") in _PER_GROUP:
        stages.setdefault("advantage", "group-std")
    alike = reading.row, reading.row.partition("/")[2]
    if not set(_LOSSES).isdisjoint(chosen) and used.variant not in alike:
        words = [] if named == reading.row and not used.asked else ["-v", reading.row]
        used = plan(reading.row)
    absent = {"advantage": "advantages" in keys, "correction": "log_probs_rollout" not in keys}
    for stage, choice in stages.items():
        if choice != used.choice(stage) and not absent.get(stage):
            words += [f"--{stage}", choice]
    for setting, value in reading.hyperparameters.items():
        if setting in used.takes() and used.values.get(setting) != value:
            words += as_flags(None, {}, {setting: value})
    return " ".join(words)


def choose(settings: Settings) -> Reading:
    """The row that a record's ``framework`` names, and what its settings swap in it, by our names.

    Args:
        settings: the record's own words: ``name``, and what else the framework's room reads;
            a ``version`` before the newest one picks the row that kept its number.

    Raises:
        InputError: where no row reproduces it, or its release has no such row any more.
    """
    name = str(settings.get("name", "")).lower()
    read = framework(name).read if name in FRAMEWORKS else None
    if read is None:
        word = settings.get("variant") or settings.get("loss_type") or settings.get("name")
        return Reading(_row(settings, word, ""))
    reading = read(settings)
    row = _row(settings, reading.row, f"{settings['name']}'s ")
    stages = {stage: _choice(stage, choice, name) for stage, choice in reading.stages.items()}
    return Reading(row, stages, reading.hyperparameters, reading.missing)


def completed(
    chosen: Reading,
    *,
    advantages_given: bool,
    stages: Mapping[str, str],
    hyperparameters: Mapping[str, object],
) -> Plan:
    """The plan of a choice, with the flags on top of it, each record a batch of its own.

    Given advantages are used as they are, so the trainer's estimator is left out then.

    Raises:
        InputError: where no choice reproduces a stage of the trainer's, and no flag replaces it.
    """
    for stage, why in chosen.missing.items():
        if stage not in stages and not (stage == "advantage" and advantages_given):
            raise InputError(why, path="framework")
    kept = dict(chosen.stages)
    if advantages_given:
        kept.pop("advantage", None)
    made = plan(chosen.row, stages={**kept, **stages}, batch="record")
    taken = {n: v for n, v in chosen.hyperparameters.items() if n in made.takes()}
    return plan(
        chosen.row,
        stages={**kept, **stages},
        hyperparameters={**taken, **hyperparameters},
        batch="record",
    )


def _row(settings: Settings, word: object, whose: str) -> str:
    """The row that a word means, the framework's own one first, as the record's release had it."""
    for wanted in (f"{settings.get('name')}/{word}".lower(), word):
        if isinstance(wanted, str) and wanted in NAMES:
            return _as_of(_there(NAMES[wanted], settings), settings)
    raise InputError(f"no variant reproduces {whose}{word!r}; name one with -v", path="framework")


def _as_of(row: str, settings: Settings) -> str:
    """The row that has the number of the record's own release."""
    room, slash, _ = row.partition("/")
    version = settings.get("version")
    if not slash or version is None:
        return row
    return as_of(framework(room).changes, row, str(version))


def _there(row: str, settings: Settings) -> str:
    """The row, if the record's own release has it still."""
    name, version = str(settings.get("name", "")).lower(), settings.get("version")
    until = ROWS[row].until
    if version is not None and is_gone(until, name, str(version)):
        raise InputError(
            f"{name} {version} no longer has {row.removeprefix(f'{name}/')}: {until} was the "
            "last release with it; choose a variant with -v",
            path="framework.version",
        )
    return row


def _choice(stage: str, name: str, framework: str) -> str:
    """The choice at a stage that a framework's word means: its own one first."""
    known = STAGES["aggregate" if stage in OWN_AGGREGATES else stage]
    for wanted in (f"{framework}/{name}", name):
        if wanted in known.choices:
            return wanted
        if wanted in known.aliases:  # a name without a slash is searched for in every framework
            return known.aliases[wanted]
    raise InputError(f"no {stage} is called {name!r}; name one with --{stage}", path="framework")
