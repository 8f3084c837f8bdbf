"""Make docs/accuracy.md and the packaged accuracy.json from results/validation/validation.json.

python ci/board.py           writes them
python ci/board.py --check   fails if they are not what would be written
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from laminabench.catalog.accuracy import Accuracy, Board
from laminabench.render.sheets.validate import board_sheet

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "results/validation/validation.json"
DATA, PAGE = ROOT / "laminabench/catalog/data/accuracy.json", ROOT / "docs/accuracy.md"
HEAD = """# Accuracy board

What was predicted against what was measured, by system, device, model and metric. `laminabench validate`
computes it, and `make check` fails if an error gets worse. `ci/board.py` makes this page from the
[last validation](../results/validation/validation.json), of {date};
[validation](validation.md) explains each kind.

- *tpot, ttft, latency*: means of a load of a server.
- *ttft, median*, *ttft, p99* and so on: over the requests of a load, **not predicted**. Their servers, of an
  unreleased build, are slower than others on H200 ([details](validation-servers.md#medians-and-p99)).
- *step*: the kernels of a decode step; *step, wall*: as the host sees it.
- An error is predicted / measured - 1. *p90* is the 90th percentile of absolute errors.
- On GB200 the order of systems by tokens/s of a GPU is right in {right} of {pairs} pairs ([the wrong
  ones](disaggregation.md#both-cuts)).

[The verdict](compare.md#the-verdict) of a comparison says how its errors combine.

![Loads of servers](../results/validation/serving.svg)

"""


def main() -> int:
    """Write the files, or return 1 if they are not current."""
    saved = json.loads((ROOT / SOURCE).read_text(encoding="utf-8"))
    cells = msgspec.convert(saved["board"], list[Accuracy])
    date = saved["date"]
    order = saved["disaggregation"]["order"]
    head = HEAD.format(date=date, right=order["right"], pairs=order["pairs"])
    table = board_sheet(cells)._replace(title="").to_markdown()
    made = {
        DATA: msgspec.json.format(msgspec.json.encode(Board(date=date, cells=tuple(cells)))).decode() + "\n",
        PAGE: head + "\n".join(table) + "\n",
    }
    if "--check" not in sys.argv[1:]:
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [
        str(path.relative_to(ROOT)) for path, text in made.items() if path.read_text(encoding="utf-8") != text
    ]
    if stale:
        print(f"{', '.join(stale)}: not what {SOURCE} says: run python ci/board.py", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
