"""A cost set from a profile folder of LLMServingSim: vLLM's operators, measured one layer at a time.

https://llmservingsim.ai has the format. All times there are in microseconds; those of skew.csv are sums of
`measurement_iterations` measurements.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laminabench.catalog.cost_file import assumed_borrowing, assumed_host
from laminabench.catalog.cost_keys import AllReduceKey, DtypeKey, ExpertsKey, GemmKey, HeadsKey, OperatorKey
from laminabench.catalog.cost_terms import (
    AllReduceCost,
    AttentionCost,
    Float64,
    Origin,
    PromptAttentionCost,
)
from laminabench.catalog.costs import CostSet
from laminabench.catalog.families import load_models, same_sizes
from laminabench.catalog.find_model import model
from laminabench.catalog.fitting import mixtures, terms
from laminabench.catalog.fitting.formulas import Heads, decode_samples, prompt_samples
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.fitting.terms import mape
from laminabench.catalog.hardware import Device
from laminabench.catalog.importing.columns import MOST_KINDS, Columns, read_columns
from laminabench.catalog.importing.curves import GRAPH_ROWS, Layers, curve, fitted_elementwise, fitted_gemm
from laminabench.catalog.importing.names import device_called
from laminabench.catalog.measured import AttentionGrids, Curve, Grid, Measured
from laminabench.catalog.models import ModelShape
from laminabench.catalog.routing import skewed
from laminabench.catalog.step import SKEW
from laminabench.util import safe_parse
from laminabench.util.errors import UserError

SOURCE = "casys-kaist/LLMServingSim (MIT), profiler/perf"
DTYPE = "bf16"
GEMMS = {
    "qkv_proj": "qkv",
    "o_proj": "o",
    "gate_up_proj": "gate_up",
    "down_proj": "down",
    "lm_head": "lm_head",
}
OPERATORS = {
    "layernorm": "norm",
    "rotary_emb": "rotary",
    "qk_norm": "qk_norm",
    "act_fn": "activation",
    "embedding": "embedding",
    "sampler": "sampler",
}
# Of the share of requests that are long, where the way to the longest is averaged; and of the longest one's
# KV tokens. They are the middles of LLMServingSim's own ranges.
SHARES = (0.025, 0.1, 0.25, 0.5, 0.85)
SHARE_EDGES = (0.05, 0.15, 0.4, 0.7)
LONGEST = (512.0, 2048.0, 8192.0, 32768.0)
LONGEST_EDGES = (1024, 4096, 16384)

AttentionByShape = dict[HeadsKey, AttentionGrids]

# Of batches that are priced by their mean alone.
# Attention is checked at every other length.
_FEWEST_LENGTHS = 3
EVEN = Grid((np.ones(1),), np.zeros(1))


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One folder: a model on a device, over one or more tensor-parallel degrees."""

    folder: Path
    model: ModelShape
    device: Device
    facts: dict[str, str]  # the plain lines of its meta.yaml

    @property
    def skewed(self) -> bool:
        """Whether to use its measurements of uneven batches, as its authors declare."""
        return self.facts.get("skew_fit") == "true"

    @property
    def degrees(self) -> list[int]:
        matches = (re.fullmatch(r"tp([1-9]\d{0,3})", path.name) for path in self.folder.glob("tp*/"))
        return sorted(int(match[1]) for match in matches if match)

    def read(self, degree: int, name: str, **columns: Collection[str]) -> Columns:
        return read_columns(self.folder / f"tp{degree}" / name, **columns)

    def refused(self, degree: int, name: str, why: str) -> UserError:
        return UserError("costs-no-measurements", f"{self.folder / f'tp{degree}' / name}: {why}")

    def origin(self, what: str, samples: int = 0, **errors: float) -> Origin:
        source = f"{SOURCE}, vLLM {self.facts.get('vllm_version', '?')}, {self.facts.get('gpu', '?')}: {what}"
        return Origin("measured", source, "", errors, samples)


def facts_of(folder: Path) -> dict[str, str]:
    """Return the plain lines of a folder's meta.yaml: author, subject and date of the measurement."""
    path = folder / "meta.yaml"
    try:
        text = safe_parse.text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("costs-no-measurements", f"{path}: cannot be read: {error}") from error
    facts = {key: value.strip("'\"") for key, value in re.findall(r"(?m)^(\w+): (\S.*?)\s*$", text)}
    return facts | dict(re.findall(r"(?m)^(skew_fit):\n +enabled: (\w+)", text))


