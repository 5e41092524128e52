"""What environments may ask of the engine: tools in the prompt, shared resources, lost episodes, demonstrations."""

import asyncio
from pathlib import Path

import pytest
from shared_suite import SharedSuite
from test_codec import TEMPLATE, chat_tokenizer
from test_episodes import play
from tiny_engine import tiny_policy

from flashreinforce_molt.config import Config, SettingError
from flashreinforce_molt.environments import Chat, Demonstration, make_suite, opened, options_of
from flashreinforce_molt.evaluation import evaluate
from flashreinforce_molt.learners.warm_start import _collate
from flashreinforce_molt.rollout.codec import encode_observation, encode_prompt
from flashreinforce_molt.rollout.episodes import Dropped

MESSAGES = [{"role": "user", "content": "abc"}]
TOOL = {"type": "function", "function": {"name": "python"}}


def test_the_models_template_shows_the_tools() -> None:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = "{% if tools %}{{ tools[0]['function']['name'] + '\n' }}{% endif %}" + TEMPLATE
    shown = tokenizer.decode(encode_prompt(tokenizer, Chat(MESSAGES, [TOOL])))
    assert shown == "python\n<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n"
    assert encode_prompt(tokenizer, Chat(MESSAGES)) == encode_prompt(tokenizer, MESSAGES)


def test_a_template_that_shows_no_tools_is_refused() -> None:
    with pytest.raises(ValueError, match="the chat template shows no tools"):
        encode_prompt(chat_tokenizer(), Chat(MESSAGES, [TOOL]))


def test_tools_cannot_come_with_an_observation() -> None:
    with pytest.raises(ValueError, match="tools belong to the first messages"):
        encode_observation(chat_tokenizer(), Chat(MESSAGES, [TOOL]), stop_token=None)


@pytest.mark.parametrize("fail", ["", "inside", "open"])
def test_what_a_suite_shares_is_given_back_on_every_path(tmp_path: Path, fail: str) -> None:
    suite = SharedSuite(str(tmp_path / "log"), fail=fail)

    async def use() -> None:
        async with opened(suite):
            assert suite.is_open
            if fail == "inside":
                raise OSError("worker dies")

    if fail:
        with pytest.raises(OSError, match=r"no room for a sandbox|worker dies"):
            asyncio.run(use())
    else:
        asyncio.run(use())
    assert suite.events() == ["open", "close"]


def test_a_lost_episode_is_dropped_under_its_own_reason() -> None:
    class Suite(SharedSuite):
        def __init__(self) -> None:
            super().__init__("unused", lost=1)
            self.is_open = True

    dropped, *others = sorted(play(Suite(), count=3), key=lambda ended: ended.trajectory_id)
    assert dropped == Dropped(0, "shared-0", "grader_timeout", "no verdict within 3 s")
    assert not any(isinstance(other, Dropped) for other in others)


def evaluated(suite: SharedSuite, size: int):  # type: ignore[no-untyped-def]
    config = Config()
    config.rollout.max_new_tokens, config.rollout.max_context_tokens = 3, 16
    return evaluate(tiny_policy(), suite, suite.evaluation_tasks(size), config)


def test_an_evaluation_opens_its_suite_once_and_leaves_lost_episodes_out(tmp_path: Path) -> None:
    suite = SharedSuite(str(tmp_path / "log"), lost=2)
    result = evaluated(suite, 40)
    assert suite.events() == ["open", "close"]
    assert result.lost == {"grader_timeout": 4}  # sampled and greedy
    assert result.sampled_accuracy * 38 == pytest.approx(round(result.sampled_accuracy * 38))


def test_an_evaluation_that_loses_too_much_says_nothing(tmp_path: Path) -> None:
    suite = SharedSuite(str(tmp_path / "log"), lost=3)
    with pytest.raises(RuntimeError, match=r"lost 3 of 40 episodes; shared-2: grader_timeout \(no verdict"):
        evaluated(suite, 40)
    assert suite.events() == ["open", "close"]


def test_demonstrations_teach_every_action_and_no_observation() -> None:
    policy = tiny_policy()
    tokenizer = policy.tokenizer
    example = Demonstration("2*3+4>", "a10", turns=[("c2*3", "=6>"), ("c6+4", "=10>")])
    short = Demonstration("1>", "a1")
    input_ids, labels = _collate(policy, [example, short])
    assert tokenizer.decode(input_ids[0]) == "<s>2*3+4>c2*3</s>=6>c6+4</s>=10>a10</s>"
    assert tokenizer.decode(labels[0][labels[0] != -100]) == "c2*3</s>c6+4</s>a10</s>"
    assert tokenizer.decode(labels[1][labels[1] != -100]) == "a1</s>"
    assert (labels[labels != -100] == input_ids[labels != -100]).all()


def test_suites_that_read_files_get_those_of_the_recipe_and_options_win() -> None:
    config = Config()
    config.environment.name = "math"
    config.data.path, config.data.max_rows = "train.jsonl", 7
    config.evaluation.suites = {"amc": {"path": "amc.jsonl"}, "aime": {"path": "aime.jsonl"}}
    files = {"path": "train.jsonl", "max_rows": 7, "evaluation_path": ["amc.jsonl", "aime.jsonl"]}
    assert options_of(config) == files
    config.environment.options = {"path": "other.jsonl"}
    assert options_of(config) == {**files, "path": "other.jsonl"}
    config.environment.name, config.environment.options = "tool_demo", {"most": 2}
    assert options_of(config) == {"most": 2}


def test_unknown_environments_and_options_are_named() -> None:
    with pytest.raises(SettingError, match=r"nearest: tool_demo"):
        make_suite("tool_dem", {})
    with pytest.raises(
        SettingError, match=r"environment\.options\.mots: tool_demo has no such option; nearest: most"
    ):
        make_suite("tool_demo", {"mots": 3})
