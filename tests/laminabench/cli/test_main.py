"""How a run of `laminabench` ends, from a shell's point of view."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from laminabench.cli.ending import end_of
from laminabench.util.errors import CheckFailedError


def laminabench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "laminabench", *arguments],
        capture_output=True,
        text=True,
        env=surroundings(environment),
        check=False,
    )


def surroundings(changes: dict[str, str]) -> dict[str, str]:
    """This process's environment without what changes how a command prints."""
    ours = {"FORCE_COLOR", "NO_COLOR", "COLUMNS", "LAMINABENCH_DEBUG"}
    return {name: value for name, value in os.environ.items() if name not in ours} | changes


def in_a_shell(line: str, **environment: str) -> tuple[int, str, str]:
    """`laminabench` in the line is the command line; the exit code is the line's."""
    line = re.sub(r"\blaminabench\b", f"{sys.executable} -m laminabench", line)
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=surroundings(environment), check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """An environment without downloads or trace files."""
    return {"LAMINABENCH_HOME": str(tmp_path), "LAMINABENCH_TRACES": ""}


def test_help_shows_sections_and_examples(shell: Any) -> None:
    code, out, _ = shell("--help")
    assert code == 0
    for text in ("Workloads:", "traces", "Examples:", "laminabench traces info azure-conv"):
        assert text in out


def test_without_a_command_each_question_has_a_command_that_exists(shell: Any) -> None:
    from laminabench.cli.main import QUESTIONS

    code, out, _ = shell("")
    assert code == 0
    for command in QUESTIONS.values():
        assert command in out
        assert shell(command.split()[1], "--help")[0] == 0


def test_processes_take_no_modules_from_the_folder_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from laminabench.cli.main import run

    (tmp_path / "runpy.py").write_text("raise SystemExit(7)")  # which multiprocessing imports
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setattr(sys, "argv", ["laminabench", "--version"])
    with pytest.raises(SystemExit):
        run()
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from laminabench.cli.main import run\n"
        "try: run(['--help'])\n"
        "except SystemExit: print(*sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    # The help speaks of lamina, which must not be imported.
    loaded = printed.splitlines()[-1].split()
    assert "click" in loaded
    assert not {"numpy", "pandas", "pyarrow", "rich", "matplotlib", "torch", "lamina"} & set(loaded)


def test_a_modelled_replay_loads_nothing_heavy(tmp_path: Path) -> None:
    arguments = ["replay", "--trace", "profile:azure-conv", "--num-requests", "50", "--system", "lamina"]
    program = f"""
import sys
from laminabench.cli.main import run
try:
    run({arguments!r})
except SystemExit as end:
    assert not end.code
heavy = "pandas scipy matplotlib torch ray lamina rich pyarrow.compute urllib.request".split()
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert len(list(tmp_path.glob("runs/*/*.parquet"))) == 2


def test_version_names_the_commit(shell: Any) -> None:
    code, out, _ = shell("--version")
    assert code == 0
    assert out.startswith("laminabench 0.")
    if (Path(__file__).parents[3] / ".git").exists() and shutil.which("git"):
        assert "(commit " in out


def test_a_mistyped_command_gets_the_nearest(refused: Any) -> None:
    refused("did you mean traces?", "trace")


def test_a_users_mistake_is_one_sentence_and_exit_2(nowhere: dict[str, str]) -> None:
    result = laminabench("traces", "info", "azur-conv", **nowhere)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        "laminabench: error: no trace or file is called 'azur-conv'; "
        "did you mean azure-conv or azure-2024-conv or azure-code?\n"
    )
    assert "Traceback" in laminabench("traces", "info", "azur-conv", LAMINABENCH_DEBUG="1", **nowhere).stderr


def test_json_is_one_object_and_notes_are_elsewhere(shell: Any) -> None:
    code, out, err = shell("traces info azure-code --offline --json")
    assert code == 0
    facts = json.loads(out)
    assert facts["source"] == "profile"
    assert facts["requests"] == 8819
    assert "profile" in err
    assert shell("traces info azure-code --offline --json -q")[2] == ""


def test_no_colour_in_a_pipe(nowhere: dict[str, str]) -> None:
    assert "\x1b" not in laminabench("traces", "list", FORCE_COLOR="1", **nowhere).stdout


def test_a_reader_that_leaves_is_not_an_error(nowhere: dict[str, str]) -> None:
    ended = in_a_shell("laminabench traces list | true; exit ${PIPESTATUS[0]}", **nowhere)
    assert ended == (0, "", "")


def test_a_full_disk_is_one_sentence(nowhere: dict[str, str]) -> None:
    ended = in_a_shell("laminabench traces list >/dev/full", **nowhere)
    assert ended == (2, "", "laminabench: error: No space left on device\n")


@pytest.mark.parametrize(("name", "code"), [("azure-code", 0), ("azure-kode", 2)])
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_closed_streams_keep_the_exit_code(
    name: str, code: int, closed: str, nowhere: dict[str, str]
) -> None:
    ended, out, err = in_a_shell(f"laminabench traces info {name} --offline {closed}", **nowhere)
    assert ended == code
    assert bool(out) == (code == 0 and closed == "2>&-")
    assert not err


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libarrow.so.2600: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        MemoryError(),
    ],
    ids=str,
)
def test_too_little_memory_is_reported_however_it_shows(error: Exception) -> None:
    assert (end_of(error).exit_code, end_of(error).error_code) == (2, "out-of-memory")


def test_other_errors_of_the_same_types_are_bugs() -> None:
    assert {end_of(error).exit_code for error in (ImportError("no name x"), RuntimeError("x"))} == {70}


def test_names_that_are_not_utf8_are_printed(tmp_path: Path, nowhere: dict[str, str], shell: Any) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.csv")
    path.write_text("prompt_tokens,output_tokens\n1,2\n")
    result = laminabench("traces", "info", str(path), **nowhere)
    assert (result.returncode, result.stderr.count("\n")) == (0, 1)
    assert r"caf\udce9" in result.stdout
    for target in ("a.parquet", "a.toml"):
        verb = "export" if target.endswith("parquet") else "fit"
        assert shell("traces", verb, str(path), "-o", str(tmp_path / target))[0] == 0
    assert shell("traces", "info", str(tmp_path / "a.parquet"))[0] == 0


def test_sigterm_cleans_up_like_an_interrupt(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from laminabench.util.atomic import replacing
from laminabench.cli import main
def half_way(*_, **__):
    with replacing(Path({str(tmp_path / "half.csv")!r})) as temporary:
        temporary.write_text("ha")
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
main.main.main = half_way
main.run([])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (143, "laminabench: terminated\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_it_ends_change_no_exit_code(number: signal.Signals) -> None:
    code = f"""
