"""The other process of the tests: sends or receives without end, until it is killed.

python child.py ROLE ADDRESS NETWORK [LOG], the secret in hex on stdin; softnic+reorders is the network
softnic with a NIC of that habit.
python child.py, and on stdin a line of JSON for each process to be forked: [SECRET, ROLE, ADDRESS, ...].
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from lamina import fhbn
from lamina._softnic import SoftNic
from lamina.fhbn import softnic

MESSAGE_BYTES = 1 << 14


def parts_of(seqno: int) -> list[bytes]:
    """What message `seqno` says: between no part and four, of any size that fits."""
    draws = random.Random(seqno)
    return [draws.randbytes(draws.choice((0, 1, 63, 64, 700, 4000))) for _ in range(draws.randrange(5))]


def fork_each() -> None:
    """A process for each line, which says whom: Python and all modules are there already."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # they need not be reaped
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            secret, *role = json.loads(line)
            try:
                play(bytes.fromhex(secret), role)
            finally:
                os._exit(1)
        print(pid, flush=True)


def play(secret: bytes, message: Sequence[str]) -> None:
    """Play the role."""
    role, address, network, *log = message
    network, _, habit = network.partition("+")
    if habit:
        nic = SoftNic(**{habit: True})
        softnic.nic = lambda: nic
    link = fhbn.connect(address, name=role, secret=secret)
    if role == "producer":
        sender = link.sender("data", network=network)
        while True:
            sender.send(*parts_of(sender.next_seqno))
    consume(link, network, Path(log[0]))


def consume(link: fhbn.Link, network: str, log: Path) -> None:
    """Note each message where no kill can undo it, then release it."""
    done = log.read_text().count("\n") if log.exists() else 0
    receiver = link.receiver("data", message_bytes=MESSAGE_BYTES, network=network, first_seqno=done)
    notes = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        with receiver.recv() as message:
            whole = [bytes(part) for part in message] == parts_of(message.seqno)
            os.write(notes, f"{message.seqno} {'whole' if whole else 'torn'}\n".encode())


if __name__ == "__main__":
    if sys.argv[1:]:
        play(bytes.fromhex(sys.stdin.readline()), sys.argv[1:])
    else:
        fork_each()
