"""vLLM as a contender that does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from laminabench.bench.engine_contenders import Load, VllmContender
from laminabench.errors import UserError


def test_a_vllm_that_does_not_start_is_told_of_and_has_ended(tmp_path: Path) -> None:
    python = tmp_path / "python"
    # It ends when nobody has orders for it any more, and not before.
    python.write_text(f"""#!/bin/sh
echo '{{"error": "there is no room"}}'
cat >/dev/null
touch {tmp_path}/ended
""")
    python.chmod(0o755)
    with pytest.raises(UserError, match="bench-vllm-failed"):
        VllmContender(Load(batch=1, prompt=1, output=1), python)
    assert (tmp_path / "ended").exists()
