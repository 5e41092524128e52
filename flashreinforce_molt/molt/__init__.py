"""The Molt plugin: registration, flags, worker hook, agent adapters, launch."""
