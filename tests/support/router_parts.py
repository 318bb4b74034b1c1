"""The router's neighbours, faked at their seams: a dispatcher, workers' legs, transfer services.

They keep books like the real ones, so that a test can ask what a request still holds, and each
of their awaits is a window in which a test can stop time (`Windows`).
"""

import asyncio
from collections import defaultdict
from contextlib import aclosing

from baton import errors
from baton.naming import Incarnation, LeaseId, WorkerId
from baton.policy.fleet import ModelLimits, Role, Usage, Worker
from services.common.background import Background
from services.common.text import SamplingDefaults, ToolFormat
from services.router.calls import (
    Finished,
    FirstToken,
    HandedOff,
    Handoff,
    Prefilled,
    Prompted,
    Started,
    Tokens,
)
from services.router.deadline import Deadline
from services.router.dispatch import Placement
from services.router.events import Admitted, Completed, Delta, FinishReason, SampledToken
from services.router.generation import Generator
from services.router.intake import Intake
from services.router.leases import Lease, LeaseKeeper
from services.router.register import Register
from services.router.report import Reporter
from services.router.request import ClassTargets, ResumeFrom
from services.router.retry import Retries, RetryLimits
from services.router.validation import RequestFields, SamplingFields, TextPrompt

EOS = 0
LIMITS = ModelLimits("letters", vocab_size=0x110000, context_tokens=256, eos_token_ids={EOS})


def worker(role, number=0, *, incarnation="1", layout="layout-a", address="127.0.0.1:1"):
    """A worker with room."""
    room = Usage(100, 100_000)
    return Worker(
        worker_id=WorkerId(f"{role.value}-{number}"),
        incarnation=Incarnation(incarnation),
        role=role,
        address=address,
        transfer_address=f"transfer-of-{role.value}-{number}",
        layout_fingerprint=layout,
        model=LIMITS,
        capacity=room,
        running=Usage(0, 0),
        taken=frozenset(),
        draining=False,
        pid=1,
    )


class Windows:
    """Numbers every await of the fakes; the one that a test chose never returns."""

    def __init__(self, stop_at=None):
        self.stop_at = stop_at
        self.names = []
        self.reached = asyncio.Event()

    async def at(self, name):
        self.names.append(name)
        if len(self.names) - 1 == self.stop_at:
            self.reached.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)


class Letters:
    """A tokenizer whose token ids are code points."""

    has_chat_template = True
    tool_format = ToolFormat.HERMES
    default_sampling = SamplingDefaults()

    def encode(self, text):
        return [ord(character) for character in text]

    encode_piece = encode

    def decode(self, ids):
        return "".join(map(chr, ids))

    def encode_chat(self, conversation):
        return self.encode("".join(f"{one.role}:{one.content};" for one in conversation.messages))

    def token_text(self, token_id):
        return chr(token_id).encode()

    def max_characters(self, context_tokens):
        return context_tokens

    def detokenizer(self, _prompt_ids):
        return LetterText()


class LetterText:
    """Text of code points; `~` stands for a token whose text comes with the next one."""

    def __init__(self):
        self._held = ""

    def push(self, token_id):
        text = self._held + chr(token_id)
        self._held = text if text.endswith("~") else ""
        return "" if self._held else text

    def finish(self):
        held, self._held = self._held, ""
        return held


class FakeFleet:
    """Knows the model, and hears of failures."""

    def __init__(self):
        self.limits = LIMITS
        self.failures = []
        self.successes = []

    def model(self):
        return self.limits

    def report_failure(self, worker_id, _incarnation):
        self.failures.append(worker_id)

    def report_success(self, worker_id, _incarnation):
        self.successes.append(worker_id)


