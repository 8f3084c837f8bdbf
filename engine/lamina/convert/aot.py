"""Slices compiled ahead of time by AOTInductor: a library for each piece of each class, cached on disk.

Weights are arguments of the compiled code, so that all slices of a class share it. Compiling takes 5 to 20 s
a piece, once on a machine; after that it is loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, export

from lamina.child_environment import child_environment
from lamina.convert.codegen import Code, bind_lines, describe_spec, name_tuple, piece_source
from lamina.convert.errors import ConversionError, in_short
from lamina.convert.folder import cache_folder
from lamina.convert.program import BATCH, Name, Spec
from lamina.convert.slices import BoundSlice, SliceClass
from lamina.convert.trace import MOST_REQUESTS

_EXAMPLE_BATCH = 2
_STALE_S = 3600.0  # no piece compiles for as long


@dataclass(frozen=True)
class _Compiled:
    """A piece's compiled code: takes a list of tensors, empties it, and returns a list."""

    run: Callable[[list[Tensor]], list[Tensor]]
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]


def bind_aot(kind: SliceClass, index: int, weights: Sequence[Tensor], device: torch.device) -> BoundSlice:
    """Bind a slice as compiled code, compiled now if it is not cached on this machine."""
    program = kind.program
    weight_of = dict(zip((value.name for value in program.weights), weights, strict=True))
    compiled = {
        position: _compile(kind, position, weight_of, device)
        for position, piece in enumerate(program.pieces)
        if piece.instructions
    }
    source = _call_compiled(kind, compiled)
    functions = source.function("bind", f"<compiled slice class {kind.index}>")(device, *weights)
    names = [piece.name for piece in program.pieces]
    return BoundSlice(index, source.text, tuple(weights), dict(zip(names, functions, strict=True)))


def _call_compiled(kind: SliceClass, compiled: dict[int, _Compiled]) -> Code:
    """Return the slice's functions with each piece's body replaced by one call of its compiled code."""
    program = kind.program
    weights = {value.name for value in program.weights}
    bodies: list[list[str]] = [[] for _ in program.pieces]
    names: dict[str, object] = {}
    for position, code in compiled.items():
        function = f"run_{program.pieces[position].name}"
        # Compiled code expects dense tensors; values of other pieces may be views.
        inputs = [str(name) if name in weights else f"{name}.contiguous()" for name in code.inputs]
        bodies[position].append(f"{name_tuple(code.outputs)} = {function}([{', '.join(inputs)}])")
        names[function] = code.run
    return Code(bind_lines(program, bodies), names)


def _compile(kind: SliceClass, position: int, weights: dict[Name, Tensor], device: torch.device) -> _Compiled:
    program, piece = kind.program, kind.program.pieces[position]
    produced = {instruction.result for instruction in piece.instructions}
    used = dict.fromkeys(name for instruction in piece.instructions for name in instruction.uses())
    inputs = tuple(name for name in used if name not in produced)
    results = dict.fromkeys([*piece.gives, *program.live_after(position)])
    outputs = tuple(name for name in results if name in produced)
    source = piece_source(piece, program, inputs, outputs)
    source.names["device"] = device
    example, shapes = [], []
    for name in inputs:
        spec = program.specs[name]
        # A weight's own strides: compiled code does not check them.
        example.append(torch.empty_like(weights[name]) if name in weights else _example(name, spec, device))
        shapes.append(
            {i: Dim(BATCH, min=1, max=MOST_REQUESTS) for i, d in enumerate(spec.dims) if d == BATCH}
        )
    layouts = [
        f"{describe_spec(program.specs[name])} {one.stride()}"
        for name, one in zip(inputs, example, strict=True)
    ]
    path = cache_folder("slices") / f"{_key(source.text, [*sorted(source.operators), *layouts], device)}.pt2"
    return _Compiled(_load_or_compile(path, source, example, shapes, device), inputs, outputs)


