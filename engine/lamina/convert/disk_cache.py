"""A cache of conversions on disk, so that an architecture is traced once.

A file is data and not code (see stored.py), and is read only if no other user can have written it. Its name
is a hash of all inputs: the config, the code of the model and of the converter, the versions of torch and
transformers, and the options. LAMINABENCH_CONVERSIONS=off disables the cache.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import msgspec
import torch

from lamina.convert.folder import cache_folder
from lamina.convert.stored import from_plain, to_plain

if TYPE_CHECKING:
    from lamina.convert.sliced import SlicedModel
    from lamina.convert.source import Source

SWITCH = "LAMINABENCH_CONVERSIONS"
_MAGIC = b"lamina conversion 1\n"
_SUFFIX = ".conversion"
# Limit of all files together; a model of 80 layers takes 0.2 MB.
MOST_BYTES = 64 << 20
_MODELS = "transformers.models."
# Packages whose objects a module of transformers may contain besides its own functions.
_FAMILIAR = frozenset(
    {"torch", "transformers", "builtins", "typing", "functools", "types", "enum", "re", "logging"}
)


def load(source: Source, rope: str, absorb: str) -> SlicedModel | None:
    """Return the cached conversion of this architecture, or None if there is none or it is damaged."""
    path = _path(source, rope, absorb)
    if path is None:
        return None
    try:
        text = _read(path)
        if text is None:
            return None
        result = from_plain(msgspec.msgpack.decode(text))
    except Exception:  # a file that cannot be read is removed
        with suppress(OSError):
            path.unlink()
        return None
    with suppress(OSError):
        os.utime(path)  # eviction is by time of use
    return result


def store(model: SlicedModel, source: Source, rope: str, absorb: str) -> None:
    """Write a conversion to the cache; the file is renamed into place, and failures are ignored."""
    path = _path(source, rope, absorb)
    if path is None:
        return
    try:
        text = msgspec.msgpack.encode(to_plain(model))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)  # only this user may read or write it
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(text).digest() + text)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink()
            raise
        _bound(path.parent)
    except Exception:  # a full disk, another user's folder, an unknown operator
        return


def _path(source: Source, rope: str, absorb: str) -> Path | None:
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no"):
        return None
    key = _key(source, rope, absorb)
    return None if key is None else cache_folder("conversions") / f"{key}{_SUFFIX}"


def _read(path: Path) -> bytes | None:
    """Return a file's content, or None if other users may have written it."""
    try:
        with path.open("rb") as file:
            for state in (os.fstat(file.fileno()), path.parent.stat()):
                if state.st_uid != os.getuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    return None
            data = file.read(MOST_BYTES)
    except OSError:
        return None
    head, text = data[: len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
    if head != _MAGIC + hashlib.sha256(text).digest():
        raise ValueError("it is damaged")
    return text


def _bound(folder: Path) -> None:
    """Remove the least recently used files beyond the limit."""
    states = sorted(
        ((one.stat().st_mtime_ns, one.stat().st_size, one) for one in folder.iterdir() if one.is_file()),
        reverse=True,
    )
    total = 0
    for _, size, path in states:
        total += size
        if total > MOST_BYTES:
            path.unlink(missing_ok=True)


def _key(source: Source, rope: str, absorb: str) -> str | None:
    """Return the cache key; None for classes outside transformers and for patched code."""
    classes = [type(source.config), *([] if source.model_class is None else [source.model_class])]
    modules = {one.__module__ for one in classes}
    if not all(name.startswith(_MODELS) for name in modules) or _patched(modules):
        return None
    parts = [
        source.config.to_json_string(use_diff=False),
        *(f"{one.__module__}.{one.__qualname__}" for one in classes),
        str(source.dtype), str(source.experts), rope, absorb,
        torch.__version__, platform.python_version(), _code_of_converter(),
        *(_code_in(_folder(name)) for name in sorted(modules)), _code_of_transformers(),
    ]  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _code_of_converter() -> str:
    here = Path(__file__).parent
    return _hash([*here.rglob("*.py"), *here.parent.glob("*.py")])


@cache
def _code_of_transformers() -> str:
    """Return the version of transformers and a hash of the files that models share."""
    import transformers

    root = Path(transformers.__file__).parent
    return str(transformers.__version__) + _hash([*root.glob("*.py"), *root.glob("integrations/*.py")])


@cache
def _code_in(folder: Path) -> str:
    return _hash(folder.glob("*.py"))


def _folder(module: str) -> Path:
    loaded = sys.modules.get(module) or find_spec(module)
    return Path(str(getattr(loaded, "__file__", None) or getattr(loaded, "origin", ""))).parent


def _hash(files: Iterator[Path] | list[Path]) -> str:
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _patched(modules: set[str]) -> bool:
    """Return whether code of transformers was replaced in this process, so that its files are outdated."""
    packages = {name.rpartition(".")[0] + "." for name in modules}
    common = {"masking_utils", "modeling_rope_utils", "activations", "modeling_layers"}
    ours = {f"transformers.{name}" for name in common}
    loaded = [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and (name in ours or any(map(name.startswith, packages)))
        and ".configuration_" not in name  # configs are part of the key anyway
    ]
    return any(not _is_library_code(value) for module in loaded for value in _functions(module))


def _functions(module: ModuleType) -> Iterator[object]:
    for value in list(vars(module).values()):
        yield value
        if isinstance(value, type) and value.__module__ == module.__name__:
            for inner in vars(value).values():
                yield getattr(inner, "__func__", inner)


def _is_library_code(value: object) -> bool:
    if isinstance(value, FunctionType):
        # Generated code has no file.
        return value.__code__.co_filename.startswith((*_roots(), "<"))
    root = type(value).__module__.partition(".")[0]
    return not callable(value) or root in _FAMILIAR or isinstance(value, type)


@cache
def _roots() -> tuple[str, ...]:
    import transformers

    places = [Path(transformers.__file__).parent, Path(str(torch.__file__)).parent]
    return (*(f"{place}{os.sep}" for place in places), sysconfig.get_path("stdlib") + os.sep)
