"""Runs in the far machine: starts there what a test in the near one asks for, one process per connection.

A connection begins with a line of JSON, {"argv": [...]}; then comes what the process says, a line of JSON
each, {"line": ...}, and at last {"status": ...}. The other way go {"say": ...} (a line for its stdin),
{"end": true} (no more of these) and {"signal": ...}. The process is killed when the connection ends: nothing
outlives its test.
"""

from __future__ import annotations

import json
import os
import signal
import socketserver
import subprocess
import threading
from contextlib import suppress

PORT = 7000  # of a machine that runs nothing else


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        first = self.rfile.readline()
        if not first:
            return  # somebody looks whether we are here
        process = subprocess.Popen(
            json.loads(first)["argv"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        threading.Thread(target=self._obey, args=(process,), daemon=True).start()
        assert process.stdout is not None
        for line in process.stdout:
            self._send(line=line.rstrip("\n"))
        self._send(status=process.wait())

    def _send(self, **message: object) -> None:
        with suppress(OSError):
            self.wfile.write(json.dumps(message).encode() + b"\n")

    def _obey(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        with suppress(OSError):
            for line in self.rfile:
                match json.loads(line):
                    case {"write": text}:
                        process.stdin.write(text + "\n")
                        process.stdin.flush()
                    case {"end": _}:
                        process.stdin.close()
                    case {"signal": number}:
                        os.killpg(process.pid, number)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    with Server((os.environ["LAMINABENCH_RDMA_AGENT"], PORT), Handler) as server:
        server.serve_forever()