import atexit, os, signal
from laminabench.cli import main
def again(*_):
    os.kill(os.getpid(), {int(number)})
class Late:
    __del__ = again
def heard_once(*_, **__):
    atexit.register(again)
    again()
    signal.pause()
late, main.main.main = Late(), heard_once
main.run([])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    message = "interrupted" if number == signal.SIGINT else "terminated"
    assert (result.returncode, result.stderr) == (128 + number, f"laminabench: {message}\n")


def test_every_command_that_reports_takes_json_quiet_and_verbose() -> None:
    from laminabench.cli.main import main

    def leaves(command: click.Command, name: str) -> dict[str, click.Command]:
        if not isinstance(command, click.Group):
            return {name: command}
        context = click.Context(command)
        result: dict[str, click.Command] = {}
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            result |= leaves(inner, f"{name} {each}".strip())
        return result

    without = {
        name
        for name, command in leaves(main, "").items()
        if not {"--json", "-q", "-v"} <= {option for each in command.params for option in each.opts}
    }
    assert without == {"completion"}


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (CheckFailedError("trace-checksum", "sums differ"), 1, "laminabench: check failed: sums differ\n"),
        (KeyboardInterrupt(), 130, "laminabench: interrupted\n"),
        (PermissionError(13, "Permission denied", "/x"), 2, "laminabench: error: /x: Permission denied\n"),
        (OSError(28, "No space left on device"), 2, "laminabench: error: No space left on device\n"),
        (
            MemoryError(),
            2,
            "laminabench: error: this needs more memory than there is; ask for fewer or smaller requests\n",
        ),
        (ValueError("oops"), 70, "internal error: ValueError: oops"),
        (
            ModuleNotFoundError("no", name="matplotlib.figure"),
            2,
            "this needs matplotlib.figure, which is not installed: pip install 'laminabench[figures]'\n",
        ),
        (ModuleNotFoundError("no", name="lamina._native"), 2, "whose native part is not built"),
        (ModuleNotFoundError("no", name="laminabench.nothing"), 70, "internal error: ModuleNotFoundError"),
    ],
)
def test_every_way_to_end(
    raised: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from laminabench.cli import main

    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(main.main, "main", fail)
    monkeypatch.delenv("LAMINABENCH_DEBUG", raising=False)
    with pytest.raises(SystemExit) as exit_:
        main.run([])
    assert exit_.value.code == code
    assert message in capsys.readouterr().err


def test_completion_scripts(printed: Any) -> None:
    for name in ("bash", "zsh", "fish"):
        assert "_LAMINABENCH_COMPLETE" in printed("completion", name)


def test_completion_knows_the_commands() -> None:
    words = {"COMP_WORDS": "laminabench tra", "COMP_CWORD": "1", "_LAMINABENCH_COMPLETE": "bash_complete"}
    assert "traces" in laminabench(**words).stdout


@pytest.mark.parametrize(
    ("raised", "ending", "printed"),
    [("KeyboardInterrupt", -signal.SIGINT, ""), ("ValueError", 1, "ValueError")],
)
def test_ctrl_c_while_the_command_is_imported_prints_no_traceback(
    raised: str, ending: int, printed: str
) -> None:
    code = f"import laminabench.cli; raise {raised}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.strip().rpartition("\n")[2]) == (ending, printed)
