"""One run of a plan: eras of server processes on one device, clients, faults, and the oracle that watches.

Owns: who is started when, what an operator and a supervisor would do, and the end of every era. Must not know: how a
verdict is reported. Life: `Run(plan).run()` once; the result has everything a record needs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import partial

from calserve.core.commands import ResetScope
from calserve.core.events import Load, Shutdown, Unload
from calserve.core.snapshot import SessionView
from calserve.core.states import GenerationState
from calserve.executor.messages import Inspect
from calserve.runtime.sim import SimDevice
from calserve.runtime.sim.facts import DeviceFact
from calserve.simulate.bad_packages import BAD_PACKAGES
from calserve.simulate.boards import BoardParts, board_parts, fault_plan, hold_back
from calserve.simulate.clients import Client, Clients, Listeners, Market
from calserve.simulate.clock import SoakClock
from calserve.simulate.config import config_of
from calserve.simulate.judge import MODEL, make_oracle
from calserve.simulate.liveness import Liveness, settle_ns
from calserve.simulate.moves import draw_unloads
from calserve.simulate.oddities import Oddities
from calserve.simulate.oracle import Oracle
from calserve.simulate.paced import Durations
from calserve.simulate.plan import SECOND, Era, RunPlan, stream
from calserve.simulate.printing import RecordHash
from calserve.simulate.process import ProcessParts, ServerProcess
from calserve.simulate.result import RunResult, Watch
from calserve.simulate.sometimes import Sometimes
from calserve.simulate.world import World

RESTART_NS = 2 * SECOND  # a supervisor's pause before it starts the process again
OPERATOR_NS = 4 * SECOND  # how often an operator looks at the board
PATIENCE = 3  # looks at a session that stays failed before the process is restarted
DRAIN_NS = 5 * SECOND


class Run:
    """Invariants: everything in it follows from the plan; nothing reads the host's clock, or its randomness."""

    def __init__(
        self,
        plan: RunPlan,
        check_every: int = 0,
        advanced: Callable[[int], None] = lambda _: None,
        watch: Watch | None = None,
        era_ended: Callable[[RunResult], None] = lambda _: None,
    ) -> None:
        """check_every: turns between full scans of the core's own invariants; 0 for none, the oracle alone judges.
        advanced: told virtual ns as they pass. watch: told what happens, beside the oracle. era_ended: told after each
        era what the run has come to."""
        self.plan = plan
        self._watch = watch
        self._check_every = check_every
        self._advanced = advanced
        self._era_ended = era_ended
        self._clock = SoakClock()
        self._world = World(self._clock)
        self._hash = RecordHash()
        self._sometimes = Sometimes()
        self._result = RunResult()
        self._views: tuple[SessionView, ...] = ()
        self._failed_looks = 0
        self._max_in_flight = 1
        self._starts = 0  # processes of the era
        self._ended_unready = 0  # processes in a row that ended before any session was ready
        self._process: ServerProcess | None = None
        self._parts: BoardParts | None = None
        self._device: SimDevice | None = None
        self._oddities: Oddities | None = None
        self._oracle: Oracle | None = None
        self._clients: Clients | None = None
        self._liveness = Liveness()
        self._is_ending = False

    @property
    def result(self) -> RunResult:
        """So far."""
        return self._result

    def run(self) -> RunResult:
        """Never raises for what the code under test did: that is a violation."""
        for era in self.plan.eras:
            try:
                self._run_era(era)
            except Exception:
                self._say("crash: " + traceback.format_exc(limit=-6))
                break
            self._era_ended(self._result)  # what breaks in there is no finding about the server
            if self._violations():
                break
        self._collect()
        return self._result

    # --- eras -------------------------------------------------------------------------------------------

    def _run_era(self, era: Era) -> None:
        now = self._world.now_ns()
        self._open_board(era)
        self._is_ending = False
        self._liveness.begin_era()
        self._starts = 0
        self._result.eras_begun += 1
        clients = self._open_clients(era)
        self._start_process(era)
        safe_ns, end_ns = now + era.safety_ns, now + era.safety_ns + era.liveness_ns
        clients.open(self._market(era), era.traffic, end_ns)
        for times, action in (
            (era.crashes_ns, partial(self._crash, era)),
            (era.replace_at_ns, partial(self._replace, era)),
            (era.bad_load_at_ns, self._load_bad),
            (era.unload_at_ns, self._unload),
        ):
            for at_ns in times:
                self._world.at(now + at_ns, action)
        self._world.at(now + OPERATOR_NS, partial(self._operate, era, end_ns))
        self._pass_until(safe_ns)
        self._heal()
        self._pass_until(end_ns)
        if not self._violations():
            views = self._views if self._process is not None else ()
            self._say(self._liveness.complaint_about(views, self._world.now_ns()))
        self._end_era()

    def _pass_until(self, end_ns: int) -> None:
        """In stretches, so that progress shows and the oracle looks now and then."""
        while (now := self._world.now_ns()) < end_ns and not self._violations():
            upto = min(end_ns, now + 10 * SECOND)
            self._world.run_until(upto)
            assert self._oracle is not None
            self._oracle.check(self._world.now_ns())
            if self._process is not None:
                self._look_at(self._process)
            self._advanced(upto - now)

    def _look_at(self, process: ServerProcess) -> None:
        """What a server shows of itself, now and then."""
        assert self._oracle is not None
        now = self._world.now_ns()
        process.post(Inspect(lambda _: None))  # as a scrape of the metrics does
        if process.steps.buffer_counts().quarantined:
            self._sometimes.mark("buffers_quarantined")
        for view in process.engine.snapshot(now).sessions:
            if view.downgrade_reason and view.max_in_flight:
                self._oracle.in_flight_limit(view.session, view.max_in_flight, now)

    def _end_era(self) -> None:
        """An orderly shutdown; everybody is told. What still runs on the board runs out with the next process."""
        self._is_ending = True
        now = self._world.now_ns()
        if self._process is not None and self._process.is_alive:
            self._process.post(Shutdown(now + DRAIN_NS))
            self._world.run_until(now + DRAIN_NS + 30 * SECOND)
        if self._process is not None and self._process.is_alive:
            self._say(f"liveness: the server did not end within {(DRAIN_NS + 30 * SECOND) // SECOND} s")
            self._process.kill(-9, "it did not end")
        assert self._oracle is not None
        self._oracle.finish(self._world.now_ns())
        self._hash.note(f"era ended at {self._world.now_ns()}")
        for point, _ in self._device.plan.fired if self._device is not None else ():
            self._result.fired[point.value] = self._result.fired.get(point.value, 0) + 1
        for name, times in self._oddities.fired.items() if self._oddities is not None else ():
            self._result.fired[name] = self._result.fired.get(name, 0) + times
        self._result.end_era(self._world.now_ns(), self._clients.submitted if self._clients else 0, self._hash)

    def _open_board(self, era: Era) -> None:
        if era.keeps_device and self._device is not None:
            self._sometimes.mark("restart_with_device_memory")
        else:
            self._parts = board_parts(era.board, self.plan.profile)
            self._device = SimDevice(self._parts.profile, self._clock)
            self._oracle = None
        assert self._device is not None
        seed = stream(self.plan.seed, f"faults/{era.number}").randrange(1 << 62)
        self._device.plan = self._device.engine.plan = fault_plan(era.faults, seed)
        if era.faults.after_ns:
            self._world.after(era.faults.after_ns, hold_back(self._device.plan))
        self._oddities = Oddities(era.oddities, seed, era.odd_rate) if era.oddities else None

    def _market(self, era: Era) -> Market:
        assert self._parts is not None
        parts = self._parts
        return Market(
            seed=self.plan.seed,
            era=era.number,
            vocab=parts.vocab,
            context=parts.profile.context,
            eos_ids=parts.eos_ids,
            tokenizer=parts.tokenizer,
            deadline_default_ns=era.server.deadline_default_ns,
        )

    def _open_clients(self, era: Era) -> Clients:
        assert self._device is not None
        assert self._parts is not None
        market = self._market(era)
        self._oracle = make_oracle(era, self._parts, config_of(era))
        self._device.listener = self._oracle.fact if self._watch is None else self._tell_both
        listeners = Listeners(self._oracle, self._sometimes, self._client_ended)
        if self._clients is None:
            self._clients = Clients(self._world, market, era.traffic, listeners)
        self._clients.listen(listeners)
        return self._clients

    def _tell_both(self, fact: DeviceFact) -> None:
        assert self._oracle is not None
        assert self._watch is not None
        self._oracle.fact(fact)
        self._watch.fact(fact)

    def _heal(self) -> None:
        """The liveness phase begins: no fault fires any more, so everything must come right."""
        assert self._device is not None
        self._device.plan.heal()
        if self._oddities is not None:
            self._oddities.heal()
        if self._process is not None:
            self._process.heal()
        now, timing = self._world.now_ns(), self._device.profile.timing
        self._liveness.heal(now, settle_ns(timing.configure_ns, timing.reset_ns))
        self._hash.note(f"healed at {now}")

    # --- the server's life ------------------------------------------------------------------------------

    def _start_process(self, era: Era) -> None:
        assert self._parts is not None
        assert self._device is not None
        assert self._clients is not None
        options = self._parts.options(era.server, era.board.sessions)
        self._max_in_flight = era.server.max_in_flight
        self._starts += 1
        durations = Durations(era.pace, stream(self.plan.seed, f"pace/{era.number}/{self._starts}"))
        self._sometimes.process_started()
        self._views = ()
        parts = ProcessParts(
            world=self._world,
            device=self._device,
            config=config_of(era),
            options=options,
            open_package=self._parts.open_package,
            pace=era.pace,
            durations=durations,
            deliver=self._clients.deliver,
            sessions_changed=self._sessions_changed,
            ended=partial(self._process_ended, era),
            recorders=(self._hash, self._sometimes),
            oddities=self._oddities,
            check_every=self._check_every,
        )
        now = self._world.now_ns()
        self._hash.note(f"process started at {now}")
        assert self._oracle is not None
        self._oracle.process_started(now)
        self._process = self._clients.server = ServerProcess(parts)
        for session in options:
            self._process.post(Load(session, MODEL, self._parts.packages[0].hash))

    def _process_ended(self, era: Era, code: int, reason: str) -> None:
        assert self._clients is not None
        assert self._oracle is not None
        now = self._world.now_ns()
        self._hash.note(f"process ended at {now}: {code} {reason}")
        self._count(f"exits_{code}")
        if self._process is not None:
            self._sometimes.count(self._process.engine.snapshot(now).counters)
        self._oracle.process_ended(now, code)
        self._clients.lose_server()
        self._process = None
        self._ended_unready += 1
        if self._ended_unready > PATIENCE and self._device is not None:
            # starting again does not help: a person switches the board off and on
            self._ended_unready = 0
            self._count("power_cycles")
            self._device.reset(ResetScope.BOARD, None)
        if not self._is_ending:
            self._world.after(RESTART_NS, partial(self._restart, era))

    def _restart(self, era: Era) -> None:
        if self._process is None and not self._is_ending:
            self._sometimes.mark("restart_with_device_memory")
            self._start_process(era)

    def _crash(self, era: Era) -> None:
        if self._process is not None and not self._is_ending:
            self._sometimes.mark("process_killed")
            self._process.kill(-9, "killed")

    def _replace(self, era: Era) -> None:
        """An operator loads another build over one that serves."""
        assert self._parts is not None
        if self._process is None or not self._views:
            return
        view = self._views[0]
        if view.state is GenerationState.READY:
            other = self._parts.packages[view.package == self._parts.packages[0].hash]
            self._sometimes.mark("replace_package")
            self._process.post(Load(view.session, MODEL, other.hash))

    def _load_bad(self) -> None:
        if self._views:
            which = stream(self.plan.seed, f"bad/{self._world.now_ns()}").choice(BAD_PACKAGES)
            self._post(Load(self._views[-1].session, MODEL, which))

    def _unload(self) -> None:
        if self._process is None or not self._views:
            return
        self._sometimes.mark("unload")
        now = self._world.now_ns()
        r, sessions = stream(self.plan.seed, f"unload/{now}"), [view.session for view in self._views]
        for delay_ns, order in draw_unloads(r, sessions, now):
            self._world.after(delay_ns, partial(self._post, order))

    def _post(self, order: Load | Unload) -> None:
        if self._process is not None:
            self._process.post(order)

    def _operate(self, era: Era, end_ns: int) -> None:
        """What a person does about a session that failed: load it again, or start afresh with the board off and on."""
        now = self._world.now_ns()
        if self._is_ending or now >= end_ns or not self._liveness.may_help(now):
            return
        failed = [view for view in self._views if view.state in (GenerationState.FAILED, GenerationState.UNLOADED)]
        self._failed_looks = self._failed_looks + 1 if failed else 0
        if self._process is not None and failed:
            if self._failed_looks >= PATIENCE:
                self._failed_looks = 0
                self._count("operator_restarts")
                self._process.kill(-15, "the operator starts it again")
                assert self._device is not None
                self._device.reset(ResetScope.BOARD, None)
            else:
                assert self._parts is not None
                for view in failed:
                    self._process.post(Load(view.session, MODEL, self._parts.packages[0].hash))
        self._world.after(OPERATOR_NS, partial(self._operate, era, end_ns))

    # --- what is heard ----------------------------------------------------------------------------------

    def _sessions_changed(self, views: Many[SessionView]) -> None:
        assert self._oracle is not None
        now = self._world.now_ns()
        was = {view.session: (view.generation, view.state) for view in self._views}
        for view in views:
            if was.get(view.session) != (view.generation, view.state):
                self._oracle.session_state(view.session, view.generation, view.state.value, now)
                if view.state is GenerationState.READY:
                    self._ended_unready = 0
                    self._oracle.in_flight_limit(view.session, view.max_in_flight, now)
                elif view.state is GenerationState.WARMING:  # it is ready before that is told
                    self._oracle.in_flight_limit(view.session, self._max_in_flight, now)
                if self._watch is not None:
                    self._watch.session_state(view.session, view.state.value, now)
        self._views = tuple(views)
        states = {view.state for view in views}
        self._sometimes.is_one_away = GenerationState.READY in states and GenerationState.RECOVERING in states

    def _client_ended(self, client: Client, end: str) -> None:
        if self._watch is not None:
            self._watch.ended(client.request.name, end, self._world.now_ns())
        ends = self._result.ends
        ends[end] = ends.get(end, 0) + 1
        if not self._is_ending:
            self._say(self._liveness.complaint_of(client.request, end))

    def _say(self, sentence: str) -> None:
        if sentence:
            self._result.violations.append(sentence)
            self._result.violation_count += 1

    def _violations(self) -> bool:
        return bool(self._result.violations) or bool(self._oracle is not None and self._oracle.violations)

    def _count(self, name: str, by: int = 1) -> None:
        self._result.counts[name] = self._result.counts.get(name, 0) + by

    def _collect(self) -> None:
        result, clients = self._result, self._clients
        if self._oracle is not None:
            result.violations += [f"{v.invariant}: {v.sentence} (at {v.at_ns} ns)" for v in self._oracle.violations]
            result.violation_count += self._oracle.violation_count
        result.last_lines = self._hash.last_lines
        result.virtual_ns = self._world.now_ns()
        result.sometimes = dict(self._sometimes.seen)
        self._count("events", self._hash.events)
        self._count("jobs", self._hash.jobs)
        self._count("wide_jobs", self._hash.wide_jobs)
        result.counts |= self._sometimes.load(self._world.now_ns())
        if clients is not None:
            self._count("requests", clients.submitted)
            self._count("long_prompts", clients.long_prompts)
            self._count("refused_connections", clients.refused_connections)
            self._count("outputs", clients.outputs)
            self._count("output_tokens", clients.output_tokens)
