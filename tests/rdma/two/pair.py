"""Round trips between two machines: the first thing to try on hardware of your own, and what it takes there.

    python tests/rdma/two/pair.py verbs 10.0.0.1 <secret         on one machine, by its address
    python tests/rdma/two/pair.py verbs 10.0.0.1:PORT <secret    on the other one

The first one says where it listens. `secret` is a private file with the same 64 hex digits on both. Every
byte is compared.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time

from lamina import fhbn

SIZES = (64, 4096, 65536, 1 << 20)
COMING_S = 600.0  # of whoever starts the other one


def echo(secret: bytes, network: str, host: str) -> None:
    """Send back what comes, until the other one has closed."""
    with fhbn.Listener("echo", secret, host=host) as listener:
        print(listener.address, flush=True)
        with listener.accept(COMING_S) as link:
            there = link.receiver("there", message_bytes=max(SIZES), network=network)
            back = link.sender("back", network=network)
    try:
        while True:
            with there.recv() as message:
                back.send(message[0])
    except fhbn.ChannelClosedError:
        return


def measure(secret: bytes, network: str, address: str, rounds: int) -> None:
    """Send, wait for the answer, compare; a line for each size."""
    with fhbn.connect(address, name="measure", secret=secret) as link:
        there = link.sender("there", network=network)
        back = link.receiver("back", message_bytes=max(SIZES), network=network)
    for size in SIZES:
        took = []
        for number in range(rounds):
            sent = random.Random(number).randbytes(size)
            begun = time.perf_counter()
            there.send(sent)
            with back.recv() as message:
                took.append(time.perf_counter() - begun)
                if message[0] != sent:
                    raise SystemExit(f"message {number} of {size:,} bytes came back as another one")
        median, most = statistics.median(took) * 1e6, max(took) * 1e6
        print(f"{size:,} bytes there and back: median {median:,.1f} us, most {most:,.1f} us", flush=True)
    there.close()


def main() -> None:
    """As the command line asks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=("verbs", "mlx5"))
    parser.add_argument("address", help="of this machine, or where the other one listens")
    parser.add_argument("--rounds", type=int, default=1000, help="of each size (1000)")
    requested = parser.parse_args()
    secret = bytes.fromhex(sys.stdin.readline())
    try:
        if requested.address.count(":") == 1 or "]:" in requested.address:  # others with colons are of IPv6
            measure(secret, requested.network, requested.address, requested.rounds)
        else:
            echo(secret, requested.network, requested.address)
    except fhbn.ChannelError as error:
        raise SystemExit(f"pair: {error}") from None


if __name__ == "__main__":
    main()
