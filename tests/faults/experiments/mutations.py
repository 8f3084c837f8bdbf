"""Malformed HTTP requests: bytes flipped, parts lost, doubled, or special tokens inserted."""

from __future__ import annotations

import random
from collections.abc import Sequence

TOKENS: Sequence[bytes] = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\0", b"\xff\xfe", b"%00", b'"', b"\\", b"{", b"[", b"]", b"}", b","),
    *(b"null", b"true", b"-1", b"1e999", b"99999999999999999999", b"NaN", b'"\\ud800"', b'{"a":1}', b"[[1]]"),
    *(b"transfer-encoding: chunked\r\n", b"content-length: 5\r\n", b"content-length: -1\r\n", b"host: a\r\n"),
    *(b"expect: 100-continue\r\n", b"upgrade: websocket\r\nconnection: upgrade\r\n", b"origin: null\r\n"),
    *(b"connection: close\r\n", b"HTTP/1.0", b"HTTP/2.0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"[" * 3000),
    *(
        b'"stop":["a"],',
        b'"n":64,',
        b'"logprobs":20,',
        b'"max_tokens":100000,',
        b'"stream":false,',
        b"0\r\n\r\n",
    ),
)


def mutated(request: bytes, rng: random.Random) -> tuple[bytes, bool]:
    """Return a request with one or a few changes, and whether only the body was, at the same length."""
    head, _, body = request.partition(b"\r\n\r\n")
    place = rng.random()
    if place < 0.6:
        body = _changed(body, rng)
        head = head[: head.rindex(b":")] + b": %d" % len(body)
    elif place < 0.9:
        head = _changed(head, rng)
    request = head + b"\r\n\r\n" + body
    return (request if place < 0.9 else _changed(request, rng)), place < 0.6


def _changed(data: bytes, rng: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(result) + 1)
        to = min(len(result), at + rng.choice((1, 1, 4, 30)))
        match rng.randrange(5):
            case 0:
                if at < len(result):
                    result[at] ^= 1 << rng.randrange(8)
            case 1:
                del result[at:to]
            case 2:
                result[at:at] = result[at:to] * rng.choice((1, 2, 100))
            case 3:
                result[at:to] = rng.randbytes(to - at)
            case _:
                result[at:at] = rng.choice(TOKENS)
    return bytes(result)
