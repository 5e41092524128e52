"""Molt's own loader and prompt data set read what preparation writes."""

from types import SimpleNamespace

import pytest

pytest.importorskip("molt")
pytest.importorskip("datasets")

from flashreinforce_molt.data import PreparedRows
from flashreinforce_molt.data.prepared import write_rows
from flashreinforce_molt.data.prompts import PYTHON_TOOL, math_prompt, tool_prompt
from flashreinforce_molt.data.selection import Row

pytestmark = pytest.mark.slow


class Tokenizer:
    def apply_chat_template(self, chat, tokenize, add_generation_prompt, tools=None):
        return repr((chat, tools))


@pytest.mark.parametrize(("prompt_of", "with_tools"), [(math_prompt, False), (tool_prompt, True)])
def test_molt_sees_prompt_label_and_tools(tmp_path, monkeypatch, prompt_of, with_tools):
    from molt.datasets.prompts_dataset import PromptDataset
    from molt.datasets.utils import blending_datasets

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "train.parquet"
    rows = [Row(f"{n:032x}", f"Question {n}?", str(n)) for n in range(5)]
    write_rows(path, "dapo", rows, prompt_of, with_tools=with_tools)
    columns = SimpleNamespace(
        input_key="prompt",
        label_key="reward_model",
        tools_key="tools" if with_tools else None,
        apply_chat_template=True,
    )
    strategy = SimpleNamespace(
        args=SimpleNamespace(use_ms=False, data=columns), print=lambda *a: None, is_rank_0=lambda: False
    )
    data = PromptDataset(blending_datasets(str(path), None, strategy), Tokenizer(), strategy)
    tools = [PYTHON_TOOL] if with_tools else None
    assert len(data) == len(PreparedRows(path)) == 5
    assert data[3] == (
        "dapo",
        repr((prompt_of("Question 3?"), tools)),
        {"ground_truth": "3", "style": "boxed"},
        None,
        tools,
    )
