"""The accuracy board: how far modelled times were from measured ones, by system, device, model and metric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources

import msgspec

from laminabench.catalog.costs import CostSet

PRIMARY = ("tpot", "step", "latency")  # the metric that a sentence names, the first that a cell has


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of predictions, predicted / measured - 1 in percent, over the loads of one cell of the board."""

    system: str
    device: str
    model: str
    metric: str
    costs: str
    loads: int
    median: float  # of absolute errors
    signed: float  # median of signed errors
    p90: float  # of absolute errors
    against: str  # what was measured: "loads of vLLM servers"
    measured: str  # the day, or the first and the last
    fitted: str = ""  # constants from other rows of the same source


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """All cells, and the day on which they were predicted."""

    date: str
    cells: tuple[Accuracy, ...]


@cache
def board() -> Board:
    """Return the packaged board, which `ci/board.py` writes from results/validation."""
    text = resources.files(__package__).joinpath("data", "accuracy.json").read_bytes()
    return msgspec.json.decode(text, type=Board)


def held_against(costs: CostSet, system: str, devices: Iterable[str], model: str) -> str:
    """Return the sentence about the accuracy of modelled numbers of this system, devices and model."""
    of_set = [each for each in board().cells if each.costs == costs.name and each.metric in PRIMARY]
    kernels = [_closest(of_set, device, model) for device in dict.fromkeys(devices)]
    sentences = [each for each in kernels if each] or [costs.held_against]
    own = _of_system(of_set, system) if system != "vllm" else ""
    return "; ".join(filter(None, (*sentences, own)))


def _closest(cells: Iterable[Accuracy], device: str, model: str) -> str:
    """Return the sentence of this model on the device, else of the others there; empty without any."""
    here = [each for each in cells if (each.system, each.device) == ("vllm", device)]
    exact = [each for each in here if each.model == model]
    chosen = _primary(exact or here)
    where = f"{model} on {device}" if exact else f"other models on {device}"
    return f"{chosen[0].costs} held against {_loads(chosen)} ({where}): {_errors(chosen)}" if chosen else ""


def _of_system(cells: Iterable[Accuracy], system: str) -> str:
    chosen = _primary([each for each in cells if each.system == system])
    if not chosen:
        return f"{system} was never held against hardware"
    return f"{system} held against {_loads(chosen)} on {chosen[0].device}: {_errors(chosen)}"


def _primary(cells: Iterable[Accuracy]) -> list[Accuracy]:
    """Return the cells of the first metric of PRIMARY that there is."""
    cells = list(cells)
    for metric in PRIMARY:
        if chosen := [each for each in cells if each.metric == metric]:
            return chosen
    return []


def _loads(cells: Sequence[Accuracy]) -> str:
    return f"{sum(each.loads for each in cells)} {cells[0].against}"


def _errors(cells: Sequence[Accuracy]) -> str:
    """Return the median absolute error, or the range of it over several cells."""
    least, most = (choose(each.median for each in cells) for choose in (min, max))
    values = f"{least:.1f}" if least == most else f"{least:.1f} to {most:.1f}"
    metric = cells[0].metric
    return f"{metric.upper() if metric == 'tpot' else metric} off by {values} % in the median"


def error_of(costs: CostSet, system: str, devices: Iterable[str], model: str) -> float | None:
    """Return the largest median error that the board has for these, as a share; None where it has none.

    Of a device the model's error, else the largest of other models there, else of the cost set; of systems
    but vLLM the largest of their own too, which must be known.
    """
    of_set = [each for each in board().cells if each.costs == costs.name]
    kernels = [each for each in of_set if each.system == "vllm"]
    chosen = []
    for device in dict.fromkeys(devices):
        here = [each for each in kernels if each.device == device]
        exact = [each for each in here if each.model == model]
        chosen.append(_primary(exact or here or kernels))
    if system != "vllm":
        chosen.append(_primary(each for each in of_set if each.system == system))
    if not all(chosen):
        return None
    return max(each.median for cells in chosen for each in cells) / 100