class FakeDispatcher:
    """Gives the least excluded worker of each role, and remembers what is claimed."""

    def __init__(self, windows, prefill=2, decode=3, decode_layout="layout-a"):
        self.windows = windows
        self.prefill = [worker(Role.PREFILL, i) for i in range(prefill)]
        self.decode = [worker(Role.DECODE, i, layout=decode_layout) for i in range(decode)]
        self.held = {}
        self.queued = set()
        self.demands = []
        self.near = []
        self.turns = []
        """(urgency, whole) of each turn."""
        self.excluded = []
        """Of each claim for a decode worker."""
        self.priorities = []
        self.refusal = None
        """What turns raise."""
        self.placing = {}
        """Fields of placements that are not the usual."""
        self.budget = 100
        """Retries that the fleet has left."""
        self.outputs = []
        self.first_tokens = []
        self.handoffs = []
        self.full = False
        """Whether no one gets room besides those whose turn it was."""

    async def turn(self, demand, urgency, *, waited_s, exclude, whole):
        assert waited_s >= 0
        self.turns.append((urgency, whole))
        if self.refusal is not None:
            raise self.refusal
        split = self.prefill and not whole
        prefill = self._claim(demand, self.prefill, exclude) if split else None
        decode = self._claim(demand, self.decode, exclude)
        await self._wait(demand, "turn")
        usual = {
            "ttft_target_s": 5.0, "itl_target_s": 5.0, "predicted_ttft_s": 0.25,
            "predicted_itl_s": 0.125, "local": False, "degraded": False,
        }  # fmt: skip
        return Placement(prefill, decode, **usual | self.placing)

    async def spend_retry(self):
        await self.windows.at("spend_retry")
        self.budget -= 1
        return self.budget >= 0

    def observe_output(self, tokens):
        self.outputs.append(tokens)

    def observe_first_token(self, placement, measured_s):
        assert measured_s >= 0
        self.first_tokens.append(placement)

    def observe_handoff(self, gap_s, step_s):
        assert min(gap_s, step_s) >= 0
        self.handoffs.append((gap_s, step_s))

    async def claim_decode(self, demand, *, exclude, fingerprint, near, priority):
        assert fingerprint in (None, "layout-a", "layout-b")
        assert (fingerprint is None) or (near is None)
        self.near.append(near)
        self.excluded.append(set(exclude))
        self.priorities.append(priority)
        if self.full:
            self.queued.add(demand.request_id)
            try:
                await asyncio.Event().wait()
            finally:
                self.queued.discard(demand.request_id)
        chosen = self._claim(demand, self.decode, exclude)
        await self._wait(demand, "claim_decode")
        return chosen

    async def release(self, request_id, worker_id=None):
        if worker_id is None:
            in_background = asyncio.current_task().get_name().startswith("release ")
            await self.windows.at("background release" if in_background else "release")
        held = self.held.get(request_id, set())
        kept = {claim for claim in held if worker_id is not None and claim[0] != worker_id}
        self.held[request_id] = kept
        if not kept:
            del self.held[request_id]

    def _claim(self, demand, workers, exclude):
        key = {(one.worker_id, one.incarnation) for one in workers} - exclude
        chosen = next((w for w in workers if (w.worker_id, w.incarnation) in key), workers[0])
        self.held.setdefault(demand.request_id, set()).add((chosen.worker_id, demand.attempt))
        return chosen

    async def _wait(self, demand, name):
        self.demands.append(demand)
        self.queued.add(demand.request_id)
        try:
            await self.windows.at(name)
        finally:
            self.queued.discard(demand.request_id)


