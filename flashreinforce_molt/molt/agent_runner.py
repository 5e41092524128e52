"""Our environments under Molt's own step runner, which drives the model, records log-probs and closes.

What is ours: tasks, the chat template of observations, limits over all turns, and information added up over turns,
of which Molt would keep the last turn's only.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import numbers
from collections.abc import Mapping
from typing import Any

from molt.agents import Env, Result, StepEnvRunner

from flashreinforce_molt.environments import Environment, Step, Task, make_suite
from flashreinforce_molt.environments.base import Text
from flashreinforce_molt.molt.agent_settings import AgentSettings
from flashreinforce_molt.molt.task_rows import task_of
from flashreinforce_molt.rollout import codec


class EnvironmentRunner(StepEnvRunner):
    """One of our suites as Molt's `AgentRunner`."""

    PRERENDER_PROMPT = False
    """Rows reach us as messages (`--data.apply_chat_template`), because the environment poses the task."""

    def __init__(self, settings: AgentSettings | None = None) -> None:
        super().__init__(_Episode)
        self.settings = settings or AgentSettings.from_variable()
        self.suite = make_suite(self.settings.environment, dict(self.settings.options))
        self._opening: asyncio.Task[None] | None = None

    async def execute(
        self,
        prompt: Any,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
        tools: Any = None,
    ) -> Any:
        """One trajectory, by Molt's `StepEnvRunner.execute` with an episode of ours."""
        await self._open()
        task = task_of(prompt, label, tools)
        sampling = copy.deepcopy(sampling_params)
        limits = [limit for limit in (sampling.max_tokens, self.settings.max_new_tokens) if limit is not None]
        sampling.max_tokens = min(limits) if limits else None
        engine = _LastTurn(llm_engine)
        call = copy.copy(self)
        call.env_cls = lambda: _Episode(
            self.suite.environment(),
            task,
            self.settings,
            hf_tokenizer,
            engine,
            sampling,
            max_length,
        )
        return await StepEnvRunner.execute(
            call,
            last_words(prompt),
            label,
            sampling,
            max_length,
            hf_tokenizer,
            engine,
            images=images,
            tools=tools,
        )

    async def _open(self) -> None:
        """What the episodes of this process share, once; it is given back when the process ends."""
        if self._opening is None:
            open_suite = getattr(self.suite, "open", None)
            self._opening = asyncio.ensure_future(open_suite() if open_suite else asyncio.sleep(0))
        await asyncio.shield(self._opening)


class _Episode(Env):
    """Molt's `Env` around one episode of ours."""

    def __init__(
        self,
        environment: Environment,
        task: Task,
        settings: AgentSettings,
        tokenizer: Any,
        engine: _LastTurn,
        sampling: Any,
        max_length: int,
    ) -> None:
        self.environment, self.task, self.settings = environment, task, settings
        self.tokenizer, self.engine, self.sampling, self.max_length = tokenizer, engine, sampling, max_length
        self.turns = self.tokens = 0
        self.reward = 0.0
        self.info: dict[str, Any] = {}

    async def reset(self, state: dict[str, Any], **_: Any) -> dict[str, Any]:
        prompt = self.environment.reset(self.task)
        if inspect.isawaitable(prompt):
            prompt = await asyncio.wait_for(prompt, self.settings.step_timeout_s)
        text = first_text(self.tokenizer, prompt)
        tokens = len(self.tokenizer(text=text, add_special_tokens=False)["input_ids"])
        room = self.max_length - (self.sampling.max_tokens or 1)
        if tokens > room:  # Molt would cut its beginning off
            raise ValueError(
                f"prompt_too_long: {tokens} prompt tokens, but data.max_len leaves room for {room}"
            )
        return {**state, "observation": text}

    async def step(self, state: dict[str, Any], **_: Any) -> Result:
        turn, stop = self.engine.tokens, self.engine.stop_token
        action = codec.decode_turn(self.tokenizer, turn, frozenset() if stop is None else frozenset({stop}))
        step = _checked(await asyncio.wait_for(self.environment.step(action), self.settings.step_timeout_s))
        self.turns += 1
        self.tokens += len(turn)
        self.reward += float(step.reward)
        self._note(step.info)
        ended = step.terminated or step.truncated
        sampling = self._next_sampling(state["sampling_params"])
        cut = not ended and (self.turns >= self.settings.max_turns or sampling is None)
        if not (ended or cut) and step.observation is None:
            raise ValueError("the environment neither ended the episode nor gave an observation")
        return Result(
            reward=float(step.reward),
            score=self.reward,
            observation=""
            if ended or cut
            else observation_text(self.tokenizer, step.observation or "", stop),
            terminated=step.terminated or cut,
            truncated=step.truncated or cut,
            info={**self.info, "env_turns": float(self.turns)},
            sampling_params=sampling,
        )

    async def close(self) -> None:
        await self.environment.close()

    def _next_sampling(self, used: Any) -> Any:
        """Sampling of the next turn; None when the trajectory has no tokens left."""
        sampling = copy.deepcopy(used)
        sampling.max_tokens = self.sampling.max_tokens
        if self.settings.max_new_tokens is not None:
            left = self.settings.max_new_tokens - self.tokens
            if left <= 0:
                return None
            sampling.max_tokens = min(left, sampling.max_tokens or left)
        return sampling

    def _note(self, info: Mapping[str, Any]) -> None:
        """Numbers add up over turns, other values keep the last; `failed` is the label of the trajectory."""
        for name, value in info.items():
            if name == "failed":
                self.info[name] = float(bool(value))
            elif isinstance(value, numbers.Real) and not isinstance(value, bool):
                self.info[f"env_{name}"] = self.info.get(f"env_{name}", 0.0) + float(value)
            elif isinstance(value, bool):
                self.info[f"env_{name}"] = float(value)
            else:
                self.info[f"env_{name}"] = str(value)


class _LastTurn:
    """Molt's transport, remembering the tokens of the turn that it generated last."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.tokens: list[int] = []
        self.stop_token: int | None = None
        """The token that ended the turn; None when a limit cut it."""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        answer = await self._engine.generate(*args, **kwargs)
        output = answer[0].outputs[0]
        self.tokens = list(output.token_ids)
        self.stop_token = self.tokens[-1] if self.tokens and output.finish_reason != "length" else None
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def first_text(tokenizer: Any, prompt: Text) -> str:
    """What the model reads first: messages by its own chat template, plain text after its start token."""
    if isinstance(prompt, str):
        return (tokenizer.bos_token or "") + prompt
    return codec.prompt_text(tokenizer, prompt)


def last_words(prompt: Any) -> str:
    """The last user turn of a row, by which Molt's evaluation finds the row's data set again."""
    if isinstance(prompt, str):
        return prompt
    said = [message["content"] for message in prompt if message.get("role") == "user"]
    return said[-1] if said and isinstance(said[-1], str) else str(prompt)


def observation_text(tokenizer: Any, observation: Text, stop_token: int | None) -> str:
    """What stands between the model's turn, which `stop_token` ended, and its next one."""
    if isinstance(observation, str):
        return observation
    tail = codec.observation_text(tokenizer, observation)
    return tail if stop_token is None else tail.removeprefix(tokenizer.decode([stop_token]))


def _checked(step: Step) -> Step:
    if not isinstance(step, tuple) or len(step) != 5:
        raise TypeError(f"step returned {step!r}, not (observation, reward, terminated, truncated, info)")
    step = Step(*step)
    if not isinstance(step.reward, numbers.Real) or not math.isfinite(step.reward):
        raise ValueError(f"step returned the reward {step.reward!r}; a finite number is needed")
    return step
