"""Whether questions of an evaluation stand in the training data, word for word or nearly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flashreinforce_molt.data.questions import words
from flashreinforce_molt.data.selection import Row

GRAM_WORDS = 8
NEAR_SHARE = 0.6
"""Nearly the same: so large a share of the evaluation question's runs of eight words stands in one training question."""


@dataclass(frozen=True)
class Overlap:
    """An evaluation question that the training data hold; rows count from 0."""

    evaluation: str
    evaluation_row: int
    training_row: int
    share: float

    @property
    def exact(self) -> bool:
        return self.share == 1.0


def find_overlaps(training: Iterable[Row], evaluations: Mapping[str, Sequence[Row]]) -> list[Overlap]:
    """For each evaluation question the training question that comes closest, where one comes close enough."""
    questions = [
        (name, row, words(item.question))
        for name, rows in evaluations.items()
        for row, item in enumerate(rows)
    ]
    exact: dict[tuple[str, ...], list[int]] = defaultdict(list)
    grams: dict[tuple[str, ...], set[int]] = defaultdict(set)
    sizes = []
    for number, (_, _, said) in enumerate(questions):
        exact[tuple(said)].append(number)
        own = _grams(said)
        sizes.append(len(own))
        for gram in own:
            grams[gram].add(number)
    best: dict[int, tuple[float, int]] = {}
    for row, item in enumerate(training):
        said = words(item.question)
        shares = dict.fromkeys(exact.get(tuple(said), ()), 1.0)
        hits = Counter(number for gram in _grams(said) for number in grams.get(gram, ()))
        for number, count in hits.items():
            # Only the same words count as 1; the same runs can stand in a longer question.
            shares.setdefault(number, min(count / sizes[number], 0.999))
        for number, share in shares.items():
            if share >= NEAR_SHARE and share > best.get(number, (0.0, 0))[0]:
                best[number] = share, row
    return [
        Overlap(questions[number][0], questions[number][1], row, share)
        for number, (share, row) in sorted(best.items())
    ]


def _grams(said: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(said[start : start + GRAM_WORDS]) for start in range(len(said) - GRAM_WORDS + 1)}
