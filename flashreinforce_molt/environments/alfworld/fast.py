"""Make TextWorld's PDDL games fast: remember what they parse and translate again on every step and every reset.

Changes TextWorld in this process, so only a game worker does it. Nothing that a game says changes: a test plays
the same actions with and without, and compares every text and every list of actions.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

PARSED_TEXTS = 4096
"""Grammar texts whose parse is kept; a game has about a hundred."""


def remember_parses() -> None:
    """Parse a text of the grammar once. Every step derives one text for each admissible action."""
    import textworld.envs.pddl.textgen as textgen
    from textworld.logic import Rule

    parse = functools.lru_cache(PARSED_TEXTS)(textgen._parse_and_convert)

    def parse_and_convert(text: str, rule_name: str = "symbols", trace: bool = False) -> list[Any]:
        # A derivation writes its context into the symbols, so each gets its own.
        return copy.deepcopy(parse(text, rule_name=rule_name))

    def copy_context(context: dict[str, Any]) -> dict[str, Any]:
        # The names of things are only read; copying the two tables of them is enough.
        return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    textgen._parse_and_convert = parse_and_convert
    textgen.copy_context = copy_context
    Rule.parse_conjunctive_query = staticmethod(
        functools.lru_cache(PARSED_TEXTS)(Rule.parse_conjunctive_query)
    )


def remember_games(games: int) -> None:
    """Translate a game once: loading and resetting do it four times.

    Two of those are for a planner, which gets the plain translation instead; it never runs here.
    """
    import fast_downward
    from textworld.envs.pddl import logic

    translate = functools.lru_cache(games)(fast_downward.pddl2sas)

    def pddl2sas(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        return translate(domain, problem)

    fast_downward.pddl2sas = pddl2sas
    logic.GameLogic = functools.lru_cache(games)(logic.GameLogic)
