"""The side of the sandbox that runs in its server, supervisors and snippets; standard library only."""
