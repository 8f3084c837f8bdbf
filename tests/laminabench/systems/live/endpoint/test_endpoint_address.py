from __future__ import annotations

import pytest

from laminabench.errors import UserError
from laminabench.systems.live.endpoint.setup import parse_url


@pytest.mark.parametrize(
    ("text", "shown", "path"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", ""),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000", ""),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", ""),
        ("https://example.test/gate/v1", "https://example.test/gate", "/gate"),
        ("http://[::1]:81/", "http://[::1]:81", ""),
        (" http://localhost ", "http://localhost", ""),
    ],
)
def test_a_url_is_read_with_or_without_the_version_of_the_api(text: str, shown: str, path: str) -> None:
    address = parse_url(text)
    assert (str(address), address.path) == (shown, path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file:///etc/passwd", "http and https only"),
        ("127.0.0.1:8000", "http and https only"),
        ("http://", "no host"),
        ("http:///v1", "no host"),
        ("http://h:port", "Port could not"),
        ("http://h:99999", "Port out of range"),
        ("http://h:0", "port 0"),
        ("http://h/?key=secret", "leave out what follows the path"),
        ("http://h/a b", "characters"),
        ("http://[::1", "--url"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_with_a_sentence(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        parse_url(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["http://me:hidden@h", "ftp://me:hidden@h", "http://me:hidden@h:x"])
def test_a_password_in_a_url_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_url(text)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "loopback"), [("http://127.9.9.9", True), ("http://[::1]", True), ("http://10.0.0.1", False)]
)
def test_loopback_is_known_by_its_address(text: str, loopback: bool) -> None:
    assert parse_url(text).loopback is loopback
