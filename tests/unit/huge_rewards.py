"""An environment whose rewards are finite and yet too large for the gradient, for the positions that it is told."""

from __future__ import annotations

from typing import Any

from toy_suite import ToyEpisode, ToySuite

from flashreinforce_molt.environments.base import Step


class HugeRewards(ToySuite):
    """Positions `first` to `last` of the data order score +-1e38."""

    def __init__(self, first: int = 0, last: int = 10**9) -> None:
        super().__init__()
        self.first, self.last = first, last

    def environment(self) -> HugeEpisode:
        return HugeEpisode(self)


class HugeEpisode(ToyEpisode):
    async def step(self, action: str) -> Any:
        step = await super().step(action)
        suite = self.suite
        assert isinstance(suite, HugeRewards)
        if suite.first <= self.position <= suite.last:
            return Step(None, 1e38 * (-1) ** self.position, True, info={"failed": False})
        return step
