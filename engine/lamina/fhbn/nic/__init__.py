"""The RDMA devices of this machine, and what keeps the engines from using them."""

from __future__ import annotations

from lamina.fhbn.nic.diagnosis import Diagnosis, diagnosed
from lamina.fhbn.nic.findings import Finding
from lamina.fhbn.nic.needs import Readiness

__all__ = ["Diagnosis", "Finding", "Readiness", "diagnosed"]
