"""A host of one's own: times that can be read, and a cost set that has it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from laminabench.catalog.cost_file import load_costs, write_costs
from laminabench.catalog.find_model import modelled
from laminabench.catalog.host import parse_host, schedules_ahead, with_host
from laminabench.catalog.server_host import ServerHost
from laminabench.util.errors import UserError

BAD_KEYS = ("x=3ms", "async=maybe", "out=5", "factor=0", "factor=nan", "vllm-0.18,x", "in=1ms=2ms")


@pytest.mark.parametrize(
    ("text", "per_step_s", "per_request_s"),
    [("5ms", 5e-3, 0), ("2ms,20us", 2e-3, 20e-6), (" 900us , 0.1 ms ", 9e-4, 1e-4), ("0us", 0, 0)],
)
def test_times_as_people_write_them(text: str, per_step_s: float, per_request_s: float) -> None:
    result = parse_host(text, "--host vllm:")
    assert (result.per_step_s, result.per_request_s) == pytest.approx((per_step_s, per_request_s))
    assert result.gap_s == 0
    assert result.origin.kind == "given"
    costs = load_costs("vllm-0.14")
    assert with_host(costs, result).host == result
    assert with_host(costs, None) is costs


def test_a_host_of_one_s_own_leaves_the_set_its_gap() -> None:
    costs = load_costs("vllm-0.14")
    gapped = msgspec.structs.replace(costs, host=msgspec.structs.replace(costs.host, gap_s=1e-3))
    host = with_host(gapped, parse_host("5ms")).host
    assert (host.per_step_s, host.gap_s) == pytest.approx((5e-3, 1e-3))


def test_a_server_s_host_has_a_front_end_and_launches_that_follow_the_machine() -> None:
    host = parse_host("vllm-0.18,factor=0.5")
    assert isinstance(host, ServerHost)
    assert (host.request_in_s, host.request_serial_s, host.out_s) == pytest.approx((2.75e-3, 2e-3, 2.85e-3))
    launches = [host.launch_s(modelled(name)) for name in ("llama3-70b", "gpt-oss-120b", "deepseek-v3")]
    assert launches == pytest.approx([3e-4, 7e-4, 9.5e-4])
    assert schedules_ahead(host, False)
    assert "fitted to TTFT" in host.origin.source
    old = parse_host("vllm-0.12")
    assert (old.per_step_s, old.per_request_s) == pytest.approx((1e-3, 60e-6))
    assert not schedules_ahead(old, True)


def test_keys_say_what_a_host_takes_and_when_it_schedules() -> None:
    host = parse_host("2ms,in=1ms,serial=2ms,out=3ms,launch=40us,gap=5us,async=off")
    assert isinstance(host, ServerHost)
    results = (
        host.per_step_s,
        host.request_in_s,
        host.request_serial_s,
        host.out_s,
        host.launch_latent_s,
        host.gap_s,
    )
    assert results == pytest.approx((2e-3, 1e-3, 2e-3, 3e-3, 40e-6, 5e-6))
    assert not schedules_ahead(host, True)
    assert schedules_ahead(parse_host("2ms"), True)


def test_a_set_s_file_may_have_a_server_s_host(tmp_path: Path) -> None:
    costs = with_host(load_costs("vllm-0.14"), parse_host("2ms,out=3ms"))
    write_costs(costs, tmp_path / "own.toml")
    result = load_costs(str(tmp_path / "own.toml")).host
    assert isinstance(result, ServerHost)
    assert (result.per_step_s, result.out_s) == pytest.approx((2e-3, 3e-3))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *(
            (text, "host-unreadable")
            for text in ("", "5", "ms", "1.2.3ms", "5ms,", "5ms,20us,1us", "-5ms", *BAD_KEYS)
        ),
        *((text, "host-too-long") for text in ("61000ms", "1ms,70000ms")),
    ],
)
def test_what_is_no_host_is_refused(text: str, code: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_host(text)
    assert raised.value.code == code
