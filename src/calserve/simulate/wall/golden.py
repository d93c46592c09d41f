"""Fixed prompts with known answers, asked while nothing or everything else goes on.

Owns asking again where the server says that it may be asked again. Must not know the traffic.
"""

from __future__ import annotations

import asyncio
import time

from calserve.simulate.wall.cases import Case, Cases, Expected
from calserve.simulate.wall.http import exchange
from calserve.simulate.wall.judge import BUSY_CODES, FAULT_CODES, INTERNAL_CODE, End, Result
from calserve.simulate.wall.options import SoakError
from calserve.simulate.wall.schedule import Arrival, Kind
from calserve.simulate.wall.server import ServerProcess
from calserve.simulate.wall.verdict import FAILED_STATE

GOLDEN_PASSED, GOLDEN_WRONG = "passed", "wrong"
# A server may be recovering, or coming up again, when it is asked.
GOLDEN_S = 300.0
AGAIN_S = 0.5
ALONE_S = 120.0


async def ask_alone(server: ServerProcess, model: str, case: Case) -> Expected:
    """The answer of a server nobody else asks. Where the deadline ends it, what came before is its beginning."""
    assert server.address is not None, "the server is not up"
    result = await exchange(server.address, model, Arrival(0, 0.0, Kind.STREAM, case), ALONE_S)
    if result.end is End.ANSWERED:
        return Expected(result.text, result.finish, result.tokens)
    if result.code == "deadline_exceeded" and result.text:
        return Expected(result.text, "", -1, is_whole=False)
    raise SoakError(f"A prompt asked alone was not answered: {result.end.value} {result.status} {result.code}.")


async def golden_round(server: ServerProcess, model: str, cases: Cases) -> str:
    """`GOLDEN_PASSED` when every golden gets its answer, `FAILED_STATE` when the model is out of service."""
    ends = time.monotonic() + GOLDEN_S
    for case in cases.goldens:
        expected = cases.expect(case)
        while True:
            result = await _ask(server, model, case)
            if result.end is End.ANSWERED:
                if (result.text, result.finish) != (expected.text, expected.finish):
                    return f"{GOLDEN_WRONG}: {result.text[:40]!r}, not {expected.text[:40]!r}"
                break
            if result.code == "model_failed":
                return FAILED_STATE
            if server.is_over:
                return f"{GOLDEN_WRONG}: the server is gone"
            if not _may_ask_again(result) or time.monotonic() > ends:
                return f"{GOLDEN_WRONG}: {result.end.value} {result.status} {result.code}"
            await asyncio.sleep(AGAIN_S)
    return GOLDEN_PASSED


async def _ask(server: ServerProcess, model: str, case: Case) -> Result:
    if server.address is None:
        return Result(End.UNREACHABLE)
    return await exchange(server.address, model, Arrival(0, 0.0, Kind.WHOLE, case), ALONE_S)


def _may_ask_again(result: Result) -> bool:
    told = FAULT_CODES | BUSY_CODES | {"deadline_exceeded", INTERNAL_CODE}
    return result.end in (End.UNREACHABLE, End.UNANSWERED) or result.code in told
