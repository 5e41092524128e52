"""The page about the metrics is made from the table of metrics."""

from __future__ import annotations

from pathlib import Path

from flashreinforce_molt.telemetry import EVALUATION_METRICS, METRICS
from flashreinforce_molt.telemetry.reference import main, reference_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_page_is_current() -> None:
    hint = "run `python -m flashreinforce_molt.telemetry.reference docs/metrics.md`"
    assert PAGE.read_text("utf-8") == reference_page(), hint


def test_every_metric_is_on_the_page_and_fully_explained() -> None:
    page = reference_page()
    for metric in (*METRICS, *EVALUATION_METRICS):
        assert page.count(f"| `{metric.name}` |") >= 1
        assert metric.unit
        assert metric.meaning.endswith(".")
        assert metric.reading.endswith(".")


def test_names_in_the_table_are_unique() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    assert main([str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text("utf-8") == reference_page()