def profiles_in(folder: Path, models: Sequence[str], devices: Mapping[str, str]) -> list[LayerProfile]:
    """Return every profile in or under a folder; `models` has the one that the catalogue lacks.

    `devices` names devices of the catalogue by what meta.yaml calls them, where that is not plain.
    """
    folders = sorted(path.parent for path in folder.rglob("meta.yaml"))
    if not folders:
        raise UserError("costs-no-measurements", f"{folder}: there is no meta.yaml in it or under it")
    given = [model(each) for each in models]
    return [_profile(each, given, devices) for each in folders]


def _profile(folder: Path, given: Sequence[ModelShape], devices: Mapping[str, str]) -> LayerProfile:
    facts = facts_of(folder)
    called, hardware = facts.get("model", ""), facts.get("hardware", "")
    shapes = [each for each in load_models().values() if called and same_sizes(called, each.source)]
    shapes += given[:1] if len(given) == 1 else []
    if not shapes:
        raise UserError(
            "costs-unknown-model",
            f"{folder}: the catalogue has no {called or 'model without a name'}; give its config.json by "
            "--model, and import one such profile at a time",
        )
    shape = shapes[0]
    if shape.latent:
        raise UserError(
            "costs-mixture-not-imported",
            f"{folder}: {shape.name} has a latent KV, whose times this format does not give; "
            "`--format aiconfigurator` has them",
        )
    profile = LayerProfile(folder, shape, device_called(hardware, devices, folder), facts)
    if not profile.degrees:
        raise UserError("costs-no-measurements", f"{folder}: has no folder tp1, tp2, ...")
    if other := set(profile.degrees) - set(shape.tp_degrees()):
        raise UserError("costs-no-measurements", f"{folder}: {shape.name} is not split {min(other)} ways")
    return profile


def cost_set(
    name: str,
    title: str,
    profiles: Sequence[LayerProfile],
    allreduce: Mapping[AllReduceKey, AllReduceCost] | None = None,
) -> CostSet:
    """Return all profiles as one set: measurements, and formulas fitted to them for all else.

    No profile has the time of an all-reduce.
    """
    gemm: dict[GemmKey, Curve] = {}
    operators: dict[OperatorKey, Curve] = {}
    attention: AttentionByShape = {}
    for profile in profiles:
        for degree in profile.degrees:
            curves = _curves(profile, degree)
            gemm |= _gemms(profile, degree, curves)
            operators |= _operators(profile, degree, curves)
            attention |= _attention(profile, degree)
    by_device = {profile.device.name: profile.device for profile in profiles}
    of_experts = [each for each in profiles if each.model.experts]
    experts = {key: times for each in of_experts for key, times in _experts(each).items()}
    measured = Measured(gemm, operators, attention, GRAPH_ROWS, experts=experts)

    def layers_of(on: str) -> list[Layers]:
        return [Layers(each.model, each.degrees) for each in profiles if each.device.name == on]

    return CostSet(
        name=name,
        title=title,
        gemm={
            DtypeKey(on, DTYPE): fitted_gemm(device, DTYPE, measured, layers_of(on), SOURCE)
            for on, device in by_device.items()
        },
        attention={on: _fitted_decode(device, attention) for on, device in by_device.items()},
        prompt_attention={on: _fitted_prompt(device, attention) for on, device in by_device.items()},
        allreduce=allreduce or {},
        experts={
            DtypeKey(each.device.name, DTYPE): mixtures.experts(
                each.device, DTYPE, _moe(each), f"{SOURCE}: experts of {each.model.name}"
            )
            for each in of_experts
        },
        elementwise={
            on: fitted_elementwise(device, operators, layers_of(on), SOURCE)
            for on, device in by_device.items()
        },
        host=assumed_host(),
        borrowed=assumed_borrowing(),
        measured=measured,
    )


# As it was measured


def _curves(profile: LayerProfile, degree: int) -> dict[str, Curve]:
    """Return the curve of every layer in a degree's files, by its name there."""
    by_layer = {}
    for name, rows in (("dense.csv", "tokens"), ("per_sequence.csv", "sequences")):
        table = profile.read(degree, name, text=["layer"], counts=[rows], times=["time_us"])
        for layer in filter((GEMMS | OPERATORS).get, dict.fromkeys(table["layer"].tolist())):
            of = np.flatnonzero(table["layer"] == layer)
            of = of[np.argsort(table[rows][of], kind="stable")]
            by_layer[layer] = curve(table[rows][of], table["time_us"][of] * 1e-6, profile.origin(layer))
    model = profile.model
    needed = {name for name, _, _ in model.operators(degree)} | {"embedding", "sampler"}
    shapes = {gemm.name for gemm in (*model.layer_gemms(degree), model.lm_head_gemm(degree))}
    if not model.dense_layers:
        needed.discard("activation")  # experts have their own
    layers = [
        *(layer for layer, name in GEMMS.items() if name in shapes),
        *(layer for layer, name in OPERATORS.items() if name in needed),
    ]
    if lacking := [layer for layer in layers if layer not in by_layer]:
        raise profile.refused(degree, "dense.csv", f"has no layer {', '.join(lacking)}, nor per_sequence.csv")
    return by_layer