class FakeLegs:
    """Workers that all compute the same outputs, one for each choice, and fail where told to.

    `prefill_faults` and `decode_faults` hold one entry for each call, None for a good one; a
    decode fault is (number of tokens to send first, error), the error None for a stream that
    just ends, "draining" or "preempted" for one that is handed over. `choice_faults` holds such
    entries for the calls of a choice.
    """

    def __init__(self, windows, outputs, *, step=1):
        self.windows = windows
        self.outputs = [[ord(character) for character in output] for output in outputs]
        self.step = step
        self.prefill_faults = []
        self.decode_faults = []
        self.choice_faults = {}
        self.prefill_calls = []
        self.decode_calls = []
        self.calls = []
        self.open_calls = 0
        self.cached = 4
        """Tokens that decode workers have cached."""
        self.moved = []
        """Handoffs of decode workers."""
        self.gates = {}
        """Events that a choice's tokens wait for."""

    async def prefill(self, worker, attempt, generation, lease, deadline, headers=()):
        fault = self.prefill_faults.pop(0) if self.prefill_faults else None
        self.prefill_calls.append((worker.worker_id, attempt, lease.lease_id))
        self.open_calls += 1
        try:
            await self.windows.at("prefill")
            if fault is not None:
                raise fault
        finally:
            self.open_calls -= 1
        firsts = tuple(
            FirstToken(self._token(output[0], 0, generation), self._end(output, generation, 1))
            for output in self.outputs[: generation.choices]
        )
        goes_on = any(first.finish_reason is None for first in firsts)
        handoff = Handoff("the prompt's", worker.layout_fingerprint, lease) if goes_on else None
        return Prefilled(firsts, handoff, 3, self._prompt(generation))

    async def decode(self, worker, asked, deadline, headers=()):
        faults = self.choice_faults.get(asked.choice) or self.decode_faults
        fault = faults.pop(0) if faults else None
        self.decode_calls.append(
            (worker.worker_id, asked.attempt, asked.handoff, list(asked.emitted))
        )
        self.calls.append(asked)
        output, generation = self.outputs[asked.choice], asked.generation
        done, sent = len(asked.emitted), 0
        self.open_calls += 1
        try:
            await self.windows.at("decode")
            if fault and fault[0] < 0:
                if isinstance(fault[1], str):
                    yield self._handed_off(worker, asked, output[:done], fault[1])
                    return
                raise fault[1]
            yield Started(self.cached)
            if asked.wants_prompt and generation.sampling.prompt_logprobs is not None:
                yield Prompted(self._prompt(generation))
            while (end := self._end(output, generation, done)) is None:
                await self.windows.at("token")
                if (gate := self.gates.get(asked.choice)) is not None:
                    await gate.wait()
                if fault and sent >= fault[0]:
                    if isinstance(fault[1], str):
                        yield self._handed_off(worker, asked, output[:done], fault[1])
                        return
                    raise fault[1] or errors.Unavailable("the stream ended")
                more = []
                while len(more) < self.step and self._end(output, generation, done) is None:
                    more.append(self._token(output[done], done, generation))
                    done += 1
                sent += len(more)
                yield Tokens(tuple(more))
            await self.windows.at("finish")
            if fault and not isinstance(fault[1], str):
                raise fault[1] or errors.Unavailable("the stream ended")
            yield Finished(end)
        finally:
            self.open_calls -= 1

    def _handed_off(self, worker, asked, emitted, reason):
        lease = Lease(LeaseId(f"moved-{len(self.moved)}"), worker.transfer_address)
        handoff = Handoff(f"of {asked.request_id}", worker.layout_fingerprint, lease)
        self.moved.append(handoff)
        return HandedOff(handoff, tuple(emitted), reason == "draining")

    def _prompt(self, generation):
        if generation.sampling.prompt_logprobs is None:
            return ()
        return tuple(SampledToken(token_id, -0.25) for token_id in generation.prompt_ids[1:])

    def _token(self, token_id, index, generation):
        if generation.sampling.logprobs is None:
            return SampledToken(token_id)
        return SampledToken(token_id, -0.5 - index, ((token_id, -0.5),))

    def _end(self, output, generation, done):
        ends = {EOS, *generation.sampling.stop_token_ids}
        if done and done > generation.sampling.min_tokens and output[done - 1] in ends:
            return FinishReason.STOP
        return FinishReason.LENGTH if done == generation.max_tokens else None


class NoHints:
    """Knows of no cache."""

    async def cached(self, _tokens, _salt, /):
        return {}


