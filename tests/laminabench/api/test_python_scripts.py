"""A script of a user's, which has no guard against being imported, and the example notebook in a kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOK = ROOT / "examples" / "does-it-pay.ipynb"
# With outputs it would be large, and its changes could not be reviewed.
MOST_BYTES = 30_000


def test_worker_processes_do_not_run_the_script_again(nowhere: Path) -> None:
    script = nowhere / "mine.py"
    script.write_text(
        "import laminabench as lb\n"
        "print('once', flush=True)\n"
        "table = lb.sweep('profile:azure-conv', {'batches': (1, 2)}, num_requests=20, jobs=2)\n"
        "print(len(table))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("once\n2\n", "")


def test_the_notebook_is_committed_without_outputs() -> None:
    import nbformat

    result = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(result)
    assert NOTEBOOK.stat().st_size < MOST_BYTES
    assert all(not cell.outputs for cell in result.cells if cell.cell_type == "code")


@pytest.mark.long  # a kernel, and all of the answer
@pytest.mark.filterwarnings("default")  # of what talks to kernels
def test_the_notebook_runs(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(nowhere / name.lower()))
    work = nowhere / "work"
    work.mkdir()
    result = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        result, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    )
    client.execute()
    outputs = [output for cell in result.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [each for each in outputs if each.output_type == "error" or each.get("name") == "stderr"] == []
    shown = [each.data for each in outputs if "data" in each]
    assert sum("image/png" in each for each in shown) == 3
    assert sum('class="laminabench"' in each.get("text/html", "") for each in shown) == 3
    assert (work / "does-it-pay.html").stat().st_size > 1e6
    assert (work / "runs" / "lamina" / "run.json").exists()