def _gemms(profile: LayerProfile, degree: int, curves: Mapping[str, Curve]) -> dict[GemmKey, Curve]:
    model = profile.model
    shapes = {gemm.name: gemm for gemm in (*model.layer_gemms(degree), model.lm_head_gemm(degree))}
    return {
        GemmKey(profile.device.name, DTYPE, shapes[GEMMS[layer]].n, shapes[GEMMS[layer]].k): grid
        for layer, grid in curves.items()
        if layer in GEMMS
    }


def _operators(profile: LayerProfile, degree: int, curves: Mapping[str, Curve]) -> dict[OperatorKey, Curve]:
    model = profile.model
    widths = {name: width for name, width, _ in model.operators(degree)}
    widths |= {"embedding": model.hidden, "sampler": model.lm_head_gemm(degree).n}
    return {
        OperatorKey(profile.device.name, OPERATORS[layer], widths[OPERATORS[layer]]): grid
        for layer, grid in curves.items()
        if OPERATORS.get(layer) in widths
    }


def _moe(profile: LayerProfile) -> Samples:
    """Return the routed experts of a layer on one device, by tokens and experts that these activate."""
    table = profile.read(1, "moe.csv", counts=["tokens", "activated_experts"], times=["time_us"])
    of, rows = profile.model.experts, table["tokens"]
    assert of
    sizes = {"hidden": profile.model.hidden, "inter": of.intermediate, "top_k": of.top_k, "experts": of.count}
    columns = {
        name: np.full(len(rows), size, np.float64) for name, size in ({**sizes, "tp": 1, "ep": 1}).items()
    }
    columns |= {"rows": rows, "active": table["activated_experts"], "pairs": rows * of.top_k}
    return Samples(columns, table["time_us"] * 1e-6)


def _experts(profile: LayerProfile) -> dict[ExpertsKey, Curve]:
    """Return the times by tokens, between activated experts as many as skewed loads activate."""
    samples, of, model = _moe(profile), profile.model.experts, profile.model
    assert of
    rows = np.unique(samples["rows"])
    if len(rows) > MOST_KINDS:
        raise profile.refused(1, "moe.csv", f"has more than {MOST_KINDS:,} numbers of tokens")
    active = skewed(of.count, of.top_k, 1, rows, SKEW).active
    times = []
    for count, experts in zip(rows, active, strict=True):
        here = samples.where(samples["rows"] == count)
        order = np.argsort(here["active"], kind="stable")
        times.append(np.interp(experts, here["active"][order], here.seconds[order]))
    key = ExpertsKey(profile.device.name, DTYPE, model.hidden, of.intermediate, of.top_k, of.count, 1, 1)
    return {key: curve(rows, np.array(times), profile.origin("experts, by those that skewed loads activate"))}


def _attention(profile: LayerProfile, degree: int) -> AttentionByShape:
    model = profile.model
    counts = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"]
    table = profile.read(degree, "attention.csv", counts=counts, times=["time_us"])
    chunks, decodes = table["prefill_chunk"] > 0, table["n_decode"] > 0
    seconds = table["time_us"] * 1e-6

    def grid(which: np.ndarray, *names: str) -> Grid:
        if not which.any():
            raise profile.refused(degree, "attention.csv", f"has no rows of {' and '.join(names)} alone")
        return complete_grid([table[name][which] for name in names], seconds[which])

    skew, mixed_skew = _skew(profile, degree) if profile.skewed else (EVEN, EVEN)
    decode = grid(decodes & ~chunks, "n_decode", "kv_decode")
    if min(decode.values.shape) < 1 or len(decode.axes[1]) < _FEWEST_LENGTHS:
        raise profile.refused(
            degree, "attention.csv", f"needs {_FEWEST_LENGTHS} lengths of kv_decode or more"
        )
    grids = AttentionGrids(
        decode,
        grid(chunks & ~decodes, "prefill_chunk", "kv_prefill"),
        grid(chunks & decodes, "prefill_chunk", "kv_prefill", "n_decode", "kv_decode"),
        skew,
        mixed_skew,
        profile.origin("attention", len(seconds), held_out_op=_held_out(decode)),
    )
    heads, kv_heads = model.heads // degree, max(1, model.kv_heads // degree)
    return {HeadsKey(profile.device.name, heads, kv_heads, model.head_dim): grids}


