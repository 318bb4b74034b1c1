"""Everything that Baton refuses or fails with, on both sides of the wire.

    BatonError
    ├── InvalidRequest        INVALID_ARGUMENT     can never work; `field` names the culprit
    ├── Unauthenticated       UNAUTHENTICATED      no key
    ├── PermissionDenied      PERMISSION_DENIED    wrong key
    ├── NotFound              NOT_FOUND            unknown model, expired lease
    ├── Exhausted             RESOURCE_EXHAUSTED   no room now; `retry_after` says when again
    ├── LayoutMismatch        FAILED_PRECONDITION  KV layouts differ, or a step came out of order
    ├── LostRace              ABORTED              try another worker at once
    ├── Unavailable           UNAVAILABLE          draining, gone, or not there yet
    ├── DeadlineExceeded      DEADLINE_EXCEEDED    the caller's deadline
    ├── Cancelled             CANCELLED            the caller went away
    └── InternalError         INTERNAL             a bug, and only that

A server turns an error into a `google.rpc.Status` with `ErrorInfo` (domain `baton`, reason),
`BadRequest` where a field is named, and `RetryInfo` where trying again helps; a client turns
such a status back into the same error.
"""

from collections.abc import Sequence
from typing import ClassVar

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

DOMAIN = "baton"


class BatonError(Exception):
    """Base of all errors. `message` is for people, `reason` for programs."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    default_reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.field = field
        """Path of the request field at fault, such as `sampling.top_p`."""
        self.retry_after = retry_after
        """Seconds after which trying again may help; None where it does not."""


class InvalidRequest(BatonError):
    """The request can never work."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    default_reason = "INVALID_REQUEST"

    def __init__(self, field: str, message: str, *, reason: str | None = None) -> None:
        super().__init__(f"{field}: {message}", reason=reason, field=field)

    @classmethod
    def from_wire(cls, field: str, message: str, reason: str | None) -> "InvalidRequest":
        """The error as another process made it: `message` names the field already."""
        error = cls(field, "", reason=reason)
        error.message, error.args = message, (message,)
        return error


class Unauthenticated(BatonError):
    """No valid credentials were given."""

    code = grpc.StatusCode.UNAUTHENTICATED
    default_reason = "UNAUTHENTICATED"


class PermissionDenied(BatonError):
    """The credentials do not allow this."""

    code = grpc.StatusCode.PERMISSION_DENIED
    default_reason = "PERMISSION_DENIED"


class NotFound(BatonError):
    """What was named is not there."""

    code = grpc.StatusCode.NOT_FOUND
    default_reason = "NOT_FOUND"


class Exhausted(BatonError):
    """There is no room now."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    default_reason = "EXHAUSTED"


class LayoutMismatch(BatonError):
    """Two sides disagree about the KV layout."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    default_reason = "LAYOUT_MISMATCH"


class LostRace(BatonError):
    """Someone else was faster; another worker may have room at once."""

    code = grpc.StatusCode.ABORTED
    default_reason = "LOST_RACE"


class Unavailable(BatonError):
    """The other side is draining, gone or not there yet."""

    code = grpc.StatusCode.UNAVAILABLE
    default_reason = "UNAVAILABLE"


class DeadlineExceeded(BatonError):
    """The deadline passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    default_reason = "DEADLINE_EXCEEDED"


class Cancelled(BatonError):
    """The caller went away."""

    code = grpc.StatusCode.CANCELLED
    default_reason = "CANCELLED"


class InternalError(BatonError):
    """A bug."""


_BY_CODE: dict[grpc.StatusCode, type[BatonError]] = {
    kind.code: kind
    for kind in (
        Unauthenticated, PermissionDenied, NotFound, Exhausted, LayoutMismatch,
        LostRace, Unavailable, DeadlineExceeded, Cancelled, InternalError,
    )
}  # fmt: skip


def to_status(error: BatonError) -> status_pb2.Status:
    """The status that goes over the wire for `error`."""
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code.name), message=error.message)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMicroseconds(int(error.retry_after * 1e6))
        status.details.add().Pack(retry)
    return status


def from_rpc_error(error: grpc.RpcError) -> BatonError:
    """The error that a failed call stands for; never raises."""
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    message = (error.details() if hasattr(error, "details") else None) or str(code)
    info, retry, bad = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.RetryInfo(),
        error_details_pb2.BadRequest(),
    )
    for packed in _packed_details(error):
        for detail in (info, retry, bad):
            if packed.Is(detail.DESCRIPTOR):
                packed.Unpack(detail)
    reason = info.reason or None
    field = bad.field_violations[0].field if bad.field_violations else None
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequest.from_wire(field or "request", message, reason)
    retry_after = (
        retry.retry_delay.ToMicroseconds() / 1e6 if retry.HasField("retry_delay") else None
    )
    kind = _BY_CODE.get(code, InternalError)
    return kind(message, reason=reason, field=field, retry_after=retry_after)


def _packed_details(error: grpc.RpcError) -> Sequence[any_pb2.Any]:
    try:
        status = rpc_status.from_call(error)
    except (ValueError, AttributeError):
        return ()
    return status.details if status is not None else ()
