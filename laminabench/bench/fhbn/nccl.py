"""An engine for comparison: NCCL, from the memory of one GPU to that of another, through torch.distributed.

Not verified on hardware. It moves device memory only: `send` takes CUDA tensors, and the parts of a message
are CUDA tensors of bytes. A peer that has ended cannot be distinguished from a slow one: both are a
timeout, which breaks the channel. NCCL's own connection is neither authenticated nor encrypted.
"""

from __future__ import annotations

import importlib.util

from lamina.fhbn.channel import ChannelSpec, Receiver, Sender
from lamina.fhbn.control import Control, Deadline, Place

NEEDS = "a CUDA build of torch with NCCL, and a GPU for each process"
VERIFIED = "not on hardware"


def missing(here: Place, there: Place) -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return "this build of torch has no NCCL"
    if not torch.cuda.is_available():
        return "there is no GPU that torch can use"
    if here.machine == there.machine and torch.cuda.device_count() < 2:
        return "the two processes have one GPU between them, and NCCL wants one for each"
    return None


def receiver(control: Control, spec: ChannelSpec, deadline: Deadline) -> Receiver:
    """Make the receiving end, on the current device."""
    from laminabench.bench.fhbn.nccl_ends import NcclReceiver

    return NcclReceiver(control, spec, deadline)


def sender(control: Control, spec: ChannelSpec, deadline: Deadline) -> Sender:
    """Make the sending end, on the current device."""
    from laminabench.bench.fhbn.nccl_ends import NcclSender

    return NcclSender(control, spec, deadline)
