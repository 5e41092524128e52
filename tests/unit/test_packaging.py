"""What setup.cfg says of the package is complete."""

import configparser
from pathlib import Path

ROOT = Path(__file__).parents[2]


def metadata() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_every_package_is_listed() -> None:
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "flashreinforce_molt").rglob("__init__.py")
    }
    listed = set(metadata()["options"]["packages"].split())
    assert listed == found | {"flashreinforce_molt.shipped_recipes"}


def test_every_module_lies_in_a_package() -> None:
    for path in (ROOT / "flashreinforce_molt").rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), path


def test_every_file_that_is_not_python_is_package_data() -> None:
    patterns = metadata()["options.package_data"]["flashreinforce_molt"].split()
    package = ROOT / "flashreinforce_molt"
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    for path in package.rglob("*"):
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            assert path in shipped, path