class FakeTransfer:
    """A transfer service's leases."""

    def __init__(self, windows):
        self.windows = windows
        self.renewed = []
        self.released = []
        self.error = None

    async def renew(self, lease, ttl_s, timeout_s):
        await self.windows.at("renew")
        self.renewed.append(lease)
        if self.error:
            raise self.error

    async def release(self, lease, timeout_s):
        await self.windows.at("release lease")
        self.released.append(lease)
        if self.error:
            raise self.error


class RouterParts:
    """A Generator and all that it is made of."""

    def __init__(
        self,
        *outputs,
        stop_at=None,
        step=1,
        most=8,
        limits=None,
        hints=None,
        sinks=(),
        on_arrival=lambda _: None,
        **fleet,
    ):
        self.windows = Windows(stop_at)
        self.fleet = FakeFleet()
        self.dispatcher = FakeDispatcher(self.windows, **fleet)
        self.legs = FakeLegs(self.windows, outputs or ["hello\0"], step=step)
        self.transfer = FakeTransfer(Windows())
        self.background = Background(1.0)
        self.leases = LeaseKeeper(self.transfer, self.background, ttl_s=6.0)
        self.register = Register(most)
        self.pauses = []
        self.retries = Retries(limits or RetryLimits(), pause=self._pause)
        self.reporter = Reporter(sinks, on_arrival)
        targets = ClassTargets()
        self.intake = Intake(Letters(), self.fleet, "letters", 32, targets)
        self.generator = Generator(
            self.intake,
            self.register,
            self.dispatcher,
            self.fleet,
            self.legs,
            self.leases,
            self.retries,
            self.background,
            hints or NoHints(),
            self.reporter,
        )

    async def _pause(self, seconds):
        self.pauses.append(seconds)
        await self.windows.at("pause")

    async def events(self, fields=None, deadline=None):
        """What follows the word that the request was let in."""
        async with aclosing(self.all_events(fields, deadline)) as events:
            assert isinstance(await anext(events), Admitted)
            async for event in events:
                yield event

    def all_events(self, fields=None, deadline=None):
        return self.generator.generate(fields or request(), deadline or Deadline())

    async def run(self, fields=None, deadline=None):
        """(text, token ids, completed): all of a request of one choice."""
        choices, completed = await self.run_choices(fields, deadline)
        [(text, ids)] = choices
        return text, ids, completed

    async def run_choices(self, fields=None, deadline=None):
        """([(text, token ids) of each choice], completed): all of one request."""
        texts, ids, completed = defaultdict(str), defaultdict(list), None
        async with aclosing(self.events(fields, deadline)) as events:
            async for event in events:
                assert completed is None, "an event after the last"
                if isinstance(event, Completed):
                    completed = event
                elif isinstance(event, Delta):
                    texts[event.choice] += event.text
                    ids[event.choice] += [token.token_id for token in event.tokens]
        count = len(completed.choices)
        return [(texts[index], ids[index]) for index in range(count)], completed

    async def check_all_given_back(self):
        """Within a second nothing is held any more, and nothing runs."""
        async with asyncio.timeout(1):
            await self.background.settled()
        assert self.dispatcher.held == {}
        assert self.dispatcher.queued == set()
        assert self.legs.open_calls == 0
        assert len(self.leases) == 0
        assert {lease.lease_id for lease in self.transfer.released} == {
            *(lease_id for _, _, lease_id in self.legs.prefill_calls),
            *(handoff.lease.lease_id for handoff in self.legs.moved),
        }
        assert self.register.running == 0


def request(
    text="prompt", *, stop=(), request_id="", n=0, echo=False, bad_words=(), urgency=None,
    resume=None, **sampling,
):  # fmt: skip
    """A request's fields; `urgency` are those for the scheduler, `resume` a seed and the texts
    that came."""
    resume_from = resume and ResumeFrom(
        resume[0], tuple(tuple(map(ord, text)) for text in resume[1])
    )
    return RequestFields(
        TextPrompt(text),
        request_id,
        "",
        SamplingFields(**sampling),
        stop=tuple(stop),
        choices=n,
        echo=echo,
        bad_words=tuple(bad_words),
        resume_from=resume_from,
        **urgency or {},
    )
