"""A GPU for torch and the kernels' library, or one that the library emulates in the host's memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import torch

from lamina import cuda_library
from lamina.cuda_library import CudaError

# As the library numbers them.
DTYPES: dict[torch.dtype, int] = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def is_emulated() -> bool:
    """Return whether kernels of "a GPU" run on the host, as in the library that tests build."""
    return hasattr(cuda_library.library(), "lamina_cuda_is_emulated")


def require() -> None:
    """Raise CudaError with one sentence where no kernel can run."""
    # Before any call of the driver: cuda:1 is the second GPU on the bus, as nvidia-smi lists them.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    cuda_library.call("check_device")
    if not is_emulated() and not torch.cuda.is_available():
        raise CudaError(
            "cuda-torch-without", "this torch is built without CUDA, whose tensors the kernels need"
        )


def has_kernels() -> bool:
    """Return whether a GPU can be used here, with our kernels."""
    try:
        require()
    except CudaError:
        return False
    return True


def is_gpu(device: torch.device | str) -> bool:
    return torch.device(device).type == "cuda"


def tensors_on(device: torch.device | str) -> torch.device:
    """Return the device of tensors that a device's kernels work on."""
    place = torch.device(device)
    if place.type != "cuda":
        return place
    if is_emulated():
        return torch.device("cpu")
    # The one that is current now, whatever is later.
    return place if place.index is not None else torch.device("cuda", torch.cuda.current_device())


def take(device: torch.device | str) -> None:
    """Make this device current for the process; raise a CudaError if there is none such."""
    if not is_gpu(device):
        return
    require()
    place = tensors_on(device)
    if place.type != "cuda":
        return
    count = torch.cuda.device_count()
    if place.index >= count:
        here = ", ".join(f"cuda:{number} ({torch.cuda.get_device_name(number)})" for number in range(count))
        raise CudaError("cuda-no-such-device", f"there is no {place}: here are {here}")
    torch.cuda.set_device(place)


def on_the_bus(device: torch.device | str) -> tuple[int, str | None]:
    """Return a GPU's number and address."""
    place = tensors_on(device)
    if place.type != "cuda":
        return torch.device(device).index or 0, None
    bus: Any = torch.cuda.get_device_properties(place)
    if not hasattr(bus, "pci_bus_id"):  # a torch that does not say
        return place.index, None
    return place.index, f"{bus.pci_domain_id:04x}:{bus.pci_bus_id:02x}:{bus.pci_device_id:02x}.0"


def current(place: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make this device current within the context."""
    return torch.cuda.device(place) if place.type == "cuda" else contextlib.nullcontext()


class HostStream(NamedTuple):
    """The stream of an emulated device: work is done when the call returns."""

    cuda_stream: int = 0


Stream: TypeAlias = "torch.cuda.Stream | HostStream"


def current_stream(place: torch.device) -> Stream:
    """Return torch's stream of this device."""
    return torch.cuda.current_stream(place) if place.type == "cuda" else HostStream()


def launch(name: str, place: torch.device, *arguments: object) -> None:
    """Call a function of the library that puts work on the current stream, its last argument."""
    with current(place):
        cuda_library.call(name, *arguments, current_stream(place).cuda_stream)


def own_stream(place: torch.device) -> contextlib.AbstractContextManager[object]:
    """Use a stream of this thread's own, which waits for no other thread's work."""
    if place.type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(place))  # type: ignore[no-untyped-call]


class SideStream:
    """A second stream of a GPU for concurrent work; None on an emulated GPU."""

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._stream = torch.cuda.Stream(place) if place.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Launch work concurrently with what is launched after the context, behind what was before."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._place))
        with torch.cuda.stream(self._stream):
            yield

    def joined(self) -> None:
        """Make later launches wait for this stream's work."""
        if self._stream is not None:
            torch.cuda.current_stream(self._place).wait_stream(self._stream)


def load_all_kernels() -> None:
    """Load all kernels eagerly, which takes seconds and memory: for several workers in one process.

    A kernel loaded at its first launch may wait for all that the process runs on the GPU. Channels' kernels
    run until a message comes, perhaps from the thread that loads; a worker alone waits for others only.
    """
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")


def staged(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    """Return the tensor as a GPU can copy it while the host goes on: in pinned memory, if it is the host's.

    A copy from other memory waits for what is on the stream, where kernels may wait for other workers.
    """
    return tensor.pin_memory() if place.type == "cuda" and tensor.device.type == "cpu" else tensor


def put(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    """Return the tensor, or a copy of it on a GPU, for which neither the host nor the stream waits."""
    return staged(tensor, place).to(place, non_blocking=True) if place.type == "cuda" else tensor


_ALIGNMENT = 256


def workspace(nbytes: int, place: torch.device) -> torch.Tensor:
    """Return the bytes that begin where a GPU's memory would."""
    memory = torch.empty(nbytes + _ALIGNMENT, dtype=torch.uint8, device=place)
    first = -memory.data_ptr() % _ALIGNMENT
    return memory[first : first + nbytes]
