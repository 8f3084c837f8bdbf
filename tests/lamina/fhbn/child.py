"""The other process of the tests: sends or receives without end, until it is killed.

python child.py ROLE ADDRESS NETWORK [LOG], the secret in hex on stdin.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from lamina import fhbn

MESSAGE_BYTES = 1 << 14


def parts_of(seqno: int) -> list[bytes]:
    """What message `seqno` says: between no part and four, of any size that fits."""
    draws = random.Random(seqno)
    return [draws.randbytes(draws.choice((0, 1, 63, 64, 700, 4000))) for _ in range(draws.randrange(5))]


def main() -> None:
    """Play the role."""
    role, address, network, *log = sys.argv[1:]
    secret = bytes.fromhex(sys.stdin.readline())
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
    main()
