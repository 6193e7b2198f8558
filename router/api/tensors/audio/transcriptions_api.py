"""OpenAI's endpoints that make text of speech."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Literal, cast

import orjson

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.generation.answer.answer import EVENT_STREAM, STREAM_HEADERS
from slipstream.router.api.tensors.audio.audio_file import Audio, AudioError, read_audio
from slipstream.router.api.tensors.audio.resampling import resampled
from slipstream.router.api.tensors.audio.speech_run import SpeechRun
from slipstream.router.api.tensors.audio.transcript import GrowingText, Segment, Transcript
from slipstream.router.api.tensors.audio.transcription_form import TranscriptionForm
from slipstream.router.api.tensors.models.endpoint_call import EndpointServer
from slipstream.router.api.tensors.models.endpoint_errors import invalid
from slipstream.router.api.tensors.models.model_caller import all_of
from slipstream.router.config.endpoints_config import TranscriptionsEndpoint
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request

PATH = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
MAX_DECODING = 4  # files at a time: a small one may take some GiB meanwhile

Task = Literal["transcribe", "translate"]


class TranscriptionsApi:
    """Serves the endpoints of its kind."""

    def __init__(self, server: EndpointServer) -> None:
        self._server = server
        self._decoding = asyncio.Semaphore(MAX_DECODING)

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoints."""
        routes.add("POST", PATH, self.transcriptions)
        routes.add("POST", TRANSLATIONS, self.translations)

    async def transcriptions(self, request: Request, exchange: ApiExchange) -> None:
        """The text of speech, in its own language."""
        await self._serve(request, exchange, "transcribe")

    async def translations(self, request: Request, exchange: ApiExchange) -> None:
        """The text of speech, in English."""
        await self._serve(request, exchange, "translate")

    async def _serve(self, request: Request, exchange: ApiExchange, task: Task) -> None:
        form = await asyncio.to_thread(TranscriptionForm.of, request)
        async with self._server.call("transcriptions", form.model, request, exchange) as call:
            config = cast(TranscriptionsEndpoint, call.config)
            run = SpeechRun(call, config, form, task)
            call.admit(0)  # before the file is decoded, which takes time and memory
            audio = await self._audio(form, config, run)
            work = SpeechWork(run, form, audio, config)
            call.count_inputs(work.num_calls)
            transcript = Transcript(audio.duration_s if audio is not None else 0.0, task)
            if form.stream:
                await work.stream(exchange, transcript)
                return
            transcript.segments = await work.all_segments()
            transcript.language = run.language
            body, content_type = transcript.shown(form.response_format)
            exchange.respond(200, body, content_type)

    async def _audio(self, form: TranscriptionForm, config: TranscriptionsEndpoint, run: SpeechRun) -> Audio | None:
        """None: the model takes the file. Raises HttpError 400 for one that cannot be read."""
        if not run.takes_samples:
            return None

        def read() -> Audio:
            audio = read_audio(form.file.data, config.max_audio_s)
            return Audio(resampled(audio.samples, audio.rate, config.sample_rate), config.sample_rate)

        try:
            async with self._decoding:
                return await asyncio.to_thread(read)
        except AudioError as error:
            raise invalid("file", str(error)) from error


class SpeechWork:
    """What is to be computed for a request: windows of samples, or a file."""

    def __init__(
        self, run: SpeechRun, form: TranscriptionForm, audio: Audio | None, config: TranscriptionsEndpoint
    ) -> None:
        self._run = run
        self._file = form.file
        self._rate = config.sample_rate
        self._windows = run.windows(audio.samples) if audio is not None else []

    @property
    def num_calls(self) -> int:
        return len(self._windows) or 1

    async def all_segments(self) -> list[Segment]:
        """Windows are computed side by side."""

        async def collected(responses: AsyncGenerator[list[Segment], None]) -> list[Segment]:
            async with contextlib.aclosing(responses):
                return [segment async for segments in responses for segment in segments]

        parts = await all_of([collected(responses) for responses in self._calls()])
        return [segment for part in parts for segment in part]

    async def stream(self, exchange: ApiExchange, transcript: Transcript) -> None:
        """An event for each response of the model, window after window, and one with the whole text."""
        exchange.start(200, EVENT_STREAM, STREAM_HEADERS)
        text = GrowingText()
        try:
            for responses in self._calls():
                async with contextlib.aclosing(responses):
                    async for segments in responses:
                        transcript.segments += segments
                        delta = "".join([text.add(segment.text) for segment in segments])
                        if delta:
                            exchange.write(event({"type": "transcript.text.delta", "delta": delta}))
                        if exchange.congested:
                            await exchange.drain()
            done = {"type": "transcript.text.done", "text": transcript.text, "usage": transcript.usage}
            exchange.finish(event(done))
        except HttpError as error:
            if not exchange.head_sent:
                raise
            exchange.finish(b"data: " + error.body() + b"\n\n")

    def _calls(self) -> list[AsyncGenerator[list[Segment], None]]:
        if not self._run.takes_samples:
            return [self._run.of_file(bytes(self._file.data))]
        calls, begin = [], 0
        for window in self._windows:
            calls.append(self._run.of_window(window, begin / self._rate))
            begin += len(window)
        return calls


def event(fields: object) -> bytes:
    return b"data: " + orjson.dumps(fields) + b"\n\n"
