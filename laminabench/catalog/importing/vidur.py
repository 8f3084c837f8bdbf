"""A cost set from Vidur's profiles: operators of a model's layer, a file a GPU and model, and NCCL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laminabench.catalog.cost_file import assumed_borrowing, assumed_host
from laminabench.catalog.cost_keys import AllReduceKey, DtypeKey, GemmKey, OperatorKey
from laminabench.catalog.cost_terms import AllReduceCost, ElementwiseCost, Origin
from laminabench.catalog.costs import CostSet
from laminabench.catalog.fitting import formulas
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.hardware import Device
from laminabench.catalog.importing.columns import Columns, read_frame
from laminabench.catalog.importing.curves import (
    DEGREES,
    NEAREST,
    Layers,
    curve,
    fitted_elementwise,
    fitted_gemm,
    packaged,
)
from laminabench.catalog.importing.names import device_called
from laminabench.catalog.importing.vllm_tables import MAX_ROWS, samples_of
from laminabench.catalog.measured import Curve, Measured
from laminabench.catalog.models import ModelShape
from laminabench.util.errors import UserError

VIDUR_OPS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")  # as ModelShape.layer_gemms
VIDUR_SMALL_OPS = ("input_layernorm", "attn_rope", "post_attention_layernorm", "mlp_act", "add")

SOURCE = "microsoft/vidur (MIT), data/profiling"
DTYPE = "bf16"  # fp16 there: as fast on every device


@dataclass(frozen=True, slots=True)
class VidurProfile:
    """One file: a model on a device, over one or more tensor-parallel degrees."""

    path: Path
    device: Device
    model: ModelShape
    operators: Mapping[int, Columns]  # by degree

    @property
    def gpu(self) -> Path:
        return self.path.parents[2]

    @property
    def layers(self) -> Layers:
        return Layers(self.model, list(self.operators))

    @property
    def complete(self) -> bool:
        """Whether all small operators of a layer are present; phi-2 has one norm."""
        return all(set(VIDUR_SMALL_OPS).issubset(columns) for columns in self.operators.values())

    def origin(self, what: str) -> Origin:
        return Origin("measured", f"{SOURCE}/compute/{self.gpu.name}: {self.model.name}, {what}")


def profiles_in(folder: Path, devices: Mapping[str, str]) -> list[VidurProfile]:
    """Return every file of operators in or under a folder."""
    paths = [path for path in sorted(folder.resolve().rglob("mlp.csv")) if path.parts[-5:-4] == ("compute",)]
    if not paths:
        raise UserError(
            "costs-no-measurements", f"{folder}: there is no compute/GPU/OWNER/MODEL/mlp.csv in it"
        )
    return [
        VidurProfile(
            path,
            device_called(path.parts[-4], devices, path.parents[2]),
            vidur_model(path),
            vidur_layers(path),
        )
        for path in paths
    ]


def cost_set(
    name: str, profiles: Sequence[VidurProfile], allreduce: Mapping[AllReduceKey, AllReduceCost]
) -> CostSet:
    """Build a cost set from the measurements, with fitted formulas elsewhere and the default attention."""
    gemm: dict[GemmKey, Curve] = {}
    operators: dict[OperatorKey, Curve] = {}
    for profile in profiles:
        # What several models have is the first one's: two sessions in one curve would make it jagged.
        gemm = dict(_gemms(profile)) | gemm
        if profile.complete:
            operators = dict(_operators(profile)) | operators
    measured = Measured(gemm, operators, nearest=NEAREST)
    by_device = {profile.device.name: profile for profile in profiles}
    devices = {on: profile.device for on, profile in by_device.items()}
    by_gpu = {on: [each for each in profiles if each.device.name == on] for on in devices}
    reduced = [cost for profile in by_device.values() for cost in _allreduce(profile)]
    attention = "Vidur's attention is of other kernels"
    return CostSet(
        name=name,
        title=f"measured by Vidur: {', '.join(sorted({profile.gpu.name for profile in profiles}))}",
        gemm={
            DtypeKey(on, DTYPE): fitted_gemm(
                device, DTYPE, measured, [each.layers for each in by_gpu[on]], SOURCE
            )
            for on, device in devices.items()
        },
        attention={on: packaged("attention", device, attention) for on, device in devices.items()},
        prompt_attention={
            on: packaged("prompt_attention", device, attention) for on, device in devices.items()
        },
        allreduce={**dict(reduced), **allreduce},
        elementwise={on: _elementwise(device, operators, by_gpu[on]) for on, device in devices.items()},
        host=assumed_host(),
        borrowed=assumed_borrowing(),
        measured=measured,
    )


def _gemms(profile: VidurProfile) -> Iterable[tuple[GemmKey, Curve]]:
    for degree, columns in profile.operators.items():
        for name, gemm in zip(VIDUR_OPS, profile.model.layer_gemms(degree), strict=True):
            points = curve(columns["rows"], columns[name], profile.origin(name))
            yield GemmKey(profile.device.name, DTYPE, gemm.n, gemm.k), points


def _operators(profile: VidurProfile) -> Iterable[tuple[OperatorKey, Curve]]:
    """Yield the small operators. vLLM's norms also add, so each has half of a layer's one addition."""
    for degree, columns in profile.operators.items():
        seconds = {
            "norm": (columns["input_layernorm"] + columns["post_attention_layernorm"] + columns["add"]) / 2,
            "activation": columns["mlp_act"],
            "rotary": columns["attn_rope"],
            "embedding": columns["emb"],
        }
        widths = {name: width for name, width, _ in profile.model.operators(degree)}
        for name, width in (widths | {"embedding": profile.model.hidden}).items():
            points = curve(columns["rows"], seconds[name], profile.origin(name))
            yield OperatorKey(profile.device.name, name, width), points


def _elementwise(
    on: Device, operators: Mapping[OperatorKey, Curve], profiles: Sequence[VidurProfile]
) -> ElementwiseCost:
    layers = [each.layers for each in profiles if each.complete]
    if layers:
        return fitted_elementwise(on, operators, layers, SOURCE)
    cost: ElementwiseCost = packaged("elementwise", on, "no profile has all operators of a layer")
    return cost


def _allreduce(profile: VidurProfile) -> Iterable[tuple[AllReduceKey, AllReduceCost]]:
    """Return the all-reduce of all GPUs of a node on one switch. Pairs are measured, too, and not read."""
    path = profile.gpu.parents[1] / "network" / f"{profile.gpu.name}_dgx" / "all_reduce.csv"
    if not path.is_file():
        return
    source = f"{SOURCE}/network, {path.parent.name}, NCCL, fastest repetition"
    for degree in DEGREES:
        samples = vidur_allreduce(path, degree)
        if len(samples):
            yield (
                AllReduceKey(profile.device.name, degree),
                formulas.allreduce(profile.device, degree, samples, source),
            )


# Files


def vidur_allreduce(path: Path, degree: int) -> Samples:
    """Read NCCL's all-reduce in a node: the fastest repetition, as slower ones include waiting for ranks."""
    fastest = "time_stats.all_reduce.min"
    table = read_frame(path, counts=["num_workers", "devices_per_node", "size"], times=[fastest])
    one_node = (table.num_workers == degree) & (table.devices_per_node == degree)
    table = table[one_node & (table["size"] <= 2**25)]
    table = table.groupby("size", as_index=False)[fastest].median()
    return samples_of(table, {"bytes": "size"}, table[fastest].to_numpy(np.float64) * 1e-3)


