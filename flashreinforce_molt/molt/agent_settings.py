"""What our agent must know in every runner process: Molt hands an agent nothing but the path of its file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flashreinforce_molt.config.errors import SettingError

VARIABLE = "FLASHREINFORCE_MOLT_AGENT"
"""Environment variable of the workers that carries the settings as JSON."""


@dataclass(frozen=True)
class AgentSettings:
    """The `--flash.*` options of the agent."""

    environment: str
    options: Mapping[str, Any] = field(default_factory=dict)
    max_turns: int = 1
    max_new_tokens: int | None = None
    """Policy tokens in one trajectory, over all its turns."""
    step_timeout_s: float = 30.0

    @classmethod
    def of(cls, args: Any) -> AgentSettings | None:
        """From the namespace of Molt's parser; None where the command names no environment of ours."""
        flash = args.flash
        if flash.environment is None:
            return None
        try:
            options = json.loads(flash.environment_options or "{}")
        except json.JSONDecodeError as error:
            raise SettingError(f"--flash.environment_options is no JSON: {error}") from None
        if not isinstance(options, dict):
            raise SettingError(
                f"--flash.environment_options must be a JSON object, got {flash.environment_options}"
            )
        return cls(flash.environment, options, flash.max_turns, flash.max_new_tokens, flash.step_timeout_s)

    def variable(self) -> dict[str, str]:
        """For the environment of the workers."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_variable(cls) -> AgentSettings:
        """In a worker."""
        text = os.environ.get(VARIABLE)
        if not text:
            raise SettingError(
                f"{VARIABLE} is not set: our agent is started by flashreinforce_molt.molt.launch, which names its environment"
            )
        return cls(**json.loads(text))
