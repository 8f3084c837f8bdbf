"""The process that vLLM runs in: started in a session of its own, read, and ended with what it started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from laminabench.baselines.environment import Environment, runner_folder
from laminabench.util.child_environment import child_environment

# A model that is compiled for the first time keeps it silent so many times longer than a step may.
_START_TIMES = 3
# Between the request to end and the kill.
_GRACE_S = 10.0
_SHARED = re.compile(rb"vllm_dist_[0-9a-f]{32}")
_NUMBERED = re.compile(rb"\bpid=(\d+)")
_SHARED_MEMORY = Path("/dev/shm")
# Of its log, what a Run keeps at most.
_LOG_BYTES = 2_000_000


class VllmEndedError(Exception):
    """An end of vLLM, or its standstill, before it was done; the reason is a sentence."""


class VllmProcess(contextlib.AbstractContextManager["VllmProcess"]):
    """The runner at work. Its lines are objects; `log` is what vLLM wrote."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        order: Mapping[str, object],
        log: Path,
        timeout_s: float,
    ) -> None:
        self._log, self._timeout_s = log, timeout_s
        self._temporary = Path(environment["TMPDIR"])
        self._begun = False
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=log.parent,
                # Ctrl-C is for this process, and whatever it starts can be ended with it.
                start_new_session=True,
            )
        self._write(json.dumps(order).encode())

    def again(self, requests: Mapping[str, object] | None = None) -> None:
        """Request another replay after one that is done: the same again, or of other requests."""
        self._write(json.dumps(requests).encode() if requests else b"")

    def _write(self, line: bytes) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # lines() says how it ended
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def lines(self) -> Iterator[dict[str, object]]:
        """Yield the runner's lines; raise VllmEndedError at its end."""
        for line in self._raw_lines():
            try:
                parsed = json.loads(line)
            except ValueError:
                parsed = None
            if not isinstance(parsed, dict):
                raise VllmEndedError(
                    f"vLLM's runner wrote what is no line of JSON: {line[:80].decode(errors='replace')!r}"
                )
            yield parsed
        raise VllmEndedError(self._how_it_ended())

    def _raw_lines(self) -> Iterator[bytes]:
        assert self._process.stdout
        stream, rest = self._process.stdout, b""
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while True:
                limit_s = self._timeout_s * (1 if self._begun else _START_TIMES)
                if not selector.select(limit_s):
                    when = "" if self._begun else " while it starts"
                    raise VllmEndedError(
                        f"vLLM hangs{when}: no word from it for {limit_s:g} s (--runner-timeout)"
                    )
                self._begun = True
                piece = os.read(stream.fileno(), 1 << 20)
                if not piece:
                    return
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "vLLM closed its output and went on"
        if code == -signal.SIGKILL:
            return "vLLM was killed (SIGKILL), as the kernel does where memory runs out"
        if code < 0:
            return f"vLLM was ended by {signal.Signals(-code).name}"
        return f"vLLM ended with exit code {code} before it was done"

    def log_bytes(self) -> bytes:
        """Return vLLM's log, or its end if it is long."""
        with self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _LOG_BYTES))
            return log.read()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it and the workers it started: by SIGTERM first, so that they clean up what they share."""
        process = self._process
        assert process.stdin
        assert process.stdout
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            # Its group's number stays taken until the last of its processes has ended.
            for sign in (signal.SIGTERM, signal.SIGKILL):
                if self._stopped(sign):
                    break
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_GRACE_S)
            process.stdout.close()
            self._sweep()

    def _sweep(self) -> None:
        """Remove what its processes leave behind in memory and among temporary files; they have all ended.

        That is what vLLM's workers on cores talk through, whose name begins with one that vLLM makes up for
        every start and writes into its log, and what Intel's OpenMP notes of every process it is loaded in.
        """
        log = self.log_bytes()
        for name in {name.decode() for name in _SHARED.findall(log)}:
            for path in (*_SHARED_MEMORY.glob(f"{name}-*"), self._temporary / name):
                path.unlink(missing_ok=True)
        for number in {self._process.pid, *map(int, _NUMBERED.findall(log))}:
            if not Path(f"/proc/{number}").exists():
                note = _SHARED_MEMORY / f"__KMP_REGISTERED_LIB_{number}_{os.getuid()}"
                note.unlink(missing_ok=True)

    def _stopped(self, sign: signal.Signals) -> bool:
        """Send the process group this signal; return whether it ended."""
        deadline = time.monotonic() + _GRACE_S
        try:
            os.killpg(self._process.pid, sign)
            while time.monotonic() < deadline:
                self._process.poll()  # or it would be there for ever
                os.killpg(self._process.pid, 0)
                time.sleep(0.02)
        except ProcessLookupError:
            return True
        return False


def command(environment: Environment) -> list[str]:
    """Return the runner's command. -P: nothing in its working folder is imported."""
    return [str(environment.python), "-P", "-m", "decode_replay"]


