"""The local rollout engine: generator, episodes, worker process, trajectory pool and weight publication."""
