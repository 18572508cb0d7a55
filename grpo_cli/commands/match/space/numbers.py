"""The numbers of the options that a row and its changes need."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grpo_cli.commands.match.space import changes as space
from grpo_cli.commands.match.space.changes import Change
from grpo_cli.commands.match.space.natures import Natures
from grpo_cli.commands.match.space.options import (
    DIRECT,
    Making,
    Options,
    advantage_key,
    policy_key,
)
from grpo_cli.errors import GrpoError
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import estimates_kl
from grpo_cli.variants.plan import Plan


class Numbers:
    """Numbers options, and remembers what could not be tried.

    Args:
        natures: what is known of the record that everything is tried on.
        options: where they are numbered.
    """

    def __init__(self, natures: Natures, options: Options) -> None:
        self.natures = natures
        self.options = options
        self.reasons: dict[str, str] = {}

    def advantage(self, row: Plan, one: Change, *, quick: bool) -> int:
        """The advantage's number; −1 where tokens have their own, −2 where it cannot be."""
        if quick and row.batch == "input" and space.changed(row, one).wants_moments:
            return -1

        def number() -> int:
            objective = self.natures.objective(row, one)
            if not self.natures.of(row, one).per_response:
                return -1
            return self.options.advantage(objective, making(row, one))

        return self._tried(number, one)

    def pair(self, row: Plan, one: Change) -> int:
        """That of the policy term by sign; −1 where A enters otherwise, −2 where it cannot be."""

        def number() -> int:
            kind = self.natures.of(row, one)
            if not (kind.by_sign and kind.shared):
                return -1
            return self.options.policy(self.natures.objective(row, one), making(row, one))

        return self._tried(number, one)

    def direct(self, row: Plan, advantage: Change, pair: Change) -> int:
        """That of a policy term with its advantages, where either is changed or both."""
        with_advantage, with_pair = self.objective(row, advantage), self.objective(row, pair)
        if with_advantage is None or with_pair is None:
            return -2
        wanted = advantage_key(with_advantage), policy_key(with_pair)

        def number() -> int:
            known = self.options.directs.places.get(wanted)
            if known is None:
                by_token = self.natures.by_token(row, advantage, pair)
                known = self.options.direct(wanted, making(row, advantage, pair), by_token=by_token)
            return DIRECT + known

        return self._tried(number, pair)

    def objective(self, row: Plan, one: Change) -> Objective | None:
        """The row with a change; None where it cannot be."""
        try:
            return self.natures.objective(row, one)
        except GrpoError:
            return None

    def kls(self, row: Plan, kl: Change, pairs: Sequence[Change]) -> list[int]:
        """[P] the KL's number beside each policy term; a ratio may weigh it."""
        first = self._kl(row, kl)
        if first < 0 or not self.options.weighs(first):
            return [first] * len(pairs)
        known: dict[str | None, int] = {None: first}
        for pair in pairs:
            ratio = pair.stages.get("ratio")
            if ratio not in known:
                known[ratio] = self._kl(row, kl, Change({"ratio": ratio} if ratio else {}))
        return [known[pair.stages.get("ratio")] for pair in pairs]

    def _kl(self, row: Plan, kl: Change, *pair: Change) -> int:
        def number() -> int:
            objective = self.natures.objective(row, kl, *pair)
            if not estimates_kl(objective, self.natures.columns):
                return -1
            return self.options.kl(objective, making(row, kl, *pair))

        return self._tried(number, kl)

    def beta(self, row: Plan, kl: Change) -> float:
        """The row's own β."""
        found = self.objective(row, kl)
        return 0.0 if found is None else found.beta

    def weight(self, row: Plan, one: Change) -> int:
        """The aggregation's number; −2 where it cannot be."""

        def number() -> int:
            return self.options.aggregate(self.natures.aggregate(row, one), making(row, one))

        return self._tried(number, one)

    def _tried(self, number: Callable[[], int], one: Change) -> int:
        try:
            return number()
        except GrpoError as error:
            name = " ".join(one.stages.values()) or "the variant's own"
            self.reasons.setdefault(name, str(error))
            return -2


def making(row: Plan, *changes: Change) -> Making:
    """Makes the row with changes."""
    return lambda: space.changed(row, *changes)
