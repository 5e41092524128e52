"""How old the data of an update will be, before anything has run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LagExpectation:
    """Updates between sampling a token and training on it, by cause; the real lag is measured at run time."""

    in_flight: float
    """Age while a trajectory is being generated: the pool divided by the batch."""
    in_queue: int
    """Age while finished batches wait for the learner: their number, if the queue is full."""
    bound: int | None
    """What the engine enforces; None where nothing is."""

    @property
    def low(self) -> float:
        """With an empty queue: rollouts are the bottleneck."""
        return self.in_flight if self.bound is None else min(self.in_flight, self.bound)

    @property
    def high(self) -> float:
        """With a full queue: the learner is the bottleneck."""
        both = self.in_flight + self.in_queue
        return both if self.bound is None else min(both, self.bound)

    @property
    def text(self) -> str:
        if self.high == 0:
            return "0 updates: each batch is sampled with the weights that it updates"
        bound = f", bounded by {self.bound}" if self.bound is not None else ""
        return (
            f"{self.low:g} updates with an empty queue, {self.high:g} with a full one{bound}; "
            "the real lag is measured at run time"
        )


def expected_lag(
    *, in_flight: int, batch_size: int, queue_depth: int, synchronous: bool = False, bound: int | None = None
) -> LagExpectation:
    """The lag that the sizes imply when every part is busy.

    A pool of `in_flight` trajectories turns over once in `in_flight / batch_size` updates, so that is about the age of
    a finished one: 512 with B=128 makes 4. A full queue adds one update for each batch that waits in it.
    """
    if synchronous:
        return LagExpectation(0.0, 0, 0)
    return LagExpectation(round(in_flight / batch_size, 2), queue_depth, bound)
