"""What became of every trajectory: proof that none is trained twice and none is lost without a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any


class Ledger:
    """Fate of the trajectories 0, 1, 2, ... of a run. Settled ids are kept as a watermark and what lies above it."""

    def __init__(self) -> None:
        self.trained_total = 0
        self.dropped: Counter[str] = Counter()
        self._watermark = 0
        self._above: set[int] = set()

    @property
    def dropped_total(self) -> int:
        return self.dropped.total()

    @property
    def settled_total(self) -> int:
        """Trajectories that were trained or dropped."""
        return self.trained_total + self.dropped_total

    def is_settled(self, trajectory_id: int) -> bool:
        """Whether a trajectory was trained or dropped already."""
        return trajectory_id < self._watermark or trajectory_id in self._above

    def train(self, trajectory_ids: Iterable[int]) -> None:
        """Record a batch that is about to be trained. Raises RuntimeError when one of them had its turn."""
        for trajectory_id in trajectory_ids:
            self._settle(trajectory_id, "trained")
            self.trained_total += 1

    def drop(self, trajectory_id: int, reason: str) -> None:
        """Record a trajectory that will not be trained, under a named reason."""
        self._settle(trajectory_id, f"dropped ({reason})")
        self.dropped[reason] += 1

    def drop_trained(self, count: int, reason: str) -> None:
        """Count as dropped what was recorded for training and then not trained; its ids stay settled."""
        if count > self.trained_total:
            raise RuntimeError(
                f"{count} trajectories were not trained, of {self.trained_total} recorded as such"
            )
        self.trained_total -= count
        self.dropped[reason] += count

    def unsettled(self, below: int) -> list[int]:
        """Ids under `below` that were issued and have no fate yet, in order."""
        return [i for i in range(self._watermark, below) if i not in self._above]

    def state(self) -> dict[str, Any]:
        """As JSON values, for a checkpoint."""
        return {
            "trained_total": self.trained_total,
            "dropped": dict(self.dropped),
            "watermark": self._watermark,
            "above": sorted(self._above),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Ledger:
        ledger = cls()
        ledger.trained_total = int(state["trained_total"])
        ledger.dropped = Counter({str(reason): int(count) for reason, count in state["dropped"].items()})
        ledger._watermark = int(state["watermark"])
        ledger._above = {int(i) for i in state["above"]}
        if ledger.settled_total != ledger._watermark + len(ledger._above):
            raise ValueError(
                f"the ledger counts {ledger.settled_total} trained and dropped trajectories but lists "
                f"{ledger._watermark + len(ledger._above)}"
            )
        return ledger

    def _settle(self, trajectory_id: int, fate: str) -> None:
        if self.is_settled(trajectory_id):
            raise RuntimeError(
                f"trajectory {trajectory_id} has been settled already and would be {fate} again"
            )
        self._above.add(trajectory_id)
        while self._watermark in self._above:
            self._above.remove(self._watermark)
            self._watermark += 1
