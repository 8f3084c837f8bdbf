"""What of pip's configuration goes into the root of ci/bare.sh, and what it says where there can be none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CI = Path(__file__).resolve().parents[2] / "ci"


def test_pips_configuration_and_the_paths_it_names(tmp_path: Path) -> None:
    for name in ("wheels", "index/simple", "out"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ca.crt").touch()
    shown = [
        f":env:.find-links={str(tmp_path / 'wheels')!r}",
        ":env:.default-timeout='180'",
        "global.find-links='/nowhere'",
        f"global.cert={str(tmp_path / 'ca.crt')!r}",
        f"global.extra-index-url={f'file://{tmp_path}/index/simple https://index.example/simple'!r}",
        "global.cache-dir='/home/somebody/cache'",
        "install.no-binary='one\\ntwo'",
    ]
    subprocess.run(
        [sys.executable, CI / "bare_pip.py", tmp_path], input="\n".join(shown), text=True, check=True
    )
    # The environment goes before files; where pip writes is the newcomer's own affair.
    assert (tmp_path / "pip.conf").read_text().splitlines() == [
        "[global]",
        f"find-links = {tmp_path}/wheels",
        f"cert = {tmp_path}/ca.crt",
        f"extra-index-url = file://{tmp_path}/index/simple https://index.example/simple",
        "default-timeout = 180",
        "[install]",
        "no-binary = one",
        "    two",
    ]
    named = [str(tmp_path / name) for name in ("ca.crt", "index", "wheels")]
    assert (tmp_path / "paths").read_text().split() == named


def test_without_root_it_is_skipped_and_fails_in_ci(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    for ci, code in (("", 77), ("true", 1)):
        # Nobody else's programs, sudo among them.
        for program in ("dirname", "uname", "sh"):
            (tmp_path / program).unlink(missing_ok=True)
            (tmp_path / program).symlink_to(f"/usr/bin/{program}")
        done = subprocess.run(
            ["sh", CI / "bare.sh"],
            env={"PATH": str(tmp_path), "HOME": str(tmp_path), "CI": ci},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert "only root can make a root of its own" in (done.stderr if ci else done.stdout)
        assert not (tmp_path / ".cache").exists()
