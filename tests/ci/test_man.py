"""The manual page: everything that the commands take is in it, and it is good roff."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from laminabench.cli.main import main

GENERATOR = Path(__file__).resolve().parents[2] / "ci" / "man.py"


@pytest.fixture(scope="module")
def page() -> str:
    spec = importlib.util.spec_from_file_location("man", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.page()
    assert isinstance(made, str)
    return made


def test_commands_and_their_options_are_in_it(page: str) -> None:
    context = click.Context(main, info_name="laminabench")
    sections = dict(
        re.findall(r'^\.SH "LAMINABENCH ([^"]+)"$(.*?)(?=^\.SH )', page, re.MULTILINE | re.DOTALL)
    )
    assert list(sections) == [name.upper() for name in main.list_commands(context)]
    for option in (r"\-\-system", r"\-\-deployment", r"\-\-no\-overlap", r"\-\-again"):
        assert rf"\fB{option}\fR" in sections["REPLAY"]
    assert ".SS laminabench traces import" in sections["TRACES"]


def test_text_is_never_a_roff_request(page: str) -> None:
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests == {'.\\"', ".TH", ".SH", ".SS", ".PP", ".RS", ".RE", ".nf", ".fi", ".IP"}


@pytest.mark.outside
@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff here")
def test_groff_has_nothing_to_warn_of(page: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-b", "-Tutf8", "-K", "utf8"],
        input=page,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "laminabench" in done.stdout