def _load_or_compile(
    path: Path, source: Code, example: list[Tensor], shapes: list[dict[int, Any]], device: torch.device
) -> Callable[[list[Tensor]], list[Tensor]]:
    """Load a compiled piece, compiling it if there is none or it cannot be read."""
    if path.exists():
        try:
            return _load(path, str(device))
        except Exception:  # whatever half a file makes torch raise
            with suppress(OSError):
                path.unlink(missing_ok=True)
    _compile_to(path, source, example, shapes)
    try:
        return _load(path, str(device))
    except Exception as error:
        raise ConversionError(
            "convert-aot-unloadable",
            f"{path}: the compiled slice cannot be loaded: {in_short(error)}; use backend python",
        ) from error


def _example(name: Name, spec: Spec, device: torch.device) -> Tensor:
    sizes = [_EXAMPLE_BATCH if dim == BATCH else dim for dim in spec.dims]
    if any(isinstance(size, str) for size in sizes):
        raise ConversionError(
            "convert-aot-shape",
            f"the aot backend cannot take {name}, of shape {list(spec.dims)}; use backend python",
        )
    return torch.zeros(sizes, dtype=spec.dtype, device=device)  # type: ignore[arg-type]  # no str is left


class _Piece(nn.Module):
    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *tensors: Tensor) -> Any:
        return self.run(*tensors)


def _compile_to(path: Path, source: Code, example: list[Tensor], shapes: list[dict[int, Any]]) -> None:
    compiler = _compiler()
    if shutil.which(compiler) is None:
        raise ConversionError(
            "convert-no-compiler",
            f"the aot backend needs a C++ compiler and there is no {compiler}; use backend python",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path.parent)
        # In the same folder, so that the rename is atomic and no process loads a partial library.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".compiling-") as folder:
            package_path = str(Path(folder) / "piece.pt2")
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own warnings
                step = _Piece(source.function("run", "<piece>"))
                exported = export(step, tuple(example), dynamic_shapes=(tuple(shapes),), strict=False)
                torch._inductor.aoti_compile_and_package(
                    exported, package_path=package_path, inductor_configs={"cpp.dynamic_threads": True}
                )
            Path(package_path).replace(path)
    except OSError as error:
        raise ConversionError(
            "convert-aot-unwritable", f"cannot write compiled slices to {path.parent}: {error.strerror}"
        ) from error
    except Exception as error:  # a compiler's own failures
        raise ConversionError(
            "convert-aot-failed",
            f"AOTInductor cannot compile this slice: {in_short(error)}; use backend python",
        ) from error


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary folders of killed compilations."""
    for left in folder.glob(".compiling-*"):
        with suppress(OSError):  # another process may be doing the same
            if time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left, ignore_errors=True)


@lru_cache(maxsize=256)
def _load(path: Path, device: str) -> Callable[[list[Tensor]], list[Tensor]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = torch.device(device).index
        package = torch._inductor.aoti_load_package(str(path), device_index=-1 if index is None else index)
    # The loader alone: the package parses its call specification at every call.
    run: Callable[[list[Tensor]], list[Tensor]] = package.loader.boxed_run
    return run


def _key(code: str, layouts: list[str], device: torch.device) -> str:
    """Return the cache key of compiled code: a hash of code, arguments, torch, compiler and processor."""
    machine = [torch.__version__, platform.machine(), _processor_flags(), _compiler_version(_compiler())]
    if device.type == "cuda":
        machine += [str(torch.version.cuda), str(torch.cuda.get_device_properties(device))]
    return hashlib.sha256("\n".join([code, *layouts, device.type, *machine]).encode()).hexdigest()[:32]


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


@lru_cache(maxsize=4)
def _compiler_version(compiler: str) -> str:
    try:
        answer = subprocess.run(
            [compiler, "--version"],
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return "none"
    return answer.stdout.partition("\n")[0]


@lru_cache(maxsize=1)
def _processor_flags() -> str:
    # Code is compiled for this processor; other machines may share the home folder.
    try:
        flags = re.search(r"^(flags|Features)\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        flags = None
    return flags.group(2) if flags else torch.backends.cpu.get_cpu_capability()
