"""The numbers of the options that a row and its changes need."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grpo_cli.commands.match.space import changes as space
from grpo_cli.commands.match.space.changes import OWN, Change
from grpo_cli.commands.match.space.natures import Natures
from grpo_cli.commands.match.space.options import (
    DIRECT,
    Options,
    advantage_key,
    policy_key,
)
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError
from grpo_cli.objective.objective import Objective
from grpo_cli.variants.plan import Plan


class Numbers:
    """Numbers options, and remembers what could not be tried.

    Args:
        alone: the record that everything is tried on.
        options: where they are numbered.
    """

    def __init__(self, alone: Chunk, options: Options) -> None:
        self.natures = Natures(alone)
        self.options = options
        self.reasons: dict[str, str] = {}

    def advantage(self, row: Plan, one: Change, *, quick: bool) -> int:
        """The advantage's number; −1 where tokens have their own, −2 where it cannot be."""
        plan = space.changed(row, one)
        if quick and plan.wants_moments and plan.batch == "input":
            return -1

        def number() -> int:
            objective = self.natures.objective(plan)
            per_response = self.natures.of(plan).per_response
            return self.options.advantage(objective, plan) if per_response else -1

        return self._tried(number, one)

    def pair(self, row: Plan, one: Change) -> int:
        """That of the policy term by sign; −1 where A enters otherwise, −2 where it cannot be."""
        plan = space.changed(row, one)

        def number() -> int:
            kind = self.natures.of(plan)
            objective = self.natures.objective(plan)
            return self.options.policy(objective, plan) if kind.by_sign and kind.shared else -1

        return self._tried(number, one)

    def direct(
        self, row: Plan, advantage: Change, pair: Change, like: tuple[Objective | None, ...]
    ) -> int:
        """That of a policy term with its advantages.

        Args:
            row: the row.
            advantage, pair: what is changed in it.
            like: the objective with the first change, which has these advantages, and that with
                the second, which has this policy term.
        """
        of_advantage, of_pair = like
        if of_advantage is None or of_pair is None:
            return -2
        wanted = advantage_key(of_advantage), policy_key(of_pair)

        def number() -> int:
            known = self.options.directs.places.get(wanted)
            if known is None:
                plan = space.changed(row, advantage, pair)
                by_token = self.natures.by_token(plan)
                known = self.options.direct(wanted, plan, by_token=by_token)
            return DIRECT + known

        return self._tried(number, pair)

    def objective(self, row: Plan, one: Change) -> Objective | None:
        """The row with a change; None where it cannot be."""
        try:
            return self.natures.objective(space.changed(row, one))
        except GrpoError:
            return None

    def kls(self, row: Plan, kl: Change, pairs: Sequence[Change]) -> list[int]:
        """[P] the KL's number beside each policy term; a ratio may weigh it."""
        first = self._kl(row, kl, OWN)
        if first < 0 or not self.options.weighs(first):
            return [first] * len(pairs)
        known: dict[str | None, int] = {None: first}
        for pair in pairs:
            ratio = pair.stages.get("ratio")
            if ratio not in known:
                known[ratio] = self._kl(row, kl, Change({"ratio": ratio} if ratio else {}))
        return [known[pair.stages.get("ratio")] for pair in pairs]

    def _kl(self, row: Plan, kl: Change, pair: Change) -> int:
        plan = space.changed(row, kl, pair)
        return self._tried(lambda: self.options.kl(self.natures.objective(plan), plan), kl)

    def beta(self, row: Plan, kl: Change) -> float:
        """The row's own β."""
        plan = space.changed(row, kl)
        try:
            return self.natures.objective(plan).beta
        except GrpoError:
            return 0.0

    def weight(self, row: Plan, one: Change) -> int:
        """The aggregation's number; −2 where it cannot be."""
        plan = space.changed(row, one)
        return self._tried(lambda: self.options.aggregate(self.natures.aggregate(plan), plan), one)

    def _tried(self, number: Callable[[], int], one: Change) -> int:
        try:
            return number()
        except GrpoError as error:
            name = " ".join(one.stages.values()) or "the variant's own"
            self.reasons.setdefault(name, str(error))
            return -2
