"""The agent file that Molt loads by its path (`--train.agent_path`) for every environment of ours."""

from flashreinforce_molt.molt.agent_runner import EnvironmentRunner as AgentRunner

__all__ = ["AgentRunner"]
