"""How experts are loaded: evenly on average, or as the published tables were measured."""

from __future__ import annotations

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.catalog.layout import Layout
from laminabench.catalog.routing import (
    MOST_DRAWN,
    RoutingCurve,
    read_routing,
    sampled,
    skewed,
    uniform,
    write_routing,
)
from laminabench.catalog.step import model_step
from laminabench.util.errors import UserError


def test_uniform_loads_by_hand():
    result = uniform(128, 8, 4, [0, 1, 10_000])
    assert result.active == pytest.approx([0, 2, 32])
    assert result.pairs == pytest.approx([0, 2, 20_000])


@pytest.mark.parametrize("exponent", [1.01, 1.2])
def test_skewed_loads_add_up_on_one_rank(exponent):
    tokens = np.array([1, 4, 16, 64, 512])
    result, even = skewed(128, 8, 1, tokens, exponent), uniform(128, 8, 1, tokens)
    assert result.pairs == pytest.approx(8 * tokens)
    assert (result.active <= 128).all()
    assert (result.active[2:4] < even.active[2:4]).all()
    again = skewed(128, 8, 1, tokens, exponent)
    assert again.active.tolist() == result.active.tolist()


def test_sampled_loads_by_hand():
    """One token reaches top_k experts, of which the busiest of 4 ranks has at least a fourth."""
    assert 2 <= float(sampled(128, 8, 4, 1).active) <= 8
    assert sampled(128, 8, 1, 12).pairs == 12 * 8
    assert sampled(8, 8, 1, [1, 3]).active.tolist() == [8, 8]
    assert sampled(128, 8, 4, 5120).pairs == pytest.approx(10 * sampled(128, 8, 4, 512).pairs)


def test_sampled_loads_activate_fewer_experts_on_a_busier_rank():
    rows = np.array([12, 84])
    few, balanced = sampled(128, 8, 4, rows), uniform(128, 8, 4, rows)
    assert (few.active < balanced.active).all()
    assert (few.pairs > 1.2 * balanced.pairs).all()
    assert (np.diff(few.active) > 0).all()


def test_sampled_loads_rise_with_every_token():
    """A step of 3 requests on 16 ranks had more active experts than one of 4, by the noise of few draws."""
    rows = np.arange(16, 257, 16)
    result = sampled(128, 8, 16, rows)
    assert (np.diff(result.active) >= 0).all()
    assert (np.diff(result.pairs) > 0).all()
    # Means of a thousand layers drawn with another seed.
    assert result.active[[1, 2, 3]] == pytest.approx([5.68, 6.32, 6.76], rel=0.03)


def test_of_several_ranks_the_busiest_counts():
    result = skewed(128, 8, 8, [256], 1.2)
    assert float(result.pairs[0]) > 1.2 * 256
    assert 1 <= float(result.active[0]) <= 16


def test_loads_of_a_great_many_tokens_are_in_proportion():
    """Without a bound, 10^6 tokens take a minute, and 10^15 a lifetime."""
    most, beyond = skewed(8, 2, 4, [MOST_DRAWN, 10**15], 1.2).pairs
    assert beyond == pytest.approx(most * (10**15 / MOST_DRAWN))


def test_no_expert_has_a_token_twice():
    # Of two experts that each token takes both of, each has all tokens.
    result = skewed(2, 2, 2, [32], 1.2)
    assert (float(result.active[0]), float(result.pairs[0])) == (1, 32)


def test_a_measured_curve_by_hand(tmp_path):
    path = tmp_path / "routing.csv"
    path.write_text("tokens,active,busiest\n10,0.25,1.5\n1000,0.75,1.1\n")
    result = read_routing(path).load(128, 8, 4, [1, 10, 100, 100_000])
    # Halfway on a logarithmic scale; a token has no more experts than pairs.
    assert result.active == pytest.approx([3, 8, 16, 24])
    assert result.pairs == pytest.approx([3, 30, 260, 220_000])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tokens,active\n1,1\n",
        "tokens,active,busiest\n",
        "tokens,active,busiest\n1,x,1\n",
        "tokens,active,busiest\n1,0.5,0.5\n",
        "tokens,active,busiest\n2,0.5,1\n1,0.5,1\n",
        "tokens,active,busiest\n1,nan,1\n",
        "tokens,active,busiest\n1,0.5,1e308\n",
        "ranks,tokens,active,busiest\n0,1,1,1\n",
        "ranks,tokens,active,busiest\n1,2,1,1\n2,2,1,1\n1,2,1,1\n",
    ],
)
def test_a_bad_curve_is_refused(text, tmp_path):
    path = tmp_path / "routing.csv"
    path.write_text(text)
    with pytest.raises(UserError) as failed:
        read_routing(path)
    assert failed.value.code == "routing-bad-file"


def test_a_step_takes_the_curve():
    costs, gb200, qwen = load_costs("vllm-0.24"), device("gb200"), model("qwen3-235b-a22b")
    layout = Layout(1, dp=4, ep=4, low_latency=True)
    few = RoutingCurve((12.0,), (0.284,), (1.0,))
    assert (
        model_step(costs, qwen, gb200, layout, 12, few).experts_s
        < 0.9 * model_step(costs, qwen, gb200, layout, 12, "uniform").experts_s
    )


def test_a_curve_by_ranks_is_that_of_the_layout(tmp_path):
    path = tmp_path / "routing.csv"
    path.write_text("# of a model\nranks,tokens,active,busiest\n1,10,0.5,1\n4,10,0.25,1.5\n")
    curve = read_routing(path)
    assert curve.load(128, 8, 4, 10).pairs == pytest.approx(30)
    assert curve.load(128, 8, 1, 10).active == pytest.approx(64)
    with pytest.raises(UserError) as failed:
        curve.load(128, 8, 8, 10)
    assert failed.value.code == "routing-no-ranks"
    write_routing(curve, path, ["again"])
    again = read_routing(path)
    assert again[:4] == curve[:4]
    assert (curve.source, again.source) == ("routing.csv; of a model", "routing.csv; again")