def variables(
    environment: Environment, cores: Sequence[int], workers: int, folder: Path, gpus: Sequence[int] = ()
) -> dict[str, str]:
    """Return the runner's variables: threads bound as vLLM binds them, no downloads, and only these GPUs.

    vLLM binds threads itself (VLLM_CPU_OMP_THREADS_BIND) only where a worker is a process of its own; one in
    the engine's process gets what vLLM would have set. Intel's OpenMP is what its manual says to preload.
    """
    inherited = {name: value for name, value in child_environment().items() if not name.startswith("PYTHON")}
    cache = cache_of(environment, folder)
    # Compilers keep what they can use again among their temporary files.
    temporary = cache / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    inherited |= {
        "PYTHONPATH": str(runner_folder()),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(temporary),
        # Names of sockets may have 107 characters, and where the environment is may be long.
        "VLLM_RPC_BASE_PATH": str(folder),
        # The caches of compiled models go when the environment does.
        "VLLM_CACHE_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if environment.kind == "cpu":
        return inherited | _for_cores(environment, cores, workers)
    return inherited | (_for_gpus(gpus) if gpus else {})


def cache_of(environment: Environment, folder: Path) -> Path:
    """Return the folder of compiled code: the environment's, or `folder` if that is read-only."""
    return (environment.folder if os.access(environment.folder, os.W_OK) else folder) / "cache"


def _for_gpus(numbers: Sequence[int]) -> dict[str, str]:
    """Return the GPUs' variables, in the order of the bus, as the driver's tools count them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible_numbers = [str(number) if visible is None else visible.split(",")[number] for number in numbers]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(visible_numbers)}


def _for_cores(environment: Environment, cores: Sequence[int], workers: int) -> dict[str, str]:
    bound = {"KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
    # Of a model compiled ahead the CPU build of 0.32 cannot load its cache, and compiles it again at
    # every start: llama-mini in 54 to 72 s. Kernels compiled at run time are cached: 18 s.
    bound["VLLM_USE_AOT_COMPILE"] = os.environ.get("VLLM_USE_AOT_COMPILE", "0")
    library = environment.folder / "lib" / "libiomp5.so"
    if library.is_file():
        bound["LD_PRELOAD"] = ":".join([str(library), *filter(None, [os.environ.get("LD_PRELOAD")])])
    per_worker = len(cores) // workers
    groups = [cores[first : first + per_worker] for first in range(0, len(cores), per_worker)]
    if workers == 1:
        listed = ",".join(map(str, cores))
        return bound | {
            "OMP_NUM_THREADS": str(len(cores)),
            "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{listed}]",
        }
    bind = "|".join(",".join(map(str, group)) for group in groups)
    return bound | {"VLLM_CPU_OMP_THREADS_BIND": bind, "OMP_NUM_THREADS": str(per_worker)}