def vidur_layers(path: Path) -> dict[int, Columns]:
    """Return rows and the seconds of every operator of a layer, by tensor-parallel degree.

    Repetitions are merged by their median.
    """
    degree = "num_tensor_parallel_workers"
    named = {f"time_stats.{name}.median": name for name in (*VIDUR_OPS, *VIDUR_SMALL_OPS, "emb")}
    optional = [column for column, name in named.items() if name not in VIDUR_OPS]
    table = read_frame(path, counts=[degree, "num_tokens"], times=named, optional=optional)
    table = table[table.num_tokens <= MAX_ROWS]
    table = table.groupby([degree, "num_tokens"], as_index=False).median()
    return {
        int(tp): {
            "rows": part["num_tokens"].to_numpy(np.float64),
            **{
                name: part[column].to_numpy(np.float64) * 1e-3
                for column, name in named.items()
                if column in part
            },
        }
        for tp, part in table.groupby(degree)
    }


def vidur_model(path: Path) -> ModelShape:
    """Return the model of a file of operators, with its sizes: the one layer that was measured."""
    sizes = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size")
    row = read_frame(path, counts=sizes, text=["use_gated_mlp"]).iloc[0]
    heads, kv_heads, hidden, intermediate, vocab = (int(row[name]) for name in sizes)
    return ModelShape(
        name=path.parent.name,
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocab=vocab,
        gated_mlp=row["use_gated_mlp"].lower() in ("true", "1"),
    )
