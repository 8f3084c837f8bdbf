"""The line that says what a modelled answer includes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import parse_deployment, parse_workers
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import load_devices
from laminabench.catalog.network import load_networks
from laminabench.systems.includes import Includes, together
from laminabench.systems.modelled.includes import accuracy_of, includes_of
from laminabench.systems.modelled.setup import Setup


def setup(deployment: str, costs: str = "vllm-0.24", name: str = "llama3-70b") -> Setup:
    return Setup(model(name), parse_deployment(deployment), load_costs(costs), load_networks()["fhbn"])


def test_prompts_are_elsewhere_with_decoding_or_in_a_pool() -> None:
    own = setup("4xh100")
    colocated = replace(own, prompt_budget=2048)
    pool = replace(own.deployment, prefill=parse_workers("2xh200", load_devices()))
    texts = [
        includes_of([("vllm", each)]).prompts
        for each in (own, colocated, replace(colocated, deployment=pool))
    ]
    assert texts == [
        ("prompts computed elsewhere (--prefill off)",),
        ("prompts computed by the decoding devices",),
        ("prompts computed by a pool of 2xh200",),
    ]


def test_a_kernel_of_h20_is_named_and_its_products_are_scaled() -> None:
    split = includes_of([("lamina", setup("2xh100+4xh20"))])
    assert any(each.startswith("decode attention of flashinfer on h20") for each in split.kernels)
    assert not any("matrix products" in each for each in split.assumed)
    whole = includes_of([("vllm", setup("8xh20"))])
    assert "matrix products on h20 scaled from another device" in whole.assumed
    lent = includes_of([("vllm", setup("8xh200", "vllm-0.14"))])
    assert "matrix products on h200 scaled from h100" in lent.assumed


def test_an_assumed_host_and_price_are_named() -> None:
    assumed = includes_of([("lamina", setup("2xh100+4xh20", "vidur-2024"))]).assumed
    assert "host of lamina 2 ms a step and 20 us a request" in assumed
    boards = includes_of([("h2m2", setup("1xh2m2"))])
    assert "price of h2m2" in boards.assumed
    assert boards.error == ("h2m2 was never compared with hardware",)


def test_it_is_a_few_lines_and_several_are_one() -> None:
    one, other = (includes_of([(name, setup("4xh100"))]) for name in ("vllm", "lamina-v1"))
    both = together([one, other, one])
    assert both.prompts == one.prompts
    assert both.error == (*one.error, "lamina-v1 was never compared with hardware")
    assert str(both).splitlines() == [
        "Includes: prompts computed elsewhere (--prefill off); kernels of vllm-0.24",
        *(f"Known error: {each}" for each in both.error),
        "Not measured: any load on h100",
    ]
    assert str(together([])) == ""
    assert Includes(("a",), (), (), ()).describe() == {
        "prompts": ["a"],
        "kernels": [],
        "assumed": [],
        "error": [],
        "unmeasured": [],
    }


@pytest.mark.parametrize("costs", ["roofline", "vllm-0.14", "v1-table3"])
def test_every_set_has_a_line(costs: str) -> None:
    assert str(includes_of([("vllm", setup("4xa100-40g" if "v1" in costs else "4xh100", costs))]))


def test_an_error_of_fewer_than_three_loads_is_not_known() -> None:
    known = accuracy_of("afd", setup("4xh100+4xh20"))
    assert "afd: one measured load (qwen3-235b-a22b on gb200), step off by 4.2 %" in known.sentences
    assert known.error is None
    assert accuracy_of("lamina", setup("4xh100+4xh20")).error is not None
