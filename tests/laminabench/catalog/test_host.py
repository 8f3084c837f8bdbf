"""A host of one's own: times that can be read, and a cost set that has it."""

from __future__ import annotations

import msgspec
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.host import parse_host, with_host
from laminabench.util.errors import UserError


@pytest.mark.parametrize(
    ("text", "per_step_s", "per_request_s"),
    [("5ms", 5e-3, 0), ("2ms,20us", 2e-3, 20e-6), (" 900us , 0.1 ms ", 9e-4, 1e-4), ("0us", 0, 0)],
)
def test_times_as_people_write_them(text: str, per_step_s: float, per_request_s: float) -> None:
    found = parse_host(text, "--host vllm:")
    assert (found.per_step_s, found.per_request_s) == pytest.approx((per_step_s, per_request_s))
    assert found.gap_s == 0
    assert found.origin.kind == "given"
    costs = load_costs("vllm-0.14")
    assert with_host(costs, found).host == found
    assert with_host(costs, None) is costs


def test_a_host_of_one_s_own_leaves_the_set_its_gap() -> None:
    costs = load_costs("vllm-0.14")
    gapped = msgspec.structs.replace(costs, host=msgspec.structs.replace(costs.host, gap_s=1e-3))
    host = with_host(gapped, parse_host("5ms")).host
    assert (host.per_step_s, host.gap_s) == pytest.approx((5e-3, 1e-3))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *((text, "host-unreadable") for text in ("", "5", "ms", "1.2.3ms", "5ms,", "5ms,20us,1us", "-5ms")),
        *((text, "host-too-long") for text in ("61000ms", "1ms,70000ms")),
    ],
)
def test_what_is_no_host_is_refused(text: str, code: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_host(text)
    assert raised.value.code == code
