"""Where pyverbs comes from: this environment, or the system's own Python packages.

PyPI's pyverbs is built from source, which takes libibverbs' headers and a new Python (59 does not build for
3.11). Debian's python3-pyverbs is compiled for the system's Python and lies outside every virtual
environment. Where this interpreter is that version, the one package is taken from there and nothing else.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

SYSTEM_PACKAGES = Path("/usr/lib/python3/dist-packages")


class NoPyverbsError(ImportError):
    """It is not here, or cannot be loaded; the message says how to get it."""


def pyverbs(system: Path = SYSTEM_PACKAGES) -> ModuleType:
    """The package `pyverbs`, ready for its modules to be imported."""
    if "pyverbs" in sys.modules:
        return sys.modules["pyverbs"]
    spec = importlib.util.find_spec("pyverbs") or _of_the_system(system)
    if spec is None or spec.loader is None:
        raise NoPyverbsError(_how_to_get_it(system))
    module = importlib.util.module_from_spec(spec)
    sys.modules["pyverbs"] = module
    try:
        spec.loader.exec_module(module)
        importlib.import_module("pyverbs.device")
    except ImportError as error:  # libibverbs is gone, or of another version
        for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
            del sys.modules[name]
        raise NoPyverbsError(f"pyverbs cannot be loaded ({error}): install it again") from error
    return module


def _of_the_system(system: Path) -> importlib.machinery.ModuleSpec | None:
    package = system / "pyverbs"
    if not (package / f"device{sysconfig.get_config_var('EXT_SUFFIX')}").exists():
        return None
    return importlib.util.spec_from_file_location(
        "pyverbs", package / "__init__.py", submodule_search_locations=[str(package)]
    )


def _how_to_get_it(system: Path) -> str:
    for_another = sorted((system / "pyverbs").glob("device.cpython-*.so"))
    if for_another:
        version = for_another[0].name.split("-")[1]
        return (
            f"pyverbs in {system} is for CPython {version[0]}.{version[1:]} and this is "
            f"{sys.version_info[0]}.{sys.version_info[1]}: pip install 'laminabench[rdma]'"
        )
    return (
        "pyverbs is not installed: on Debian and Ubuntu 'apt-get install python3-pyverbs', "
        "elsewhere pip install 'laminabench[rdma]'"
    )
