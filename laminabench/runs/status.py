"""The final status of each request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laminabench.sim.outcome import Outcome

# The code of a status is its place here.
STATUSES = ("done", "rejected", "unfinished", "failed")
DONE, REJECTED, UNFINISHED, FAILED = range(4)


def statuses(outcome: Outcome) -> NDArray[np.int8]:
    """Return a code for each request: from a `status` column, else from how far it got.

    A simulated run continues until every request is done or was rejected on arrival. In a run that was
    stopped, rejected and waiting requests look the same, so its author adds the column.
    """
    given = outcome.requests.get("status")
    if given is not None:
        return given.astype(np.int8, copy=False)
    codes = np.full(len(outcome.requests["finished_s"]), UNFINISHED, np.int8)
    codes[outcome.requests["first_iteration"] < 0] = REJECTED
    codes[np.isfinite(outcome.requests["finished_s"])] = DONE
    return codes
