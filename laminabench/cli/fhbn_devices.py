"""`laminabench fhbn devices`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from laminabench.cli.output import Output, reporting
from laminabench.present.terminal import literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lamina.fhbn.nic.devices import Device, Port
    from lamina.fhbn.nic.diagnosis import Diagnosis


@click.command()
@reporting
def devices(out: Output) -> None:
    """Every RDMA device and port, what is missing, and which network engines can run here.

    Devices are those that libibverbs opens, by pyverbs; -v also shows every GID of every port. An engine that
    can run here needs a peer that has it too. LAMINA_RDMA_DEVICE names the device, and its port as in
    mlx5_0:1, that channels take instead of the first whose port is up.
    """
    from laminabench.extras import needed

    with needed():
        from lamina.fhbn.nic.diagnosis import diagnosed
        from laminabench.bench.fhbn import options  # noqa: F401 - adds NCCL to the engines
    found = diagnosed()
    out.result(found.described(), lambda console: _render(console, found, every_gid=out.verbose))


def _render(console: Console, found: Diagnosis, *, every_gid: bool) -> None:
    if found.devices:
        _render_devices(console, found.devices)
        console.print()
    elif found.system.kernel_devices:
        names = ", ".join(found.system.kernel_devices)
        console.print(f"RDMA devices of which no more can be told: {literal(names)}", soft_wrap=True)
    else:
        console.print("no RDMA device")
    if every_gid:
        for device in found.devices:
            _render_gids(console, device)
    for finding in found.findings:
        console.print(f"- {literal(finding.sentence)}", soft_wrap=True)
    if found.findings:
        console.print()
    _render_engines(console, found)


def _table(titles: str, numbers: str = "") -> Table:
    """With these columns, of which some are numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in titles.split("|"):
        table.add_column(title, justify="right" if title in numbers.split("|") else "left")
    return table


def _render_devices(console: Console, devices: tuple[Device, ...]) -> None:
    titles = "device|provider|firmware|port|link layer|state|speed|MTU|LID|GIDs|interface"
    table = _table(titles, numbers="port|MTU|LID|GIDs")
    for device in devices:
        for port in device.ports:
            table.add_row(
                *(literal(text) for text in (device.name, device.provider, device.firmware)),
                str(port.number),
                port.link_layer,
                port.state,
                port.speed,
                *(f"{number:,}" for number in (port.mtu, port.lid, len(port.gids))),
                literal(_interfaces(port)),
            )
    console.print(table)


def _interfaces(port: Port) -> str:
    return ", ".join(sorted({gid.interface for gid in port.gids if gid.interface})) or "-"


def _render_gids(console: Console, device: Device) -> None:
    table = _table("GIDs of|index|address|kind|interface")
    for port in device.ports:
        for gid in port.gids:
            name = literal(f"{device.name}:{port.number}")
            table.add_row(name, str(gid.index), gid.address, gid.kind, literal(gid.interface or "-"))
    console.print(table)
    console.print()


def _render_engines(console: Console, found: Diagnosis) -> None:
    table = _table("engine|here|verified|needs")
    for ready in found.engines:
        here = "[green]yes[/green]" if ready.usable else "[red]no[/red]"
        table.add_row(ready.engine, here, ready.verified, ready.needs)
    console.print(table)
    said = {finding.sentence for finding in found.findings}
    own: dict[str, list[str]] = {}
    for ready in found.engines:
        for why in ready.because:
            if why not in said:
                own.setdefault(why, []).append(ready.engine)
    for why, engines in own.items():
        console.print(f"no {', '.join(engines)}: {literal(why)}", soft_wrap=True)
