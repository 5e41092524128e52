"""reasoning-gym's scorers in the grading pool: the same scores, and none that hangs a worker."""

import asyncio
from collections.abc import Callable

import grading_scorers
import pytest

from flashreinforce_molt.environments import EpisodeLost, Step, make_suite, opened, reasoning_gym

WORDS = {"dataset": "spell_backward", "template": "{word}>", "grade_in_pool": True}


def answer(suite, *answers: str) -> list[Step]:  # type: ignore[no-untyped-def]
    async def play() -> list[Step]:
        async with opened(suite):
            steps = []
            for text in answers:
                episode = suite.environment()
                episode.reset(suite.evaluation_tasks(1)[0])
                steps.append(await episode.step(text))
            return steps

    return asyncio.run(play())


def test_the_pool_gives_the_librarys_scores() -> None:
    suite = make_suite("reasoning_gym", WORDS)
    right = suite.evaluation_tasks(1)[0].data["item"]["answer"]
    assert [step.reward for step in answer(suite, right, right + "x", "")] == [1.0, 0.0, 0.0]


def hangs(*call: object) -> float:
    return grading_scorers.sleeps(60)


def fails(*call: object) -> float:
    return grading_scorers.raises("no such field")


@pytest.mark.parametrize(("scorer", "reason"), [(hangs, "grader_timeout"), (fails, "grader_error")])
def test_a_scorer_that_hangs_or_fails_loses_its_episode_by_name(
    monkeypatch: pytest.MonkeyPatch, scorer: Callable[..., float], reason: str
) -> None:
    suite = make_suite("reasoning_gym", {**WORDS, "grader_timeout_s": 0.3})
    monkeypatch.setattr(reasoning_gym, "_score", scorer)
    with pytest.raises(EpisodeLost) as lost:
        answer(suite, "anything")
    assert lost.value.reason == reason
