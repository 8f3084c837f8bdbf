"""An engine to compare with, which also reaches other machines: gloo, over TCP, through torch.distributed.

The two processes meet over the authenticated connection, and gloo listens on the loopback address where both
are on one machine. **Its own connection is neither authenticated nor encrypted**: any process that reaches
that port can write to it. Use it only if you trust the network and all users of the machine.

Unlike in shared memory, a call that timed out or was interrupted has broken its channel, a signal is noticed
when a wait is over, and the sender's `consumed` is what it can conclude: it may be late, by as many messages
as there are slots.
"""

from __future__ import annotations

import importlib.util

from lamina.fhbn.channel import ChannelSpec, Receiver, Sender
from lamina.fhbn.control import Control, Deadline, Place

NEEDS = "torch, and TCP between the two"
VERIFIED = "yes"


def missing(here: Place, there: Place) -> str | None:  # noqa: ARG001 - TCP goes anywhere
    """Return True: importing torch to check its build is slow, so opening a channel checks it."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    return None


def receiver(control: Control, spec: ChannelSpec, deadline: Deadline) -> Receiver:
    """Make the receiving end, with room for `slots` messages ready to be written to."""
    from lamina.fhbn.gloo_end import GlooReceiver

    return GlooReceiver(control, spec, deadline)


def sender(control: Control, spec: ChannelSpec, deadline: Deadline) -> Sender:
    """Make the sending end."""
    from lamina.fhbn.gloo_end import GlooSender

    return GlooSender(control, spec, deadline)
