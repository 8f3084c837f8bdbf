"""What became of each request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laminabench.sim.outcome import Outcome

# The code of a status is its place here.
STATUSES = ("done", "rejected", "unfinished", "failed")
DONE, REJECTED, UNFINISHED, FAILED = range(4)


def statuses(outcome: Outcome) -> NDArray[np.int8]:
    """A code for each request: from a `status` column where there is one, else from how far it came.

    A simulated run goes on until every request is done or was rejected when it came. A run that was stopped
    cannot tell a rejected request from one that still waited, so its maker adds the column.
    """
    given = outcome.requests.get("status")
    if given is not None:
        return given.astype(np.int8, copy=False)
    codes = np.full(len(outcome.requests["finished_s"]), UNFINISHED, np.int8)
    codes[outcome.requests["first_iteration"] < 0] = REJECTED
    codes[np.isfinite(outcome.requests["finished_s"])] = DONE
    return codes
