"""A Hugging Face hub on the loopback address that serves small data sets to the real client."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StandInHub:
    """`repositories` maps an id to (commit, {file name: bytes}); `requests` lists what was asked."""

    def __init__(self, repositories):
        self.repositories, self.requests = repositories, []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                hub.requests.append(self.path)
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request):
        path = request.path.partition("?")[0].strip("/")
        if path == "":
            return self.send(request, 200, b"hub")
        if path.startswith("api/datasets/"):
            id, _, revision = path.removeprefix("api/datasets/").partition("/revision/")
            return self.send_info(request, id, revision)
        id, _, rest = path.removeprefix("datasets/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        commit, files = self.repositories.get(id, (None, {}))
        if revision != commit or name not in files:
            return self.send(request, 404, b"", {"X-Error-Code": "EntryNotFound"})
        content = files[name]
        digest = hashlib.sha256(content).hexdigest()
        return self.send(request, 200, content, {"ETag": f'"{digest}"', "X-Repo-Commit": commit})

    def send_info(self, request, id, revision):
        if id not in self.repositories:
            return self.send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
        commit, files = self.repositories[id]
        if revision and revision not in (commit, "main"):
            return self.send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        info = {"id": id, "sha": commit, "siblings": [{"rfilename": name} for name in files]}
        return self.send(request, 200, json.dumps(info).encode())

    def send(self, request, status, content, headers=None):
        request.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(content)
