"""The process in which games run: one thread, many games, one request at a time. Imports no torch.

TextWorld's planner library is not safe in threads and crashes when it is unloaded; so environments are used again for
other games, and the process ends without cleaning up.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from flashreinforce_molt.environments.alfworld import fast

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, stock: bool, kept_games: int) -> None:
    """Serve requests until the other end of the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's to handle
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = Connection(descriptor)
    games = Games(stock, kept_games)
    connection.send_bytes(b"{}")
    while True:
        try:
            request = json.loads(connection.recv_bytes())
            connection.send_bytes(json.dumps(games.answer(request)).encode())
        except (EOFError, OSError):
            os._exit(0)


class Games:
    """Every game that is being played in this process."""

    def __init__(self, stock: bool, kept_games: int) -> None:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs import PddlEnv

        if not stock:
            fast.remember_parses()
            fast.remember_games(kept_games)

        def new_environment() -> Any:
            wanted = textworld.EnvInfos(won=True, admissible_commands=True)
            return AlfredDemangler(PddlEnv(wanted), shuffle=False)

        self._new_environment = new_environment
        self._playing: dict[int, Any] = {}
        self._unused: list[Any] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The scene after a request, or what went wrong."""
        game, do = request["game"], request["do"]
        if do == "close":
            self._close(game)
            return {}
        if do == "act" and game not in self._playing:
            return {"lost": True}
        try:
            if do == "start":
                return self._start(game, request["file"], request["replay"])
            return _scene(self._playing[game].step(request["command"])[0])
        except (Exception, SystemExit) as error:  # bad PDDL ends the translator by SystemExit
            self._close(game)
            return {"error": f"{type(error).__name__}: {error}"[:500]}

    def _start(self, game: int, file: str, replay: list[str]) -> dict[str, Any]:
        environment = self._unused.pop() if self._unused else self._new_environment()
        self._playing[game] = environment
        environment.load(file)
        state = environment.reset()
        for command in replay:
            state = environment.step(command)[0]
        return _scene(state)

    def _close(self, game: int) -> None:
        environment = self._playing.pop(game, None)
        if environment is not None:
            self._unused.append(environment)


def _scene(state: Any) -> dict[str, Any]:
    return {
        "text": state.feedback,
        "admissible": list(state["admissible_commands"]),
        "won": bool(state["won"]),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "stock", int(sys.argv[3]))
