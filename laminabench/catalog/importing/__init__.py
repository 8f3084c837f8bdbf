"""Cost sets from the folders that other projects measure into."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from laminabench.catalog.cost_file import sections
from laminabench.catalog.cost_keys import AllReduceKey, to_path
from laminabench.catalog.cost_terms import AllReduceCost, Origin
from laminabench.catalog.costs import CostSet
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.util.errors import UserError


def imported(
    form: str,
    folders: Sequence[Path],
    name: str,
    models: Sequence[str] = (),
    devices: Sequence[str] = (),
    links: Sequence[str] = (),
    framework: str | None = None,
) -> CostSet:
    """Return the set that the folders make; names as `costs import` takes them."""
    try:
        return _imported(form, folders, name, models, devices, links, framework)
    except (ArithmeticError, LookupError, ValueError) as error:
        # Columns were checked as they were read: no formula can be fitted to what they have.
        raise UserError(
            "costs-no-measurements",
            f"{', '.join(map(str, folders))}: too few or too uneven measurements to fit costs to "
            f"({type(error).__name__}: {error}); give a folder that was measured whole",
        ) from error


def _imported(
    form: str,
    folders: Sequence[Path],
    name: str,
    models: Sequence[str],
    devices: Sequence[str],
    links: Sequence[str],
    framework: str | None,
) -> CostSet:
    from laminabench.catalog.importing import aiconfigurator, llmservingsim, vidur
    from laminabench.catalog.importing.tables import tables_in

    if framework and form != "aiconfigurator":
        raise UserError(
            "costs-bad-flag", f"--framework {framework}: {form} has one framework's kernels; leave it out"
        )
    called = dict(_pair("--device", each) for each in devices)
    allreduce = dict(_link(each) for each in links)
    if form == "llmservingsim":
        profiles = [
            profile for each in folders for profile in llmservingsim.profiles_in(each, models, called)
        ]
        title = f"measured by LLMServingSim's profiler: {', '.join(each.folder.name for each in profiles)}"
        return llmservingsim.cost_set(name, title, profiles, allreduce)
    if form == "aiconfigurator":
        tables = [table for each in folders for table in tables_in(each, called, framework or "vllm")]
        return aiconfigurator.cost_set(name, tables, [model(each) for each in models], allreduce)
    assert form == "vidur"
    if models:
        raise UserError(
            "costs-bad-flag", "--model: Vidur's files have the sizes of their models; leave it out"
        )
    return vidur.cost_set(
        name, [one for each in folders for one in vidur.profiles_in(each, called)], allreduce
    )


def error_rows(costs: CostSet) -> list[dict[str, object]]:
    """Return the errors of a set's formulas, a row for each operation and device."""
    return [
        {
            "term": "prompts" if name == "prompt_attention" else name,
            "for": " ".join(to_path(key)),
            "samples": cost.origin.samples,
            **cost.origin.errors,
        }
        for name in sections()
        for key, cost in getattr(costs, name).items()
        if not getattr(cost, "kernel", "")  # which is not the set's own
    ]


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise UserError("costs-bad-flag", f"{flag} {text}: write NAME=DEVICE, such as RTX4090=rtx-4090")
    return name, value


def _link(text: str) -> tuple[AllReduceKey, AllReduceCost]:
    """Parse `rtx-4090=20us,16GB/s`: a link between two devices, its latency and rate."""
    name, value = _pair("--link", text)
    match = re.fullmatch(r"(\d{0,9}\.?\d{1,9})us,(\d{0,9}\.?\d{1,9})GB/s", value)
    if not match or not all(float(number) > 0 for number in match.groups()):
        raise UserError("costs-bad-flag", f"--link {text}: write DEVICE=20us,16GB/s")
    latency, rate = map(float, match.groups())
    on = device(name)
    share = rate * 1e9 / on.interchip_bytes_per_s
    return AllReduceKey(on.name, 2), AllReduceCost(latency * 1e-6, share, Origin("assumed", f"--link {text}"))
