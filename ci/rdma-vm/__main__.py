"""Run what needs an RDMA device in virtual machines with soft-RoCE, on any Debian machine.

    python ci/rdma-vm test                    tests/rdma: one machine, then two
    python ci/rdma-vm one -- ib_devinfo       a command in one machine
    python ci/rdma-vm two -- ib_devinfo       a command in one of two machines with a cable

Where it cannot be had it says so in one sentence and succeeds.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import scenarios
from image import Image, UnavailableError, image, say
from machine import StrangeEndError

# The conftest.py of all tests takes many seconds to load in there, and nothing here needs it.
PYTEST = "python3 -m pytest -p no:cacheprovider -q --confcutdir=tests/rdma"
TESTS = {
    "one": "tests/rdma/one tests/lamina/fhbn/test_nic_channels.py tests/lamina/fhbn/test_nic_faults.py",
    "two": "tests/rdma/two",
}
TEST_LIMIT_S = {"one": 200, "two": 200}  # inside, of each; a start comes to it
OUT = Path("build/rdma-vm")


def main() -> int:
    asked = _asked()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        found = image()
        if asked.what == "test":
            # Both, even if the first one fails.
            return max(
                [
                    _run(name, f"{PYTEST} {TESTS[name]}", found, limit_s)
                    for name, limit_s in TEST_LIMIT_S.items()
                ]
            )
        return _run(asked.what, shlex.join(asked.command), found, asked.limit)
    except UnavailableError as error:
        say(f"skipped: {error}")
        return 0
    except subprocess.CalledProcessError as error:
        say(f"{error.cmd[-2]} failed; what it said is above")
        return 1
    except StrangeEndError as error:
        say(str(error))
        return 1


def _terminate(*_: object) -> None:
    """Ends as an error does, so that no machine is left behind; another such signal would disturb that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def _run(name: str, command: str, found: Image, limit_s: int) -> int:
    out = OUT / name
    say(f"{command} in {name} machine{'s' if name == 'two' else ''}")
    return {"one": scenarios.one, "two": scenarios.two}[name](found, command, limit_s, out)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ci/rdma-vm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("test", help="tests/rdma, all of it")
    for name, meaning in (("one", "a command in one machine"), ("two", "a command in one of two")):
        run = what.add_parser(name, help=meaning)
        run.add_argument("--limit", type=int, default=120, metavar="S", help="end it after S seconds (120)")
        run.add_argument(
            "command", nargs="+", help="after --, in /project; what it leaves in /out comes to build/rdma-vm"
        )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
