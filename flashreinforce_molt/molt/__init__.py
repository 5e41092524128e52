"""The Molt plugin: registration, flags, worker hook, agent adapters, launch."""

from flashreinforce_molt.molt.registration import register

__all__ = ["register"]
