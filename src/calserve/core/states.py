"""Every state machine, as one table each.

Owns: the states of a request, a job, a KV transaction, a lane, a model generation and a host buffer, the events
that move them, and the only function that may move them. Must not know: what the states are used for.

A step that is not in its table raises `IllegalTransition` and changes nothing: the caller stores the returned
state, so a raise leaves the old one in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar


class _Symbol(Enum):
    # Members are singletons, so identity is enough; Enum's own hash runs in Python and costs 5x on the hot path.
    __hash__ = object.__hash__


class RequestState(_Symbol):
    NEW = "new"
    WAITING_MODEL = "waiting_model"
    WAITING_ADMISSION = "waiting_admission"
    PREFILL_READY = "prefill_ready"
    PREFILL_RUNNING = "prefill_running"
    DECODE_READY = "decode_ready"
    DECODE_RUNNING = "decode_running"
    FINISHING = "finishing"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class RequestEvent(_Symbol):
    AWAIT_MODEL = "await_model"  # accepted while the model is coming up, or it went away before admission
    ENQUEUE = "enqueue"  # the model serves: wait for a lane
    ADMIT = "admit"  # lane and worst case reserved
    START = "start"  # a row of it left in a job
    CHUNK_DONE = "chunk_done"  # prompt tokens committed, more remain
    TOKEN_DONE = "token_done"  # a token was sampled, more may follow
    ROLL_BACK = "roll_back"  # its job never reached the device
    LAST_TOKEN = "last_token"  # a token was sampled and it is the last
    REQUEUE = "requeue"  # its KV was lost (or refused), and its client has seen nothing: start over
    TELL = "tell"  # the client was told the regular end
    CANCEL = "cancel"
    FAIL = "fail"  # refused, expired, lost with the device, shut down


class JobState(_Symbol):
    CREATED = "created"
    ADMITTED = "admitted"
    PREPARING = "preparing"
    QUEUED = "queued"
    SUBMITTED = "submitted"
    COMPLETING = "completing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCEL_REQUESTED = "cancel_requested"
    QUARANTINED = "quarantined"


class JobEvent(_Symbol):
    ADMIT = "admit"  # KV of every row reserved
    PREPARE = "prepare"  # handed to the executor
    ENQUEUE = "enqueue"  # inputs encoded
    SUBMIT = "submit"  # the board took it
    CANCEL = "cancel"  # no row has a client any more; the device still runs it
    COMPLETE = "complete"  # wait returned
    SUCCEED = "succeed"
    FAIL = "fail"
    QUARANTINE = "quarantine"  # it never returned: only a reset ends it


class KvTxnState(_Symbol):
    RESERVED = "reserved"
    SUBMITTED = "submitted"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNKNOWN = "unknown"


class KvTxnEvent(_Symbol):
    SUBMIT = "submit"
    COMMIT = "commit"
    ROLL_BACK = "roll_back"
    LOSE = "lose"


class LaneState(_Symbol):
    FREE = "free"
    RESERVED = "reserved"
    ACTIVE = "active"
    UPDATING = "updating"
    UNKNOWN = "unknown"
    RELEASING = "releasing"


class LaneEvent(_Symbol):
    RESERVE = "reserve"
    UPDATE = "update"  # a job will write it
    COMMIT = "commit"
    ROLL_BACK = "roll_back"
    ABANDON = "abandon"  # its request ended while a job writes it
    RELEASE = "release"  # no job writes it: free at once, or when its job retired
    LOSE = "lose"  # what it holds is unknown until the generation is rebuilt


class GenerationState(_Symbol):
    UNLOADED = "unloaded"
    VALIDATING = "validating"
    CONFIGURING = "configuring"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    UNLOADING = "unloading"
    RECOVERING = "recovering"
    FAILED = "failed"


class GenerationEvent(_Symbol):
    LOAD = "load"
    VALIDATED = "validated"
    CONFIGURED = "configured"
    WARMED = "warmed"
    DRAIN = "drain"
    UNLOAD = "unload"
    RECOVER = "recover"
    RECOVERED = "recovered"
    RELEASED = "released"
    FAIL = "fail"


class BufferState(_Symbol):
    FREE = "free"
    PREPARING = "preparing"
    SUBMITTED = "submitted"
    RUNNING = "running"
    COMPLETING = "completing"
    QUARANTINED = "quarantined"


class BufferEvent(_Symbol):
    LEASE = "lease"
    GIVE_UP = "give_up"  # prepare failed: the device never saw it
    SUBMIT = "submit"
    RUN = "run"
    RETIRE = "retire"  # wait returned
    GIVE_BACK = "give_back"  # D2H done, scrubbed
    QUARANTINE = "quarantine"
    REBUILD = "rebuild"  # replaced, with a new generation


class IllegalTransition(RuntimeError):
    """A step that its table does not have. Nothing was changed."""

    def __init__(self, state: Enum, event: Enum) -> None:
        super().__init__(f"{type(state).__name__}.{state.name} has no step for {event.name}")
        self.state = state
        self.event = event


S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


def step(table: Mapping[tuple[S, E], S], state: S, event: E) -> S:
    """The state that follows. Raises `IllegalTransition` where the table has none."""
    try:
        return table[state, event]
    except KeyError:
        raise IllegalTransition(state, event) from None


R, RE = RequestState, RequestEvent
_LIVE = (
    R.NEW,
    R.WAITING_MODEL,
    R.WAITING_ADMISSION,
    R.PREFILL_READY,
    R.PREFILL_RUNNING,
    R.DECODE_READY,
    R.DECODE_RUNNING,
    R.FINISHING,
)
_ADMITTED = (R.PREFILL_READY, R.PREFILL_RUNNING, R.DECODE_READY, R.DECODE_RUNNING)
TERMINAL = frozenset({R.COMPLETED, R.CANCELLED, R.FAILED})

REQUEST_STEPS: Mapping[tuple[RequestState, RequestEvent], RequestState] = {
    (R.NEW, RE.AWAIT_MODEL): R.WAITING_MODEL,
    (R.WAITING_ADMISSION, RE.AWAIT_MODEL): R.WAITING_MODEL,
    (R.NEW, RE.ENQUEUE): R.WAITING_ADMISSION,
    (R.WAITING_MODEL, RE.ENQUEUE): R.WAITING_ADMISSION,
    (R.WAITING_ADMISSION, RE.ADMIT): R.PREFILL_READY,
    (R.PREFILL_READY, RE.START): R.PREFILL_RUNNING,
    (R.DECODE_READY, RE.START): R.DECODE_RUNNING,
    (R.PREFILL_RUNNING, RE.CHUNK_DONE): R.PREFILL_READY,
    (R.PREFILL_RUNNING, RE.TOKEN_DONE): R.DECODE_READY,
    (R.DECODE_RUNNING, RE.TOKEN_DONE): R.DECODE_READY,
    (R.PREFILL_RUNNING, RE.ROLL_BACK): R.PREFILL_READY,
    (R.DECODE_RUNNING, RE.ROLL_BACK): R.DECODE_READY,
    (R.PREFILL_RUNNING, RE.LAST_TOKEN): R.FINISHING,
    (R.DECODE_RUNNING, RE.LAST_TOKEN): R.FINISHING,
    (R.FINISHING, RE.TELL): R.COMPLETED,
    **{(state, RE.REQUEUE): R.WAITING_ADMISSION for state in _ADMITTED},
    **{(state, RE.CANCEL): R.CANCELLED for state in _LIVE},
    **{(state, RE.FAIL): R.FAILED for state in _LIVE},
    # a cancel may come at any time and twice: it never changes what the client was told
    (R.COMPLETED, RE.CANCEL): R.COMPLETED,
    (R.CANCELLED, RE.CANCEL): R.CANCELLED,
    (R.FAILED, RE.CANCEL): R.FAILED,
}

J, JE = JobState, JobEvent
_ON_ITS_WAY = (J.PREPARING, J.QUEUED, J.SUBMITTED, J.CANCEL_REQUESTED)

JOB_STEPS: Mapping[tuple[JobState, JobEvent], JobState] = {
    (J.CREATED, JE.ADMIT): J.ADMITTED,
    (J.ADMITTED, JE.PREPARE): J.PREPARING,
    (J.PREPARING, JE.ENQUEUE): J.QUEUED,
    (J.QUEUED, JE.SUBMIT): J.SUBMITTED,
    (J.PREPARING, JE.FAIL): J.FAILED,
    (J.QUEUED, JE.FAIL): J.FAILED,
    (J.CANCEL_REQUESTED, JE.FAIL): J.FAILED,
    (J.SUBMITTED, JE.COMPLETE): J.COMPLETING,
    (J.CANCEL_REQUESTED, JE.COMPLETE): J.COMPLETING,
    # it runs or is being prepared still, and the client is already gone
    (J.CANCEL_REQUESTED, JE.ENQUEUE): J.CANCEL_REQUESTED,
    (J.CANCEL_REQUESTED, JE.SUBMIT): J.CANCEL_REQUESTED,
    **{(state, JE.CANCEL): J.CANCEL_REQUESTED for state in _ON_ITS_WAY},
    **{(state, JE.QUARANTINE): J.QUARANTINED for state in _ON_ITS_WAY},
    (J.COMPLETING, JE.SUCCEED): J.SUCCEEDED,
    (J.COMPLETING, JE.FAIL): J.FAILED,
}

K, KE = KvTxnState, KvTxnEvent
KV_TXN_STEPS: Mapping[tuple[KvTxnState, KvTxnEvent], KvTxnState] = {
    (K.RESERVED, KE.SUBMIT): K.SUBMITTED,
    (K.RESERVED, KE.ROLL_BACK): K.ROLLED_BACK,
    (K.SUBMITTED, KE.COMMIT): K.COMMITTED,
    (K.SUBMITTED, KE.LOSE): K.UNKNOWN,
    (K.RESERVED, KE.LOSE): K.UNKNOWN,  # whether the board took it was never learnt
}

L, LE = LaneState, LaneEvent
LANE_STEPS: Mapping[tuple[LaneState, LaneEvent], LaneState] = {
    (L.FREE, LE.RESERVE): L.RESERVED,
    (L.RESERVED, LE.UPDATE): L.UPDATING,
    (L.ACTIVE, LE.UPDATE): L.UPDATING,
    (L.UPDATING, LE.COMMIT): L.ACTIVE,
    (L.UPDATING, LE.ROLL_BACK): L.ACTIVE,
    (L.RESERVED, LE.RELEASE): L.FREE,
    (L.ACTIVE, LE.RELEASE): L.FREE,
    (L.UPDATING, LE.ABANDON): L.RELEASING,
    (L.RELEASING, LE.RELEASE): L.FREE,
    (L.UPDATING, LE.LOSE): L.UNKNOWN,
    (L.RELEASING, LE.LOSE): L.UNKNOWN,
}

G, GE = GenerationState, GenerationEvent
GENERATION_STEPS: Mapping[tuple[GenerationState, GenerationEvent], GenerationState] = {
    (G.UNLOADED, GE.LOAD): G.VALIDATING,
    (G.FAILED, GE.LOAD): G.VALIDATING,
    (G.VALIDATING, GE.VALIDATED): G.CONFIGURING,
    (G.CONFIGURING, GE.CONFIGURED): G.WARMING,
    (G.WARMING, GE.WARMED): G.READY,
    (G.VALIDATING, GE.DRAIN): G.DRAINING,
    (G.CONFIGURING, GE.DRAIN): G.DRAINING,
    (G.WARMING, GE.DRAIN): G.DRAINING,
    (G.READY, GE.DRAIN): G.DRAINING,
    (G.DRAINING, GE.UNLOAD): G.UNLOADING,
    (G.DRAINING, GE.RECOVER): G.RECOVERING,
    (G.RECOVERING, GE.RECOVERED): G.CONFIGURING,
    (G.RECOVERING, GE.UNLOAD): G.UNLOADING,
    (G.FAILED, GE.UNLOAD): G.UNLOADING,
    (G.UNLOADING, GE.RELEASED): G.UNLOADED,
    (G.UNLOADING, GE.RECOVER): G.RECOVERING,  # the release failed: only a reset says what is held still
    **{
        (state, GE.FAIL): G.FAILED
        for state in (
            G.VALIDATING,
            G.CONFIGURING,
            G.WARMING,
            G.READY,
            G.DRAINING,
            G.UNLOADING,
            G.RECOVERING,
        )
    },
}

B, BE = BufferState, BufferEvent
BUFFER_STEPS: Mapping[tuple[BufferState, BufferEvent], BufferState] = {
    (B.FREE, BE.LEASE): B.PREPARING,
    (B.PREPARING, BE.GIVE_UP): B.FREE,
    (B.PREPARING, BE.SUBMIT): B.SUBMITTED,
    (B.SUBMITTED, BE.RUN): B.RUNNING,
    (B.SUBMITTED, BE.RETIRE): B.COMPLETING,
    (B.RUNNING, BE.RETIRE): B.COMPLETING,
    (B.COMPLETING, BE.GIVE_BACK): B.FREE,
    (B.PREPARING, BE.QUARANTINE): B.QUARANTINED,
    (B.SUBMITTED, BE.QUARANTINE): B.QUARANTINED,
    (B.RUNNING, BE.QUARANTINE): B.QUARANTINED,
    (B.COMPLETING, BE.QUARANTINE): B.QUARANTINED,
    (B.QUARANTINED, BE.REBUILD): B.FREE,
}
