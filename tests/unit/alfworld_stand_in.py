"""Plays games without the alfworld package, as the module of a worker: a counter that misbehaves on request.

`python -m alfworld_stand_in DESCRIPTOR MODE KEPT` speaks the protocol of the real worker. A game whose file is called
`deadly` ends its worker at every start.
"""

import json
import os
import sys
import time
from multiprocessing.connection import Connection


def scene(said: list[str]) -> dict:
    return {
        "text": f"You did {said}.",
        "admissible": ["count", "die once", "hang", "win"],
        "won": said[-1:] == ["win"],
    }


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    games: dict[int, list[str]] = {}
    if "broken" in sys.argv[2]:
        sys.exit("no such library")
    connection.send_bytes(b"{}")
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        game = request["game"]
        answer: dict = {}
        if request["do"] == "start" and "missing" in request["file"]:
            answer = {"error": "FileNotFoundError: no such game"}
        elif request["do"] == "start":
            if "deadly" in request["file"]:
                os._exit(3)
            if "slow" in request["file"]:
                time.sleep(0.3)
            games[game] = list(request["replay"])
            answer = scene(games[game])
        elif request["do"] == "act" and game not in games:
            answer = {"lost": True}
        elif request["do"] == "act":
            if request["command"] == "die once":
                print("last words", flush=True)
                os._exit(3)
            if request["command"] == "hang":
                time.sleep(60)
            games[game].append(request["command"])
            answer = scene(games[game])
        else:
            games.pop(game, None)
        connection.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
