"""A replay against a server: a request settled, the trace offered over HTTP, and what a client saw of it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.hardware import priced_devices
from laminabench.requests.replay import ReplayRequest
from laminabench.systems.base import Past, Prepared, Replayed, Workload, defaulted, settled, summary_of
from laminabench.systems.live.endpoint import setup as defaults
from laminabench.systems.live.endpoint.replaying import Result, replay
from laminabench.systems.live.endpoint.setup import Behind, EndpointSetup, Served, fields_of, parse_url
from laminabench.traces.table import Trace
from laminabench.util.errors import CheckFailedError, CodedError, UserError
from laminabench.util.progress import Listener


@dataclass(frozen=True, slots=True)
class PreparedEndpoint(Prepared):
    """A replay against a server that is ready to start."""

    setup: EndpointSetup

    def replay(self, trace: Trace, past: Past, listener: Listener) -> Replayed:
        """Offer the trace to the server, here and now."""
        del past
        workload = Workload.of(self.request)
        offered = workload.offered(trace)
        served = replay(trace, self.setup, offered, seed=self.request.seed, listener=listener)
        for sentence in served.notes:
            listener.note(sentence)
        summary = summary_of(served.outcome, trace, workload, self.setup.deployment)
        return Replayed(
            served.outcome,
            served.facts,
            summary,
            partial=served.partial,
            interrupted=served.interrupted,
            problem=_problem(served, summary.requests.completed),
        )


def prepare(request: ReplayRequest, listener: Listener) -> PreparedEndpoint:
    """Settle the request; raise a UserError for what is missing or contradictory."""
    url, name = _required(request)
    address, fields = parse_url(url), fields_of(request.header, request.api_key_file)
    if fields and not address.secure and not address.loopback:
        listener.note(f"{address} is not encrypted: the key and the headers can be read on the way")
    devices = priced_devices(request.price, request.price_basis, request.power)
    hardware = parse_deployment(request.deployment, devices) if request.deployment else None
    request = defaulted(
        request,
        api="completions",
        timeout=defaults.TIMEOUT_S,
        first_byte_timeout=defaults.FIRST_BYTE_TIMEOUT_S,
        retries=defaults.RETRIES,
        warm_up=defaults.WARM_UP,
        client_workers=1,
    )
    behind, model = Behind(address, hardware), Served(name)
    setup = settled(EndpointSetup, request, deployment=behind, model=model, fields=fields)
    return PreparedEndpoint(msgspec.structs.replace(request, url=str(address)), setup)


def _required(request: ReplayRequest) -> tuple[str, str]:
    """Return the URL and the model's name; raise a UserError where choices do not fit together."""
    if not request.url:
        raise UserError("replay-flag-needed", "--system openai needs --url http://127.0.0.1:8000")
    if not request.model:
        raise UserError("replay-flag-needed", "--system openai needs --model, as the server calls it")
    if request.connections and request.mode != "saturate":
        why = {
            "open": "an open replay has as many connections as its arrivals need",
            "closed": "--concurrency says how many are in flight",
        }[request.mode]
        raise UserError("replay-flag-unused", f"--connections is for --mode saturate: {why}")
    if request.deployment is None and (request.price or request.power or request.price_basis):
        flag = "--power" if request.power else "--price"
        raise UserError(
            "replay-flag-needed",
            f"{flag}: give --deployment too, such as 4xh100, to say what hardware is behind the URL",
        )
    return request.url, request.model


def _problem(served: Result, completed: int) -> CodedError | None:
    """Return why the replay is not complete, or None if it is."""
    if served.partial:
        return CheckFailedError("replay-ended-early", f"the replay ended early: {served.partial.why}")
    if completed:
        return None
    why, message = next(iter(served.facts["first_errors"].items()), ("the reason is not known", ""))
    return CheckFailedError(
        "replay-none-completed", f"no request was completed: {why}{f' ({message})' if message else ''}"
    )
