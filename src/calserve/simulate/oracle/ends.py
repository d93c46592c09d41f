"""Whether the end of a request is one it may have had.

Owns: the truth of every reason, and the ends that wait for their excuse: a client may hear that the device failed a
little before anybody can see that it did. Must not know: lanes, how trouble is recognised.

I7 stands here from outside: who is neither cancelled, nor out of time, nor hit by trouble, ends by its last token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from calserve.simulate.oracle.answers import Answer, Answers
from calserve.simulate.oracle.findings import Findings
from calserve.simulate.oracle.line import Lines
from calserve.simulate.oracle.sessions import Sessions
from calserve.simulate.oracle.world import World

PROCESS_ENDED = "process_ended"
_TROUBLE = ("device_fault", "shutdown", "internal")
_MODEL_STATES = ("model_draining", "model_recovering", "model_failed")


@dataclass(frozen=True, slots=True)
class _Unexcused:
    """An end that needs trouble on `session` ("": anywhere) between `since_ns` and `until_ns`."""

    name: str
    told: str
    session: str
    since_ns: int
    at_ns: int
    until_ns: int


@dataclass(slots=True)
class Ends:
    world: World
    findings: Findings
    answers: Answers
    sessions: Sessions
    lines: Lines
    has_spoiled_output: bool = False  # the device gave an output once that nobody can use
    _unexcused: deque[_Unexcused] = field(default_factory=deque)
    _untold: list[tuple[str, int, int]] = field(default_factory=list)  # name, submitted_ns, at_ns

    def judge(self, answer: Answer, told: tuple[str, str, int], at_ns: int) -> None:
        """told: reason, detail, completion tokens."""
        reason, detail, completion_tokens = told
        request = answer.request
        if at_ns > request.deadline_ns + self.world.deadline_slack_ns and at_ns > request.submitted_ns + (
            self.world.deadline_slack_ns
        ):
            self._add("I11", at_ns, answer, f"ended ({reason}) after its deadline {request.deadline_ns}")
        cancelled = answer.cancelled_ns
        if cancelled is not None and at_ns > cancelled + self.world.cancel_slack_ns:
            self._add("I11", at_ns, answer, f"was cancelled at {cancelled} and ended ({reason}) only now")
        if reason in ("stop", "length"):
            self._judge_regular(answer, reason, completion_tokens, at_ns)
        elif reason == "cancelled":
            if cancelled is None:
                self._add("I7", at_ns, answer, "ended as cancelled, and nobody cancelled it")
        elif reason == "deadline":
            if at_ns < request.deadline_ns:
                self._add("I11", at_ns, answer, f"ended by a deadline that is at {request.deadline_ns}")
            self._judge_count(answer, completion_tokens, at_ns)
        elif reason == "refused":
            self._judge_refusal(answer, detail, at_ns)
        elif reason in _TROUBLE:
            self._judge_count(answer, completion_tokens, at_ns)
            if answer.was_lost and reason == "internal" and detail.startswith("output"):
                self._add("I10", at_ns, answer, f"ended for the output ({detail}) of a job that failed and has none")
            elif reason == "internal" and detail.startswith("output") and not self._may_be_spoiled:
                self._add("I10", at_ns, answer, f"ended for an output ({detail}), and the device spoiled none")
            if reason != "internal" or self.answers.has_choice(answer):
                self._needs_trouble(answer, f"{reason} {detail}".strip(), at_ns, is_own=reason == "device_fault")
        elif reason == PROCESS_ENDED:
            self._untold.append((answer.name, request.submitted_ns, at_ns))
        else:
            self._add("I1", at_ns, answer, f"ended with a reason that is none: {reason!r}")

    @property
    def _may_be_spoiled(self) -> bool:
        return self.has_spoiled_output or not self.world.is_trouble_visible

    def _judge_regular(self, answer: Answer, reason: str, completion_tokens: int, at_ns: int) -> None:
        if answer.is_bad:
            return
        count, most = answer.received, answer.request.max_new_tokens
        if reason == "stop" and not answer.stop:
            self._add("I10", at_ns, answer, f"ended with stop after {count} tokens, none of which ends it")
        elif reason == "length" and answer.stop:
            self._add("I10", at_ns, answer, f"ended with length, and a stop {answer.stop} ended it at token {count}")
        elif reason == "length" and count != most:
            self._add("I10", at_ns, answer, f"ended with length after {count} of {most} tokens")
        elif completion_tokens != count:
            self._add("I10", at_ns, answer, f"is told {completion_tokens} completion tokens and received {count}")
        elif answer.owed:
            self._add("I10", at_ns, answer, f"ended with {len(answer.owed)} characters of its text not sent")

    def _judge_count(self, answer: Answer, completion_tokens: int, at_ns: int) -> None:
        if completion_tokens not in (0, answer.received) and not answer.is_bad and answer.cancelled_ns is None:
            sentence = f"is told {completion_tokens} completion tokens and received {answer.received}"
            self._add("I10", at_ns, answer, sentence)

    def _judge_refusal(self, answer: Answer, detail: str, at_ns: int) -> None:
        kind = detail.split(maxsplit=1)[0] if detail else ""
        if answer.is_seen:
            self._add("I7", at_ns, answer, f"was refused ({kind}) after {answer.received} tokens")
            return
        if kind == "unknown_model" and not self.sessions.is_known(answer.request.model, answer.request.submitted_ns):
            return
        why = self.lines.why_false(answer, kind, at_ns)
        if why:
            self._add("I12", at_ns, answer, f"was refused ({detail}): {why}")
        elif kind in _MODEL_STATES and self.sessions.serves(answer.request.model):
            self._needs_trouble(answer, f"refused {kind}", at_ns, is_own=False)

    # --- excuses ----------------------------------------------------------------------------------------

    def _needs_trouble(self, answer: Answer, told: str, at_ns: int, *, is_own: bool) -> None:
        """is_own: on the session that ran it, where one did; a sibling's trouble excuses nothing."""
        session = answer.session if is_own else ""
        since = answer.request.submitted_ns
        if not self.sessions.had_trouble(session, since):
            until = at_ns + self.world.told_slack_ns
            self._unexcused.append(_Unexcused(answer.name, told, session, since, at_ns, until))

    def check(self, at_ns: int, *, is_last: bool = False) -> None:
        """Also right after trouble: what it excuses is taken out before later trouble hides it."""
        if not self._unexcused:
            return
        kept: deque[_Unexcused] = deque()
        for each in self._unexcused:
            if self.sessions.had_trouble(each.session, each.since_ns):
                continue
            if at_ns > each.until_ns or is_last:
                where = f"session {each.session}" if each.session else "anything"
                self.findings.add(
                    "I7",
                    each.at_ns,
                    f"{each.name} ended ({each.told}) at {each.at_ns}, and nothing was wrong with {where}",
                )
            else:
                kept.append(each)
        self._unexcused = kept

    def process_ended(self, at_ns: int, code: int) -> None:
        """A process that ended in order, or gave its device up, has told everyone it knew of."""
        if code in self.world.told_exit_codes:
            for name, submitted_ns, ended_ns in self._untold:
                if submitted_ns < ended_ns - self.world.told_slack_ns:
                    sentence = f"{name} was told nothing when the process ended in order (code {code}) at {at_ns}"
                    self.findings.add("I1", ended_ns, sentence)
        self._untold.clear()

    def _add(self, invariant: str, at_ns: int, answer: Answer, sentence: str) -> None:
        self.findings.add(invariant, at_ns, f"at {at_ns}: {answer.name} {sentence}")
