"""Let openai, `vllm bench serve`, aiperf and guidellm drive `laminabench serve`, and compare the numbers.

Prints a table, or with --json one object; exits 1 where a client fails or a number is not what it has to be.
Run by the Python that laminabench is installed for; ci/clients.sh makes the environments and runs it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import interchange
import small_model
from drive import CACHED, CLIENTS, ClientError, Place
from load import Load
from server import Server, serving, since
from verdict import Line, lines, table

WARM_UP = Load(requests=8)


def main() -> int:
    arguments = _arguments()
    names = [name for name in arguments.only if name != "vllm" or arguments.vllm]
    with tempfile.TemporaryDirectory(prefix="clients-") as made:
        folder, home = Path(made, "model"), Path(made, "home")
        small_model.make(folder)
        small_model.as_in_a_cache(folder, home, CACHED)
        with serving(sys.executable, folder, Path(made, "serve.log")) as server:
            place = Place(server.url, server.model, folder, home, arguments.clients, arguments.vllm)
            # What is slow the first time is not the clients' doing.
            CLIENTS["openai"](place, WARM_UP)
            results = [line for name in names for line in _one(name, place, server, arguments.load)]
    ok = all(line.ok for line in results)
    if arguments.json:
        print(
            json.dumps(
                {"ok": ok, "load": asdict(arguments.load), "lines": [asdict(line) for line in results]}
            )
        )
    else:
        print(table(results))
        print(f"\n{'all as it should be' if ok else 'NOT all is as it should be'}: {arguments.load}")
    return 0 if ok else 1


def _one(name: str, place: Place, server: Server, load: Load) -> list[Line]:
    print(f"{name} ...", file=sys.stderr, flush=True)
    before = server.read()
    try:
        report = CLIENTS[name](place, load)
    except ClientError as error:
        print(error, file=sys.stderr)
        return [Line(name, "requests", 0, load.requests, "NOT done, stderr says why", ok=False)]
    counted = since(before, server.read())
    results = lines(report, counted, load)
    try:
        return [*results, *interchange.checked(name, place, report, counted, load)]
    except ClientError as error:
        print(error, file=sys.stderr)
        return [*results, Line(name, "its file", 0, None, "NOT imported, stderr says why", ok=False)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--clients", type=Path, required=True, help="the Python of aiperf, guidellm and openai")
    add("--vllm", type=Path, help="the Python of vLLM's environment; without it that client is left out")
    add("--only", nargs="+", choices=list(CLIENTS), default=list(CLIENTS), help="these clients")
    add("--requests", type=int, default=Load.requests)
    add("--concurrency", type=int, default=Load.concurrency)
    add("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.load = Load(requests=arguments.requests, concurrency=arguments.concurrency)
    # Elsewhere their folders are other ones; a link to a Python is what makes it an environment's.
    arguments.clients = arguments.clients.absolute()
    arguments.vllm = arguments.vllm and arguments.vllm.absolute()
    return arguments


if __name__ == "__main__":
    sys.exit(main())
