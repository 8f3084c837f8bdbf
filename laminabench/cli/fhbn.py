"""`laminabench fhbn ...`: the channels between workers, and this machine's support for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from laminabench.cli.lazy import LazyGroup
from laminabench.cli.output import Output, reporting
from laminabench.render.terminal import literal, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lamina.fhbn.nic.devices import Device, Port
    from lamina.fhbn.nic.diagnosis import Diagnosis


@click.group(cls=LazyGroup, examples=["laminabench fhbn devices --json"])
def fhbn() -> None:
    """Inspect what channels between workers can use on this machine."""


@fhbn.command()
@reporting
def devices(out: Output) -> None:
    """RDMA devices and their ports, what is missing, and which network engines can run here.

    Devices are those that libibverbs opens, by pyverbs; -v also shows every GID of every port. An engine that
    can run here needs a peer that has it too. For each GPU and NIC it says whether the ring of a channel will
    be in the GPU's memory, and how the NIC reaches that, or in the host's and why (not verified on hardware).
    LAMINA_RDMA_DEVICE names the device, and its port as in
    mlx5_0:1, that channels take instead of the first whose port is up.
    """
    from lamina.fhbn.nic.diagnosis import diagnosed
    from laminabench.bench.fhbn import options  # noqa: F401 - adds NCCL to the engines

    diagnosis = diagnosed()
    out.result(diagnosis.described(), lambda console: render(console, diagnosis, every_gid=out.verbose))


def render(console: Console, diagnosis: Diagnosis, *, every_gid: bool) -> None:
    """Print devices (with all GIDs if requested), findings, places of rings, and engines."""
    if diagnosis.devices:
        console.print(_devices_table(diagnosis.devices))
        console.print()
    elif diagnosis.system.kernel_devices:
        names = ", ".join(diagnosis.system.kernel_devices)
        console.print(f"RDMA devices without further information: {literal(names)}", soft_wrap=True)
    else:
        console.print("no RDMA device")
    if every_gid:
        for device in diagnosis.devices:
            console.print(_gids_table(device))
            console.print()
    for finding in diagnosis.findings:
        console.print(f"- {literal(finding.sentence)}", soft_wrap=True)
    if diagnosis.findings:
        console.print()
    if diagnosis.rings:
        words = (">GPU", "NIC", "ring of a channel between them", "because")
        console.print(
            table(words, ((str(r.gpu), literal(r.nic), r.place, r.because or "-") for r in diagnosis.rings))
        )
        console.print()
    _print_engines(console, diagnosis)


def _devices_table(devices: tuple[Device, ...]) -> Table:
    words = ("device", "provider", "firmware", ">port", "link layer", "state", "speed")
    drawn = table((*words, ">MTU", ">LID", ">GIDs", "interface"))
    for device in devices:
        for port in device.ports:
            drawn.add_row(
                *map(literal, (device.name, device.provider, device.firmware)),
                *(str(port.number), port.link_layer, port.state, port.speed),
                *(f"{number:,}" for number in (port.mtu, port.lid, len(port.gids))),
                literal(_interfaces(port)),
            )
    return drawn


def _interfaces(port: Port) -> str:
    return ", ".join(sorted({gid.interface for gid in port.gids if gid.interface})) or "-"


def _gids_table(device: Device) -> Table:
    rows = (
        (literal(f"{device.name}:{port.number}"), str(gid.index), gid.address, gid.kind,
         literal(gid.interface or "-"))
        for port in device.ports for gid in port.gids
    )  # fmt: skip
    return table(("GIDs of", "index", "address", "kind", "interface"), rows)


def _print_engines(console: Console, diagnosis: Diagnosis) -> None:
    drawn = table(("engine", "here", "verified", "needs"))
    for ready in diagnosis.engines:
        here = "[green]yes[/green]" if ready.usable else "[red]no[/red]"
        drawn.add_row(ready.engine, here, ready.verified, ready.needs)
    console.print(drawn)
    sentences = {finding.sentence for finding in diagnosis.findings}
    own: dict[str, list[str]] = {}
    for ready in diagnosis.engines:
        for why in ready.because:
            if why not in sentences:
                own.setdefault(why, []).append(ready.engine)
    for why, engines in own.items():
        console.print(f"no {', '.join(engines)}: {literal(why)}", soft_wrap=True)
