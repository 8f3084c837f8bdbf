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
import sys
from pathlib import Path

import scenarios
from image import INTERRUPTIONS, BuildError, Image, UnavailableError, image, log
from machine import StrangeEndError

# The conftest.py of all tests takes many seconds to load in there, and nothing here needs it. Where a test
# hangs is reported before the machine is stopped.
PYTEST = "python3 -m pytest -p no:cacheprovider -q --confcutdir=tests/rdma -o faulthandler_timeout=150"
TESTS = {
    # Of those that other engines pass too, what is of this one: the rest runs everywhere.
    "one": "-k 'rdma or verbs' tests/rdma/one tests/lamina/fhbn/test_contract.py "
    "tests/lamina/fhbn/test_faults.py tests/lamina/fhbn/test_nic_*.py",
    "two": "tests/rdma/two",
}
TEST_LIMIT_S = {"one": 900, "two": 450}  # inside, of each, on a busy machine; the start is added
OUT = Path("build/rdma-vm")


def main() -> int:
    arguments = _arguments()
    for number in INTERRUPTIONS:
        signal.signal(number, _terminate)
    try:
        built = image()
        if arguments.what == "test":
            # Both, even if the first one fails.
            return max(
                [
                    _run(name, f"{PYTEST} {TESTS[name]}", built, limit_s)
                    for name, limit_s in TEST_LIMIT_S.items()
                ]
            )
        return _run(arguments.what, shlex.join(arguments.command), built, arguments.limit)
    except UnavailableError as error:
        log(f"skipped: {error}")
        return 0
    except (BuildError, OSError) as error:  # a full disk, a folder that is not ours
        log(str(error))
        return 1


def _terminate(number: int, _: object) -> None:
    """Ends as an error does, so that no machine is left behind; another such signal would disturb that."""
    for each in INTERRUPTIONS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _run(name: str, command: str, image: Image, limit_s: int) -> int:
    out = OUT / name
    log(f"{command} in {name} machine{'s' if name == 'two' else ''}")
    try:
        return {"one": scenarios.one, "two": scenarios.two}[name](image, command, limit_s, out)
    except StrangeEndError as error:
        log(str(error))
        return 1


def _arguments() -> argparse.Namespace:
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
