"""The accuracy board: how far modelled times were from measured ones, by system, device, model and metric."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

import msgspec

# With fewer measured loads an error is not known: one may be near by chance.
FEWEST_LOADS = 3
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


class Known(NamedTuple):
    """The known accuracy of modelled times of a system on some devices."""

    sentences: tuple[str, ...]
    error: float | None  # a share: the largest median of the cells that apply; None with too few loads

    unmeasured: tuple[str, ...] = ()  # devices without any load

    def __str__(self) -> str:
        return "; ".join((*self.sentences, *(f"no load on {device}" for device in self.unmeasured)))


def accuracy_of_set(costs: str) -> str:
    """Return the sentence about a cost set's accuracy on all devices."""
    return _sentence(costs, _primary(_of(costs))) or f"{costs} was never compared with a server"


def known_accuracy(costs: str, system: str, devices: Iterable[str], model: str) -> Known:
    """Return what the board says of a system with a cost set: of the kernels on its devices, and its own."""
    closest = {device: _closest(_of(costs), device, model) for device in devices}
    sentences = [_sentence(costs, cells) or accuracy_of_set(costs) for cells in closest.values()]
    applying = list(itertools.chain.from_iterable(closest.values()))
    measured = {each.device for each in applying}
    without = tuple(device for device in closest if applying and device not in measured)
    known = _enough(applying)
    if system != "vllm":
        own = _primary([each for each in board().cells if each.system == system])
        sentences.append(_sentence(system, own) or f"{system} was never compared with hardware")
        applying, known = [*applying, *own], known and _enough(own)
    largest = max((each.median / 100 for each in applying), default=None)
    return Known(tuple(dict.fromkeys(sentences)), largest if known else None, without)


def _enough(cells: Iterable[Accuracy]) -> bool:
    return sum(each.loads for each in cells) >= FEWEST_LOADS


def _of(costs: str) -> list[Accuracy]:
    """Return the cells of vLLM with a cost set: those of its kernels."""
    return [each for each in board().cells if (each.costs, each.system) == (costs, "vllm")]


def _closest(cells: Sequence[Accuracy], device: str, model: str) -> tuple[Accuracy, ...]:
    """Return the cells of this model on the device, else of others there, else of the model, else all."""
    here = [each for each in cells if each.device == device]
    of_model = [each for each in cells if each.model == model]
    groups = ([each for each in here if each.model == model], here, of_model, cells)
    return next(filter(None, map(_primary, groups)), ())


def _primary(cells: Sequence[Accuracy]) -> tuple[Accuracy, ...]:
    """Return the cells of the first metric of PRIMARY that there is."""
    of_metrics = (tuple(each for each in cells if each.metric == metric) for metric in PRIMARY)
    return next(filter(None, of_metrics), ())


def _sentence(subject: str, cells: Sequence[Accuracy]) -> str:
    """Return the median absolute error of cells, or the range of it, and of what; empty without any."""
    if not cells:
        return ""
    least, most = (choose(each.median for each in cells) for choose in (min, max))
    values = f"{least:.1f}" if least == most else f"{least:.1f} to {most:.1f}"
    metric = cells[0].metric.upper() if cells[0].metric == "tpot" else cells[0].metric
    count = sum(each.loads for each in cells)
    loads = f"{count} {cells[0].against}"
    names = zip(*((each.model, each.device) for each in cells), strict=True)
    models, devices = (list(dict.fromkeys(each)) for each in names)
    what = models[0] if len(models) == 1 else f"{len(models)} models"
    where = f"{what} on {' and '.join(devices)}"
    if count == 1:
        return f"{subject}: one measured load ({where}), {metric} off by {values} %"
    return f"{subject}: {metric} off by {values} % in the median of {loads} ({where})"
