"""The pages: every link leads somewhere, and nothing waits to be filled in."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "examples/README.md",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_waits_to_be_filled_in(page: Path) -> None:
    for line in page.read_text("utf-8").splitlines():
        assert not re.fullmatch(r"[A-Z0-9_]{3,}", line), line
        assert not re.search(r"\b(TODO|FIXME|TBD)\b", line), line
