"""`laminabench torture`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from laminabench.cli.options import COUNT, FOLDER, POSITIVE, option
from laminabench.cli.output import Output, reporting
from laminabench.render.terminal import literal, table
from laminabench.util.errors import CheckFailedError, Interrupted, Terminated, UserError

if TYPE_CHECKING:
    from laminabench.torture.campaign import Goal
    from laminabench.torture.experiments import Listed
    from laminabench.torture.summary import Summary
    from laminabench.torture.tally import Failure, Tally


@click.command()
@click.argument("names", nargs=-1)
@option("--minutes", POSITIVE, "About so long in all, an equal part for each; its full count by default.")
@option("--count", COUNT, "So many cases of each, instead.")
@option("--seed", click.IntRange(0, 2**32), "Other cases for another one.", 0)
@option("--case", click.IntRange(0), "Only the case of this seed, of one experiment: as a failure says.")
@option("--out folder", FOLDER, "What was done is kept here, and gone on with.", "torture")
@click.option(
    "--list", "only_list", is_flag=True, help="What experiments there are, and whether they run here."
)
@reporting
def torture(
    out: Output,
    names: tuple[str, ...],
    minutes: float | None,
    count: int | None,
    seed: int,
    case: int | None,
    folder: Path,
    only_list: bool,
) -> None:
    """Try to break laminabench: kills, floods, damage, power cuts; exit code 1 if anything was lost.

    \b
    laminabench torture --list
    laminabench torture --minutes 10
    laminabench torture fuzzed-files --count 10000 --seed 7
    laminabench torture fuzzed-files --case 123456

    Without names, all that can run here. It uses this machine alone. However it ended, the same command goes
    on where it was.
    """
    from laminabench.torture.campaign import Goal
    from laminabench.torture.experiments import named

    if minutes is not None and count is not None:
        raise UserError("torture-options", "--minutes and --count both say when it is enough: leave out one")
    chosen = named(names)
    if only_list:
        _list(out, chosen)
        return
    left_out = {name: why for name, listed in chosen.items() if (why := listed.missing)}
    if names and left_out:
        name, why = next(iter(left_out.items()))
        raise UserError("torture-cannot", f"{name} cannot run here: {why}")
    for name, why in left_out.items():
        out.note(f"left out: {name}: {why}")
    chosen = {name: listed for name, listed in chosen.items() if name not in left_out}
    if case is not None:
        if len(names) != 1:
            raise UserError("torture-case", "--case is of one experiment: name it")
        _one_case(out, chosen, case)
        return
    each_s = minutes * 60 / max(1, len(chosen)) if minutes is not None else None
    goals = {
        name: Goal(None if each_s is not None else count or listed.full, each_s)
        for name, listed in chosen.items()
    }
    found = _run(out, chosen, goals, seed, folder)
    result = {"experiments": [msgspec.to_builtins(each) for each in found], "left_out": left_out}
    out.result(result, lambda console: console.print(_table(found)))
    if failed := [each.name for each in found if each.failed]:
        raise CheckFailedError(
            "torture-failed",
            f"something was lost, wrong, leaked or crashed by {', '.join(failed)}; {folder} has each failure "
            "with its seed (another --out or --seed begins anew)",
        )


def _run(
    out: Output, chosen: Mapping[str, Listed], goals: Mapping[str, Goal], seed: int, folder: Path
) -> list[Summary]:
    from laminabench.torture.campaign import opened
    from laminabench.torture.summary import summary_of, write

    found = []
    for name, listed in chosen.items():
        with opened(folder, name, listed, seed) as campaign:
            if campaign.reached(goals[name]):
                out.note(f"{name}: all {campaign.done:,} cases were tried before, with seed {seed}")
            try:
                with out.progress(name, unit="cases") as told:
                    campaign.run(goals[name], told, functools.partial(_say, out, name))
            except (KeyboardInterrupt, Terminated) as error:
                write(folder, summary_of(campaign))
                kept = f"{campaign.done:,} cases of {name} are kept in {folder}; the same command goes on"
                raise (Interrupted if isinstance(error, KeyboardInterrupt) else Terminated)(kept) from error
            found.append(summary_of(campaign))
            write(folder, found[-1])
    return found


def _say(out: Output, experiment: str, failure: Failure) -> None:
    again = f"laminabench torture {experiment} --case {failure.seed}"
    out.note(f"{failure.kind}: {failure.case}: {' '.join(failure.what.split())}; again: {again}")


def _one_case(out: Output, chosen: Mapping[str, Listed], case: int) -> None:
    from laminabench.torture.campaign import once

    ((name, listed),) = chosen.items()
    tally = once(name, listed, case)
    out.result(msgspec.to_builtins(tally), lambda console: console.print(_outcome(tally), soft_wrap=True))
    if tally.failures:
        raise CheckFailedError("torture-failed", f"{name}, case {case}: {tally.failures[0].what}")


def _outcome(tally: Tally) -> str:
    from laminabench.torture.summary import said

    told = "; ".join(f"{each.kind}: {each.case}: {each.what}" for each in tally.failures) or "survived"
    return literal(f"{tally.name}: {told} ({said({'tried': tally.tried, **tally.facts})})")


def _table(found: list[Summary]) -> object:
    from laminabench.torture.summary import KINDS, said

    names = ("cases", "tried", "survived", *KINDS)
    rows = [
        [
            each.name,
            *(f"{getattr(each, name):,}" for name in names),
            f"{each.wall_s:,.1f} s",
            literal(said(each.facts)),
        ]
        for each in found
    ]
    return table(("experiment", *(f">{name}" for name in names), ">time", "largest"), rows)


def _list(out: Output, chosen: Mapping[str, Listed]) -> None:
    facts = {
        name: {"says": of.says, "cases": of.full, "chunk": of.chunk, "missing": of.missing}
        for name, of in chosen.items()
    }
    rows = [
        [name, f"{of.full:,}", literal(of.says), literal(of.missing or "")] for name, of in chosen.items()
    ]
    out.result(
        {"experiments": facts},
        lambda console: console.print(table(("experiment", ">cases", "what it does", "not here:"), rows)),
    )
