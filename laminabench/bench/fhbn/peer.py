"""The other process of a ping-pong, which sends back what it receives until the first one closes the link.

python -m laminabench.bench.fhbn.peer, with one line of JSON on stdin, which also has the secret.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from lamina import fhbn
from lamina.fhbn.control import Deadline
from lamina.fhbn.link import SPIN_S
from laminabench.bench.fhbn import options  # noqa: F401 - adds NCCL to the engines
from laminabench.util.child_environment import child_environment
from laminabench.util.errors import UserError

Ends = dict[str, tuple[fhbn.Sender, fhbn.Receiver]]

SLOTS = 2
# Longer than any operation here: a lost process is noticed otherwise.
TIMEOUT_S = 60.0
_ENDING_S = 5.0


class NotOpenedError(UserError):
    """An error that leaves the two processes without channels over one engine, and without a link."""

    def __init__(self, engine: str, reason: str) -> None:
        super().__init__(
            "fhbn-not-opened", f"the two processes cannot open a channel over {engine}: {reason}"
        )
        self.engine = engine
        self.reason = f"it could not be opened: {reason}"


class Echo:
    """The first process's connection to the other one."""

    def __init__(self, child: subprocess.Popen[bytes], link: fhbn.Link, ends: Ends) -> None:
        self.pid = child.pid
        self.ends = ends
        self._link = link

    def begin(self, engine: str, count: int, answer: int | None = None, *, read: bool = False) -> None:
        """Have the peer send back `count` messages, or their first `answer` bytes, after a `read` of them."""
        order = {"engine": engine, "count": count, "answer": answer, "read": read}
        self._link.control.send_message(order, Deadline(TIMEOUT_S))


@contextlib.contextmanager
def echoing(engines: Sequence[str], message_bytes: int, core: int | None) -> Iterator[Echo]:
    """Start the peer on this core, with channels over each engine, and end it. Failures are UserErrors."""
    secret = fhbn.new_secret()
    with fhbn.Listener("initiator", secret) as listener, _started() as child:
        ends: Ends = {}
        try:
            task = {
                "address": listener.address, "secret": secret.hex(), "engines": list(engines),
                "message_bytes": message_bytes, "core": core,
            }  # fmt: skip
            _hand_over(child, json.dumps(task))
            with listener.accept(TIMEOUT_S) as link:
                for engine in engines:
                    try:
                        ends[engine] = channels(link, engine, message_bytes, core, first=True)
                    except Exception as error:  # torch has errors of its own
                        lost = isinstance(error, fhbn.PeerLostError)
                        why = (lost and _last_words(child)) or str(error) or type(error).__name__
                        raise NotOpenedError(engine, why.splitlines()[0]) from error
                yield Echo(child, link, ends)
        except (fhbn.PeerLostError, fhbn.ChannelClosedError, fhbn.ChannelTimeoutError) as error:
            raise UserError(
                "fhbn-echo-lost", f"the echoing process is lost: {_last_words(child) or error}"
            ) from error
        except fhbn.HandshakeError as error:
            raise UserError("fhbn-cannot-meet", f"the two processes cannot connect: {error}") from error
        finally:
            for pair in ends.values():
                for end in pair:
                    end.close()


def channels(
    link: fhbn.Link, engine: str, message_bytes: int, core: int | None, *, first: bool
) -> tuple[fhbn.Sender, fhbn.Receiver]:
    """Open a channel in each direction; both processes do so in the same order."""
    there, back = f"{engine} out", f"{engine} back"
    # Without separate cores, a process that polls keeps the other one from running.
    spin_s = 0.0 if core is None else SPIN_S
    send = partial(link.sender, network=engine, timeout_s=TIMEOUT_S, spin_s=spin_s)
    receive = partial(
        link.receiver,
        message_bytes=message_bytes,
        slots=SLOTS,
        network=engine,
        timeout_s=TIMEOUT_S,
        spin_s=spin_s,
    )
    if first:
        sender = send(there)
        return sender, receive(back)
    if engine == "nccl":
        import torch

        # The first process has the first GPU. Not verified on hardware.
        torch.cuda.set_device(1)
    receiver = receive(there)
    return send(back), receiver


@contextlib.contextmanager
def _started() -> Iterator[subprocess.Popen[bytes]]:
    # In a process group of its own: Ctrl-C goes to the first process, which ends this one.
    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        process_group=0,
    ) as child:
        try:
            yield child
            # It has lost its link by now.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_ENDING_S)
        finally:
            child.kill()


def _hand_over(child: subprocess.Popen[bytes], task: str) -> None:
    """Send the peer its task, and wait until it has begun, which is after its imports."""
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(task.encode() + b"\n")
    if not child.stdout.readline():
        raise UserError(
            "fhbn-echo-not-started",
            f"the echoing process did not start: {_last_words(child) or 'it said nothing'}",
        )


def _last_words(child: subprocess.Popen[bytes]) -> str:
    """Return the peer's last line of error output; it may be ending only now."""
    try:
        child.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        return ""
    assert child.stderr is not None
    lines = child.stderr.read().decode(errors="replace").strip().splitlines()
    if lines:
        return lines[-1]
    return f"it was ended by signal {-child.returncode}" if child.returncode < 0 else ""


def main() -> int:
    # Every wait here notices the end of the first process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        task = json.loads(sys.stdin.readline())
        print("begun", flush=True)
        secret = bytes.fromhex(task["secret"])
        with fhbn.connect(task["address"], name="echo", secret=secret, timeout_s=TIMEOUT_S) as link:
            size, core = task["message_bytes"], task["core"]
            ends = {name: channels(link, name, size, core, first=False) for name in task["engines"]}
            if core is not None:
                os.sched_setaffinity(0, {core})
            _serve(link, ends)
    except (fhbn.PeerLostError, fhbn.ChannelClosedError):
        return 0  # the first process has ended
    except Exception as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr)
        return 1
    return 0


def _serve(link: fhbn.Link, ends: Ends) -> None:
    while True:
        try:
            order = link.control.receive_message(Deadline(TIMEOUT_S))
        except fhbn.ChannelTimeoutError:
            continue
        sender, receiver = ends[order["engine"]]
        _echo(sender, receiver, order["count"], order["answer"], read=order["read"])


def _echo(
    sender: fhbn.Sender, receiver: fhbn.Receiver, count: int, answer: int | None, *, read: bool
) -> None:
    """Send each message back from where it lies, and release its slot afterwards."""
    if answer is None:
        for _ in range(count):
            message = receiver.recv()
            sender.send(message[0])
            message.release()
    else:
        for _ in range(count):
            message = receiver.recv()
            if read:
                _read(message[0])
            sender.send(message[0][:answer])
            message.release()


def _read(part: Any) -> None:
    """Read every byte once, as fast as one thread can."""
    int((np.frombuffer(part, np.uint8) if isinstance(part, memoryview) else part).max())


if __name__ == "__main__":
    sys.exit(main())
