"""The data sets that recipes name: where they come from and how many rows they must have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataSet:
    """A published set of questions and answers.

    `rows` is its size as published; None: not asserted. `may_repeat` says that the published set itself might hold a
    question twice, which counts towards its size then; in all others each question must be there once.
    """

    name: str
    id: str
    split: str
    rows: int | None
    may_repeat: bool = False


DAPO = DataSet("dapo", "BytedTsinghua-SIA/DAPO-Math-17k", "train", None, may_repeat=True)
SANITY_R1 = DataSet("sanity_r1", "sail/Sanity-Test-R1D-1.5B", "train", 1460, may_repeat=True)

AIME24 = DataSet("aime24", "HuggingFaceH4/aime_2024", "train", 30)
AIME25 = DataSet("aime25", "math-ai/aime25", "test", 30)
AMC23 = DataSet("amc23", "math-ai/amc23", "test", 40)
MATH500 = DataSet("math500", "HuggingFaceH4/MATH-500", "test", 500)
MINERVA = DataSet("minerva", "math-ai/minervamath", "test", 272, may_repeat=True)
OLYMPIADBENCH = DataSet("olympiadbench", "math-ai/olympiadbench", "test", 674, may_repeat=True)

MATH_EVALUATION = (AIME24, AIME25, AMC23, MATH500, MINERVA, OLYMPIADBENCH)
THREE_BENCHMARKS = (AMC23, MINERVA, AIME25)
FIVE_BENCHMARKS = (MATH500, AMC23, MINERVA, AIME25, OLYMPIADBENCH)
EVALUATIONS = {
    "aime": (AIME24, AIME25),
    "three_benchmarks": THREE_BENCHMARKS,
    "five_benchmarks": FIVE_BENCHMARKS,
}
"""What recipes evaluate on: r1, then qwen_math and the tool recipes, then qwen_math's variant five_benchmark_eval16."""

DAPO_TRAINING_ROWS = 7500
"""Training questions of qwen_math, python_tools and moe. The paper's own choice is unpublished; ours is by hash."""

ALFWORLD_ROWS = {"train": 1024, "valid_seen": 140, "valid_unseen": 134}
"""Games of each split; of `train`, those that are chosen."""
