"""Values as --vary says them."""

from __future__ import annotations

import pytest

from laminabench.errors import UserError
from laminabench.sweeps.values import parse_vary


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("batches=1,2,3", "batches", ["1", "2", "3"]),
        ("attention-workers=2..8", "attention-workers", ["2", "3", "4", "5", "6", "7", "8"]),
        ("seed=2..16:7,100", "seed", ["2", "9", "16", "100"]),
        ("--batches = 1, 2", "batches", ["1", "2"]),
        ('network=fhbn,"40us,42GB/s",60us\\,10GB/s', "network", ["fhbn", "40us,42GB/s", "60us,10GB/s"]),
        ("trace='a b.csv',\"2..8\"", "trace", ["a b.csv", "2..8"]),
        ("price=h100=2,h100=3.5", "price", ["h100=2", "h100=3.5"]),
        ("window=0:600,600:1200", "window", ["0:600", "600:1200"]),
        ("trace=../a.csv,a..b", "trace", ["../a.csv", "a..b"]),
    ],
)
def test_read(text: str, name: str, values: list[str]) -> None:
    found = parse_vary(text)
    assert (found.name, list(found.values), found.said) == (name, values, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batches", "write FLAG=VALUES"),
        ("=1,2", "write FLAG=VALUES"),
        ("batches=", "write FLAG=VALUES"),
        ("batches=1,,2", "a value is missing"),
        ("batches=1,", "a value is missing"),
        ("batches=8..2", "8..2 is no range"),
        ("batches=2..8:0", "2..8:0 is no range"),
        ("seed=1..999999999999", "more than 10,000 values"),
        ("seed=1..9000,10000..19000", "more than 10,000 values"),
        ('network="40us,1GB/s', 'the quotation that begins with " does not end'),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        parse_vary(text)
    assert said in str(error.value)
    assert repr(text) in str(error.value)
