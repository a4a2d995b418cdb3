"""The device's clock against the server's, without a registered key.

Devices sign the time of each call, and Flower refuses a time more than 5 s ahead of its own or 305 s behind it before
it checks the key. So a call without effect, signed with any key, shows whether a time is accepted; the limit of the
accepted times gives the difference of the clocks.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

from sofed_flwr.fleet.doctor.finding import Finding
from sofed_flwr.fleet.provision.certificates import new_signature

AHEAD, BEHIND = 5.0, 305.0
SECONDS = 10.0
REFUSED = "Invalid timestamp"
ANSWERS = {REFUSED, "Invalid node ID"}
"""Other answers do not tell."""


def check_against_server(
    address: str, authority: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Finding:
    """How far this clock is ahead of the server's, to half a second, unless it is beyond the limits."""
    limits = f"accepted: {BEHIND:g} s behind to {AHEAD:g} s ahead"
    remedy = "sudo timedatectl set-ntp true on both; without internet, take the time from the server by NTP"
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(authority.read_bytes())) as channel:
        call = channel.unary_unary("/flwr.proto.Fleet/GetRun")

        def accepted(shift: float) -> bool:
            return _ask(call, (now() + timedelta(seconds=shift)).isoformat()) != REFUSED

        try:
            if not accepted(0.0):
                return Finding("clock", "fail", f"the server refuses {now():%F %T} UTC; {limits}", remedy)
            ahead = AHEAD - _edge(accepted, 0.0, AHEAD + BEHIND)
        except (grpc.RpcError, LookupError) as error:
            return Finding("clock", "unknown", f"the server does not say ({error})")
    seen = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the server's; {limits}"
    near = ahead > AHEAD / 2 or ahead < -BEHIND / 2
    return Finding("clock", "warn" if near else "ok", seen, remedy if near else "")


def _edge(accepted: Callable[[float], bool], good: float, bad: float) -> float:
    while bad - good > 0.5:
        middle = (good + bad) / 2
        good, bad = (middle, bad) if accepted(middle) else (good, middle)
    return good


def _ask(call: grpc.UnaryUnaryMultiCallable, moment: str) -> str:
    """The server's refusal of an empty request signed at `moment`."""
    public, signature = new_signature(moment.encode())
    headers = [("flwr-public-key-bin", public), ("flwr-timestamp", moment), ("flwr-signature-bin", signature)]
    try:
        call(b"", metadata=headers, timeout=SECONDS)
    except grpc.RpcError as error:
        if error.details() not in ANSWERS:
            raise LookupError(error.details()) from error
        return str(error.details())
    raise LookupError("it knows no node keys")
