"""The pages of computed prompts on their way from a simulated prefill worker to those that decode.

They begin to leave with the prompt's first chunk, layer by layer, while the next layers are computed. The last layer of
the last chunk goes last.
"""

from __future__ import annotations

from slipstream.cluster.tools.sim.engine.sim_attempt import AttemptState, SimAttempt
from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock
from slipstream.cluster.tools.sim.worker.worker_context import WorkerContext
from slipstream.router.protocol.messages import Failed


class PromptSends:
    def __init__(self, context: WorkerContext, clock: VirtualClock, num_layers: int, max_step_tokens: int) -> None:
        self._context = context
        self._clock = clock
        self._num_layers = num_layers
        self._max_step_tokens = max_step_tokens

    def begin(self, job: SimAttempt) -> None:
        """The first chunk of the prompt is being computed."""
        ticket, peer = job.ticket, job.peer
        if ticket is None or not ticket.num_pages or peer is None:
            return
        context = self._context
        last_chunk = min((job.num_uncomputed - 1) % self._max_step_tokens + 1, job.num_known)
        num_bytes = ticket.num_pages * context.page_bytes
        share = min(last_chunk / (ticket.num_pages * context.room.page_tokens), 1.0)
        job.tail_bytes = num_bytes * share / self._num_layers
        num_early_bytes = num_bytes - job.tail_bytes
        job.transfer = context.network.open(context.nic, peer.nic, num_early_bytes, self._sent, self._unreachable, job)

    def finish(self, job: SimAttempt) -> None:
        """The prompt is computed: the rest of its pages can leave."""
        job.state = AttemptState.SENDING
        if job.transfer is not None:
            self._context.network.finish(job.transfer, job.tail_bytes)
        else:
            self._clock.at(self._clock.now_s, self._nothing_to_send, job)

    def _nothing_to_send(self, job: SimAttempt) -> None:
        self._sent(job, 0.0)

    def _sent(self, job: SimAttempt, seconds: float) -> None:
        """The last page has arrived. Its room here is free, and the receiver may continue."""
        context = self._context
        if not context.is_alive or job.state is AttemptState.GONE:
            return
        job.transfer = None
        context.end(job)
        if job.peer is not None and job.peer.is_alive and job.ticket is not None:
            job.peer.landed(job.key, job.ticket, seconds)
        context.flush()

    def _unreachable(self, job: SimAttempt) -> None:
        """No page has got through for too long."""
        context = self._context
        job.transfer = None
        context.drop(job)
        name = job.peer.hello.worker.name if job.peer is not None else "the other end"
        context.say(Failed(*job.key, f"pages could not be sent: {name} is out of reach", True, is_unreachable=True))
        context.flush()