def _held_out(decode: Grid) -> float:
    """Return the error of predicting every other length from its neighbours, in percent."""
    lengths, values = decode.axes[1], decode.values
    guessed = np.array([np.interp(lengths[1:-1:2], lengths[::2], row[::2]) for row in values])
    return mape(guessed, values[:, 1:-1:2])


def complete_grid(columns: Sequence[Float64], values: Float64) -> Grid:
    """Return a grid without holes by removing, one by one, the point with most of them.

    Only powers of two are used as points: more of them are in some files for some columns.
    """
    whole = [np.where(column == 0, 1, np.maximum(column, 0.75)) for column in columns]  # no power below 1
    plain = np.all([np.log2(column) % 1 == 0 for column in whole], axis=0)
    columns, values = [column[plain] for column in columns], values[plain]
    axes = [np.unique(column) for column in columns]
    places = [np.searchsorted(axis, column) for axis, column in zip(axes, columns, strict=True)]
    full = np.full([len(axis) for axis in axes], np.nan)
    full[tuple(places)] = values
    while np.isnan(full).any():
        holes = [
            np.isnan(full).mean(axis=tuple(i for i in range(full.ndim) if i != axis))
            for axis in range(full.ndim)
        ]
        axis = int(np.argmax([counts.max() for counts in holes]))
        point = int(np.argmax(holes[axis]))
        full = np.delete(full, point, axis)
        axes[axis] = np.delete(axes[axis], point)
    return Grid(tuple(axes), full)


def _skew(profile: LayerProfile, degree: int) -> tuple[Grid, Grid]:
    """Return how far a batch of two lengths is from one at their mean towards one at the longer.

    The least squares' share in a cell; where nothing was measured, that of the cell with an axis less.
    """
    counts = ["n", "pc", "ratio", "kv_big", "t_max_us", "t_mean_us", "t_skew_us"]
    table = profile.read(degree, "skew.csv", counts=counts)
    long, way = table["t_max_us"] - table["t_mean_us"], table["t_skew_us"] - table["t_mean_us"]
    requests = np.unique(table["n"])
    places = (
        np.searchsorted(requests, table["n"]),
        np.digitize(table["ratio"], SHARE_EDGES, right=True),
        np.digitize(table["kv_big"], LONGEST_EDGES, right=True),
    )
    sizes = (len(requests), len(SHARES), len(LONGEST))

    def shares(of: np.ndarray, axes: int) -> Float64:
        cells = tuple(place[of] for place in places[:axes])
        up, down = np.zeros(sizes[:axes]), np.zeros(sizes[:axes])
        np.add.at(up, cells, (long * way)[of])
        np.add.at(down, cells, (long**2)[of])
        with np.errstate(invalid="ignore", divide="ignore"):
            share = up / down
        return share if axes == 1 else np.where(np.isfinite(share), share, shares(of, axes - 1)[..., None])

    def grid(of: np.ndarray, *axes: Float64) -> Grid:
        values = shares(of, 1 + len(axes))
        there = np.isfinite(values.reshape(len(requests), -1)).all(axis=1)
        return Grid((requests[there], *axes), np.clip(values[there], 0, 1))

    pure = table["pc"] == 0
    return grid(pure, np.array(SHARES)), grid(~pure, np.array(SHARES), np.array(LONGEST))


# Formulas for all else


def _fitted_decode(on: Device, attention: AttentionByShape) -> AttentionCost:
    samples = decode_samples({heads: grids.decode for heads, grids in _of(on, attention)})
    usual = (samples["batch"] * samples["kv_heads"] >= 8) & (samples["context"] >= 256)
    samples = samples.where(usual)
    return terms.attention(on).sourced(samples, f"{SOURCE}: decode attention")


def _fitted_prompt(on: Device, attention: AttentionByShape) -> PromptAttentionCost:
    samples = prompt_samples({heads: grids.prompt for heads, grids in _of(on, attention)})
    return terms.prompt_attention(on).sourced(samples, f"{SOURCE}: attention of chunks")


def _of(on: Device, attention: AttentionByShape) -> Iterable[tuple[Heads, AttentionGrids]]:
    return ((key[1:], grids) for key, grids in attention.items() if key.device == on.name)
