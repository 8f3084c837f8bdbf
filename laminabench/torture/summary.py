"""What experiments came to, as files that can be committed: NAME-SEED.json of each, and a table of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from laminabench.runs.manifest import Host, host
from laminabench.torture.campaign import Campaign
from laminabench.torture.tally import Failure, Tally
from laminabench.util.atomic import replacing
from laminabench.util.markdown import table
from laminabench.util.safe_parse import content

TABLE = "summary.md"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Of one experiment with one seed."""

    name: str
    says: str
    seed: int
    cases: int
    full: int  # cases that the experiment has in full
    tried: int
    survived: int
    lost: int
    wrong: int
    leaked: int
    crashed: int
    facts: dict[str, float]
    failures: list[Failure]
    began: str
    wall_s: float
    versions: list[str]  # of laminabench, in the order of its chunks
    host: Host

    @property
    def failed(self) -> int:
        return self.lost + self.wrong + self.leaked + self.crashed


def summary_of(campaign: Campaign) -> Summary:
    tally = campaign.tally()
    return Summary(
        name=campaign.name,
        says=campaign.listed.says,
        seed=campaign.seed,
        cases=campaign.done,
        full=campaign.listed.full,
        **{name: getattr(tally, name) for name in Tally.__struct_fields__ if name != "name"},
        began=campaign.chunks[0].began if campaign.chunks else "",
        wall_s=round(campaign.wall_s, 3),
        versions=list(dict.fromkeys(chunk.version for chunk in campaign.chunks)),
        host=host(),
    )


def write(folder: Path, summary: Summary) -> None:
    """Its file, and the table of all whose files are there."""
    with replacing(folder / f"{summary.name}-{summary.seed}.json") as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    with replacing(folder / TABLE) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in _page(folder)), encoding="utf-8")


def _page(folder: Path) -> Iterator[str]:
    found = []
    for path in sorted(folder.glob("*-*.json")):
        try:
            found.append(msgspec.json.decode(content(path), type=Summary))
        except msgspec.DecodeError:  # somebody else's
            continue
    yield "What `laminabench torture` came to; each `.json` has all of it, failures with their seeds."
    yield ""
    titles = ("experiment", ">seed", ">cases", ">tried", ">survived", *(f">{kind}" for kind in KINDS))
    yield from table((*titles, "largest", ">time", "began", "laminabench", "processor"), map(_row, found))


KINDS = ("lost", "wrong", "leaked", "crashed")


def _row(of: Summary) -> Iterator[str]:
    yield of.name
    yield str(of.seed)
    yield f"{of.cases:,} of {of.full:,}"
    for name in ("tried", "survived", *KINDS):
        yield f"{getattr(of, name):,}"
    yield said(of.facts)
    yield f"{of.wall_s:,.0f} s"
    yield of.began
    yield "; ".join(of.versions)
    yield f"{of.host.cpu}, {of.host.cores} cores"


def said(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:,.4g}" for name, value in facts.items())
