"""Over TLS: a server whose certificate is trusted, and one whose certificate is not."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from laminabench.runs.status import DONE
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError

pytestmark = pytest.mark.outside

SELF_SIGNED = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
NAMED = ("-days", "2", "-subj", "/CN=stand-in", "-addext", "subjectAltName=IP:127.0.0.1")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its own authority, for this address; the key is beside it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("install openssl, which makes the certificate, to run this")
    folder = tmp_path_factory.mktemp("tls")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    subprocess.run([openssl, *SELF_SIGNED, *NAMED, *files], check=True, capture_output=True)
    return folder / "cert.pem"


@pytest.fixture
def server(make_server: Callable[..., Any], certificate: Path) -> Iterator[Any]:
    """The stand-in of the other tests, which all that is here asks over TLS."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, certificate.with_name("key.pem"))
    with make_server(tls=tls) as made:
        yield made


def test_an_untrusted_certificate_is_refused(server: Any, observed: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="endpoint-unreachable"):
        observed()
    assert server.requested == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_certificate_that_the_user_trusts_is_taken(
    certificate: Path,
    server: Any,
    observed: Callable[..., Any],
    make_trace: Callable[..., Trace],
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    result = observed(make_trace(requests=6, output=4), mode="closed", concurrency=2, client_workers=workers)
    assert result.outcome.requests["status"].tolist() == [DONE] * 6
    assert result.outcome.chunks["tokens"].sum() == 24
    assert len(server.bodies) == 1 + 6
