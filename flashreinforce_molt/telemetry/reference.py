"""The reference page of the metrics, made from `metric_table`.

`python -m flashreinforce_molt.telemetry.reference docs/metrics.md` writes it; without a file it is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from flashreinforce_molt.telemetry.metric_table import EVALUATION_METRICS, FAULT_METRICS, METRICS, Metric

_HEADINGS = {
    "progress": "Progress",
    "reward": "Reward",
    "trust": "Trust region",
    "lag": "Policy lag",
    "response": "Responses",
    "optimizer": "Optimizer",
    "trajectories": "Trajectories",
    "throughput": "Throughput",
}

_INTRODUCTION = """\
# Metrics

<!-- Made by `python -m flashreinforce_molt.telemetry.reference docs/metrics.md`; edit the table in telemetry/metric_table.py. -->

A run writes one JSON object per update to `metrics.jsonl`, and one per evaluation to `evaluation.jsonl`. `null` stands
for "not measured"; NaN and infinity are never written. TensorBoard shows the same numbers as `GROUP/NAME`, for example
`lag/lag_in_queue`, and `flashreinforce-molt report RUN` draws them.

An environment may add its own numbers, such as `tool_calls_mean`; they appear under `environment/` and get a chart of
their own. Where trajectories are dropped, `dropped_REASON` counts them by reason.
"""

_LIMITS = """\
## What the numbers do not say

* `sequence_kl_mean` is the Bernoulli KL of the sampled tokens, a lower bound of the full categorical KL. A trajectory
  that passes the gate is not certified to be close to on-policy.
* The gate bounds the mean drift of a trajectory, not the weight of one token. Watch `ratio_max` and `top_token_share`.
* `reward_mean` is measured on training prompts, with the policies that sampled them; only an evaluation on held-out
  tasks supports a claim.
* Throughput and idle time belong to one machine; compare runs only on the same one, and on a quiet one.
"""


def reference_page() -> str:
    """The text of `docs/metrics.md`."""
    parts = [_INTRODUCTION, "## Every update: `metrics.jsonl`\n"]
    for group, heading in _HEADINGS.items():
        rows = [metric for metric in (*METRICS, *FAULT_METRICS) if metric.group == group]
        parts.append(f"### {heading}\n\nTensorBoard group `{group}/`.\n\n{_table(rows)}")
    parts.append(
        "## Evaluations: `evaluation.jsonl`\n\nTensorBoard group `evaluation/`. Further fields are free; the report "
        "shows `examples`, a list of objects with\n`prompt`, `response`, and optionally `answer` and `score`.\n\n"
        + _table(EVALUATION_METRICS)
    )
    parts.append(_LIMITS)
    return "\n".join(parts)


def _table(metrics: Sequence[Metric]) -> str:
    rows = ["| name | unit | what it is | how to read it |", "|---|---|---|---|"]
    rows += [f"| `{each.name}` | {each.unit} | {each.meaning} | {each.reading} |" for each in metrics]
    return "\n".join(rows) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Print the page, or write it to the file that is given."""
    if arguments:
        Path(arguments[0]).write_text(reference_page(), encoding="utf-8")
    else:
        sys.stdout.write(reference_page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
