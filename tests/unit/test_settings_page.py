from pathlib import Path

from flashreinforce_molt.config.catalogue import catalogue, groups
from flashreinforce_molt.config.reference import documentation, settings_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_every_setting_and_group_has_a_documentation_line():
    wanted = [*catalogue(), *groups()]
    assert [name for name in wanted if not documentation().get(name)] == []


def test_documentation_is_one_sentence_without_padding():
    for name, line in documentation().items():
        assert line == line.strip(), name
        assert line.endswith("."), name


def test_the_settings_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == settings_page(), (
        "run python -m flashreinforce_molt.config.reference"
    )


def test_the_page_shows_type_default_limits_and_meaning():
    row = next(line for line in settings_page().splitlines() if line.startswith("| `rollout.top_p`"))
    assert "| number | `1.0` | above 0 and at most 1 | Nucleus" in row
