"""ALFWorld's household games: an agent acts by text until the task is done, 50 turns at most."""

from flashreinforce_molt.environments.alfworld.suite import AlfWorld

__all__ = ["AlfWorld"]
