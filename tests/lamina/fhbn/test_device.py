"""A channel's device ends where there may be no device: their layouts, their words, what they ask for."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fhbn_support import segment

from lamina import cuda_library
from lamina._native import DeviceRing
from lamina.cuda_library import CudaError
from lamina.fhbn import device, rings
from lamina.fhbn.device import DeviceReceiver, DeviceSender

GPU = torch.device("cuda", 0)
CSRC = Path(__file__).parents[3] / "csrc"


def test_tensors_of_the_host_and_too_many_are_refused() -> None:
    with pytest.raises(ValueError, match="a tensor on cpu cannot go by a channel of cuda:0"):
        device.buffers_of((torch.zeros(1),), GPU)
    with pytest.raises(ValueError, match="up to 14 parts, not 15"):
        device.buffers_of((torch.zeros(1),) * 15, GPU)


class FakeTensor:
    """What is asked of a tensor in GPU memory."""

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)

    def is_contiguous(self) -> bool:
        return True


def test_tensors_of_another_gpu_are_refused() -> None:
    with pytest.raises(ValueError, match="a tensor on cuda:1 cannot go by a channel of cuda:0"):
        device.buffers_of((FakeTensor(1),), GPU)  # type: ignore[arg-type]


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    """The compiled kernels; without them, where there was no nvcc, the test is skipped."""
    try:
        yield cuda_library.library()
    except CudaError as missing:
        pytest.skip(str(missing))


@pytest.mark.usefixtures("library")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("end", [DeviceSender, DeviceReceiver])
def test_without_a_device_it_says_so_in_a_sentence(end: type[DeviceSender | DeviceReceiver]) -> None:
    with pytest.raises(CudaError, match=r"cuda-failed|cuda-torch-without"):
        end(segment(), "the host", timeout_s=1)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"memory": None}, "memory is missing"),
        ({"bytes": 4095}, "too small for a ring"),
        ({"bytes": 4096}, "not as large as it says"),
        ({"side": 2}, "either sends or receives"),
        ({"timeout_ns": 0}, "some time to wait"),
        ({"peer": None}, "name is missing"),
    ],
)
def test_a_channel_that_makes_no_sense_is_refused(changed: dict[str, object], sentence: str) -> None:
    ring = segment()
    channel = device._Channel(ring.address, ring.nbytes, 0, 0, 1, b"the host")
    for name, value in changed.items():
        setattr(channel, name, value)
    end = ctypes.c_void_p()
    with pytest.raises(ValueError, match=sentence):
        cuda_library.call("channel_create", channel, ctypes.byref(end))
    assert end.value is None


@pytest.mark.usefixtures("library")
def test_calls_without_an_end_are_refused() -> None:
    nothing, left = ctypes.byref(ctypes.c_void_p()), ctypes.create_string_buffer(64)
    several = {f"channel_{name}": (None, 0, None) for name in ("send", "recv")}
    alone = {f"{scope}_{name}": () for scope in ("channel", "nic") for name in ("check", "abort")}
    calls: dict[str, tuple[object, ...]] = {
        **several, **alone, "nic_poll": (None,),
        "channel_describe": (nothing,), "channel_destroy": (), "nic_destroy": (left,),
    }  # fmt: skip
    for name, arguments in calls.items():
        scope = "channel" if name.startswith("channel") else "NIC"
        with pytest.raises(ValueError, match=f"the {scope}'s end is missing"):
            cuda_library.call(name, None, *arguments)


def test_structs_lie_as_the_header_has_them(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to ask")
    structs = {
        "lamina_cuda_channel": device._Channel,
        "lamina_cuda_channel_buffer": device._Buffer,
        "lamina_cuda_ring_shape": rings._Shape,
    }
    requested, expected = [], []
    for name, struct in structs.items():
        requested.append(f"sizeof({name})")
        expected.append(ctypes.sizeof(struct))
        for field, *_ in struct._fields_:
            requested.append(f"offsetof({name}, {field})")
            expected.append(getattr(struct, field).offset)
    requested.append("sizeof(lamina_cuda_ring)")
    expected.append(DeviceRing.made_bytes)
    requested += ["LAMINA_CUDA_CHANNEL_PARTS", "LAMINA_CUDA_CHANNEL_SENDS", "LAMINA_CUDA_CHANNEL_RECEIVES"]
    expected += [device.MOST_PARTS, device._SENDS, device._RECEIVES]
    for what in ("LATE", "LOST", "CLOSED", "CORRUPTED", "MISUSED"):
        requested.append(f"LAMINA_CUDA_CHANNEL_{what}")
    requested.append("LAMINA_CUDA_NIC_FAILED")
    expected += list(device._ERRORS)
    source = tmp_path / "ask.c"
    prints = "\n".join(f'printf("%d\\n", (int)({one}));' for one in requested)
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        '#include "fhbn/cuda/channel.h"\n#include "fhbn/cuda/ring.h"\n'
        f"int main(void) {{ {prints} return 0; }}"
    )
    program = tmp_path / "ask"
    subprocess.run([compiler, "-std=c11", "-Werror", f"-I{CSRC}", source, "-o", program], check=True)
    reported = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in reported.split()] == expected


def test_the_segment_reports_where_it_is() -> None:
    ring = segment()
    assert ring.address % 4096 == 0
    assert ctypes.string_at(ring.address, 8) == b"LAMHBN01"
