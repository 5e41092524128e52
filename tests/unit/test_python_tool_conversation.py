"""A whole conversation with the Python tool on the local engine, token by token, in a template like Qwen2.5's."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from math_rows import write_rows
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from flashreinforce_molt.data.prompts import PYTHON_TOOL
from flashreinforce_molt.environments import make_suite, opened
from flashreinforce_molt.rollout.episodes import EpisodeRunner, Limits
from flashreinforce_molt.rollout.generator import Generation
from flashreinforce_molt.sandbox import SandboxUnavailable
from flashreinforce_molt.trajectory import Trajectory

pytest.importorskip("math_verify", reason="needs the extra [tools]")

TEMPLATE = """
{%- if tools %}<|im_start|>system
{{ messages[0].content }}

# Tools
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == "tool" %}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}<|im_start|>user{% endif %}
<tool_response>
{{ m.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}<|im_end|>
{% endif %}
{%- elif not (tools and loop.first) %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def qwen_like_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character, and the two marks of a turn."""
    marks = ["<|im_start|>", "<|im_end|>"]
    characters = [*map(chr, range(32, 127)), "\n", "\u2063"]
    vocabulary = {piece: number for number, piece in enumerate([*marks, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", unk_token="?")
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    made.chat_template = TEMPLATE
    return made


TOKENIZER = qwen_like_tokenizer()


class Script:
    """Stands for the generator: says one whole turn in each step."""

    slots, version, stop_tokens = 1, 3, frozenset({TOKENIZER.eos_token_id})

    def __init__(self, *turns: str) -> None:
        self.turns = list(turns)
        self.rows: list[Generation] = []

    @property
    def active(self) -> int:
        return len(self.rows)

    def join(self, generations: list[Generation]) -> None:
        self.rows += generations

    def step(self) -> list[Generation]:
        ended, self.rows = self.rows, []
        for generation in ended:
            generation.turn_start = len(generation.tokens)
            said = [*TOKENIZER.encode(self.turns.pop(0)), TOKENIZER.eos_token_id]
            generation.observe(said)
            generation.policy[generation.turn_start :] = [True] * len(said)
            generation.log_probs += [-0.5] * len(said)
            generation.versions += [self.version] * len(said)
            generation.end = "stop"
        return ended

    def holds(self, generation: Generation) -> bool:
        return generation in self.rows

    def leave(self, generation: Generation) -> None:
        self.rows.remove(generation)


def converse(folder: Path, *turns: str, max_turns: int = 9) -> Trajectory:
    """The trajectory of "What is 6+1?" when the model says these turns."""
    suite = make_suite("python_tool", {"path": write_rows(folder / "rows.jsonl", [6], tools=True)})
    limits = Limits(max_new_tokens=2000, max_context_tokens=5000, max_turns=max_turns)

    async def play() -> Trajectory:
        async with opened(suite):
            runner = EpisodeRunner(Script(*turns), suite, TOKENIZER, limits, seed=0, lockstep=True)
            runner.start(0, suite.rows[0])
            while not (ended := await runner.advance()):
                pass
            await runner.close()
            return ended[0]

    try:
        return asyncio.run(play())
    except SandboxUnavailable as missing:
        pytest.skip(str(missing))


def call(code: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': code}})}\n</tool_call>"


TURNS = ("Let me compute.\n" + call("print(6 + 1)"), call("1") + call("2 / 0"), "It is \\boxed{7}.")


def test_the_tokens_are_those_of_the_template_for_the_whole_conversation(tmp_path: Path) -> None:
    trajectory = converse(tmp_path, *TURNS)
    row = make_suite("python_tool", {"path": str(tmp_path / "rows.jsonl")}).rows[0]
    text = TOKENIZER.decode(trajectory.tokens)
    answers = [part.partition("\n</tool_response>")[0] for part in text.split("<tool_response>\n")[1:]]
    assert answers[:2] == ["7", "1"]
    assert answers[2].startswith("Traceback")
    said = [
        *row.data["prompt"],
        {"role": "assistant", "content": TURNS[0]},
        {"role": "tool", "content": answers[0]},
        {"role": "assistant", "content": TURNS[1]},
        {"role": "tool", "content": answers[1]},
        {"role": "tool", "content": answers[2]},
        {"role": "assistant", "content": TURNS[2]},
    ]
    whole = TOKENIZER.apply_chat_template(said, tools=[PYTHON_TOOL], tokenize=False)
    assert text + "\n" == whole
    assert '"name": "python"' in text.partition("</tools>")[0]


def test_only_what_the_model_said_is_trained(tmp_path: Path) -> None:
    trajectory = converse(tmp_path, *TURNS)
    spoken = TOKENIZER.decode(trajectory.tokens[trajectory.action_mask])
    assert spoken == "".join(f"{turn}<|im_end|>" for turn in TURNS)
    assert trajectory.policy_tokens == len(trajectory.behavior_log_probs)
    assert np.array_equal(np.unique(trajectory.policy_versions), [3])


def test_a_conversation_reports_its_turns_calls_and_verdict(tmp_path: Path) -> None:
    trajectory = converse(tmp_path, *TURNS)
    assert (trajectory.reward, trajectory.failed, trajectory.finish_reason) == (1.0, False, "stop")
    assert trajectory.info == {
        "turns": 3,
        "tool_calls": 3,
        "tool_errors": 1,
        "malformed_calls": 0,
        "no_answer": False,
    }


def test_the_turn_limit_ends_a_conversation_without_an_answer_as_failed(tmp_path: Path) -> None:
    trajectory = converse(tmp_path, *TURNS, max_turns=2)
    assert (trajectory.reward, trajectory.failed, trajectory.finish_reason) == (0.0, True, "turn_limit")
    assert (trajectory.info["tool_calls"], trajectory.info["no_answer"]) == (3, True)
