"""`POST /v1/audio/transcriptions` and `/v1/audio/translations` over tensor models."""

from __future__ import annotations

import hashlib
import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import openai
import orjson
import pytest

from slipstream.router.api.tensors.audio import audio_file, transcriptions_api
from slipstream.router.api.tensors.audio.audio_file import Audio, read_audio
from slipstream.router.api.tensors.audio.transcript import GrowingText, joined
from slipstream.router.api.tensors.models.model_caller import MAX_CALLS
from slipstream.router.api.tensors.models.tensor_arrays import array_of
from slipstream.router.config.endpoints_config import EndpointsConfig, TranscriptionsEndpoint
from slipstream.router.tensors.model_spec import TensorSpec
from tests.support.router.endpoint_site import computed, endpoint_site, respond
from tests.support.router.fake_tensor_service import FakeSubmission, FakeTensorService, tensor_model
from tests.support.router.in_loop import in_loop

SAMPLES = TensorSpec("audio", "FP32", (-1,))
TEXT = TensorSpec("text", "BYTES", (-1,))
TIMES = [TensorSpec("start", "FP32", (-1,)), TensorSpec("end", "FP32", (-1,))]
RATE = 16_000


def tone(seconds: float, rate: int = RATE, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def wav(samples: np.ndarray, rate: int = RATE, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(np.repeat((samples * 32767).astype("<i2"), channels).tobytes())
    return file.getvalue()


def silence_of_many_channels() -> bytes:
    """What a client may send to have much memory taken."""
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, np.zeros((RATE * 3, 8), np.float32), RATE, format="FLAC")
    return file.getvalue()


def test_a_small_file_of_much_silence_takes_no_more_memory_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_file, "MAX_FRAMES", RATE)
    file = silence_of_many_channels()
    assert len(file) < 20_000
    with pytest.raises(audio_file.AudioError, match="is longer than 1 s"):
        audio_file.read_audio(file, 3600.0)


@in_loop
async def test_few_windows_of_a_request_are_computed_at_a_time() -> None:
    models, config = speech(window_s=0.1)
    most = 0

    def counted(submission: FakeSubmission) -> None:
        nonlocal most
        most = max(most, len(models.running))
        computed(heard)(submission)

    models.answers["whisper"] = counted
    async with endpoint_site(models, config) as site, site.client() as client:
        await client.audio.transcriptions.create(model="whisper", file=wav(tone(3.0)))
        assert (len(models.submitted), most) == (30, MAX_CALLS)


FORM = "multipart/form-data; boundary=x"


def form_of(**fields: str | bytes) -> bytes:
    parts = []
    for name, value in fields.items():
        data = value.encode() if isinstance(value, str) else value
        filename = '; filename="a"' if name == "file" else ""
        head = f'--x\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'
        parts.append(head.encode() + data + b"\r\n")
    return b"".join(parts) + b"--x--\r\n"


def optional(name: str, datatype: str = "BYTES") -> TensorSpec:
    return TensorSpec(name, datatype, (1,), is_optional=True)


def heard(audio: Any, **others: Any) -> dict[str, Any]:
    """Tells how long the audio is, and what else was given, in two segments."""
    seconds = audio.size / RATE
    said = [one.ravel()[0] for one in others.values()]
    words = [one.decode() if isinstance(one, bytes) else f"{one:g}" for one in said]
    texts = [f" {seconds:g} s", f" {'/'.join(words)}"]
    times = {"start": [[0, seconds / 2]], "end": [[seconds / 2, seconds]]}
    return {"text": [texts], **{name: np.array(value, np.float32) for name, value in times.items()}}


def speech(
    *more: TensorSpec, has_times: bool = True, samples: TensorSpec = SAMPLES, **settings: Any
) -> tuple[FakeTensorService, EndpointsConfig]:
    models = FakeTensorService()
    outputs = [TEXT, *(TIMES if has_times else [])]
    models.add(tensor_model("whisper", [samples, *more], outputs, max_batch_size=4), computed(heard))
    return models, EndpointsConfig(transcriptions={"whisper": TranscriptionsEndpoint(**settings)})


def heard_samples(models: FakeTensorService, index: int = 0) -> np.ndarray:
    return array_of(models.submitted[index].request.inputs[0]).ravel()


@in_loop
async def test_a_file_becomes_samples_and_its_text_comes_back() -> None:
    models, config = speech(optional("language"), optional("temperature", "FP32"))
    async with endpoint_site(models, config) as site, site.client() as client:
        samples = tone(0.5)
        answer = await client.audio.transcriptions.create(
            model="whisper", file=("a.wav", wav(samples)), language="de", temperature=0.25
        )
        assert answer.text == "0.5 s de/0.25"
        assert heard_samples(models) == pytest.approx(samples, abs=1e-4)
        assert models.submitted[0].request.inputs[0].shape == (1, 8000)


@in_loop
async def test_a_text_has_the_forms_that_clients_ask_for() -> None:
    models, config = speech(optional("language"))
    async with endpoint_site(models, config) as site, site.client() as client:
        file = wav(tone(2.0))
        create = client.audio.transcriptions.create
        assert await create(model="whisper", file=file, response_format="text", language="en") == "2 s en\n"
        srt = await create(model="whisper", file=file, response_format="srt", language="en")
        assert srt == "1\n00:00:00,000 --> 00:00:01,000\n2 s\n\n2\n00:00:01,000 --> 00:00:02,000\nen\n"
        vtt = await create(model="whisper", file=file, response_format="vtt", language="en")
        assert vtt == "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n2 s\n\n00:00:01.000 --> 00:00:02.000\nen\n"
        verbose = await create(
            model="whisper",
            file=file,
            response_format="verbose_json",
            language="en",
            timestamp_granularities=["segment"],
        )
        assert (verbose.duration, verbose.language, verbose.text) == (2.0, "en", "2 s en")
        assert verbose.segments is not None
        assert [(one.start, one.end, one.text) for one in verbose.segments] == [(0, 1, " 2 s"), (1, 2, " en")]


@in_loop
async def test_audio_is_mixed_to_one_channel_at_the_rate_of_the_model() -> None:
    models, config = speech()
    async with endpoint_site(models, config) as site, site.client() as client:
        file = wav(tone(1.0, 44_100), 44_100, channels=2)
        await client.audio.transcriptions.create(model="whisper", file=file)
        samples = heard_samples(models)
        assert len(samples) == RATE
        assert samples[100:-100] == pytest.approx(tone(1.0)[100:-100], abs=2e-3)


@in_loop
async def test_long_audio_is_cut_into_windows_with_times_of_the_whole() -> None:
    models, config = speech(optional("length", "INT32"), window_s=1.0)
    async with endpoint_site(models, config) as site, site.client() as client:
        verbose = await client.audio.transcriptions.create(
            model="whisper", file=wav(tone(2.5)), response_format="verbose_json"
        )
        assert [submission.request.inputs[0].shape[1] for submission in models.submitted] == [16000, 16000, 8000]
        assert verbose.text == "1 s 16000 1 s 16000 0.5 s 8000"
        assert verbose.segments is not None
        assert [one.start for one in verbose.segments] == [0, 0.5, 1, 1.5, 2, 2.25]


@in_loop
async def test_a_model_of_fixed_length_gets_filled_windows() -> None:
    models, config = speech(has_times=False, samples=TensorSpec("audio", "FP32", (8000,)))
    async with endpoint_site(models, config) as site, site.client() as client:
        await client.audio.transcriptions.create(model="whisper", file=wav(tone(0.75)))
        assert [submission.request.inputs[0].shape for submission in models.submitted] == [(1, 8000), (1, 8000)]
        assert not heard_samples(models, 1)[4000:].any()


@in_loop
async def test_a_stream_has_an_event_for_each_response() -> None:
    def words(submission: FakeSubmission) -> None:
        for word in ("one", "two"):
            respond(submission, {"text": [[word]]}, is_final=False)
        submission.complete()

    models = FakeTensorService()
    models.add(tensor_model("whisper", [SAMPLES], [TEXT], 4, is_decoupled=True), words)
    config = EndpointsConfig(transcriptions={"whisper": TranscriptionsEndpoint(window_s=1.0)})
    async with endpoint_site(models, config) as site, site.client() as client:
        stream = await client.audio.transcriptions.create(model="whisper", file=wav(tone(1.5)), stream=True)
        events = [event async for event in stream]
        deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
        assert deltas == ["one", " two", " one", " two"]
        assert events[-1].type == "transcript.text.done"
        assert events[-1].text == "one two one two"
        whole = await client.audio.transcriptions.create(model="whisper", file=wav(tone(0.5)))
        assert whole.text == "one two"


@in_loop
async def test_a_translation_is_for_models_that_have_a_task() -> None:
    models, config = speech(optional("task"))
    async with endpoint_site(models, config) as site, site.client() as client:
        status, _, answer = await site.call(
            "POST", "/v1/audio/translations", form_of(model="whisper", file=wav(tone(0.5))), {"Content-Type": FORM}
        )
        assert (status, orjson.loads(answer)["text"]) == (200, "0.5 s translate")
        assert (await client.audio.transcriptions.create(model="whisper", file=wav(tone(0.5)))).text.endswith("scribe")
    models, config = speech()
    async with endpoint_site(models, config) as site:
        body = form_of(model="whisper", file=wav(tone(0.5)))
        status, _, answer = await site.call("POST", "/v1/audio/translations", body, {"Content-Type": FORM})
        assert (status, orjson.loads(answer)["error"]["param"]) == (400, "model")


@in_loop
async def test_a_model_may_take_the_file_itself() -> None:
    models = FakeTensorService()
    compute = computed(lambda file: {"text": [[f"{len(file.ravel()[0])} bytes"]]})
    models.add(tensor_model("own", [TensorSpec("file", "BYTES", (1,))], [TEXT], 4), compute)
    config = EndpointsConfig(transcriptions={"own": TranscriptionsEndpoint(inputs={"audio": "file"})})
    async with endpoint_site(models, config) as site, site.client() as client:
        answer = await client.audio.transcriptions.create(model="own", file=("a.bin", b"12345"))
        assert answer.text == "5 bytes"


@pytest.mark.parametrize("form", ["FLAC", "OGG", "MP3"])
def test_other_formats_are_read_by_a_library(form: str) -> None:
    soundfile = pytest.importorskip("soundfile")

    @in_loop
    async def run() -> None:
        models, config = speech()
        file = io.BytesIO()
        soundfile.write(file, tone(0.5), RATE, format=form)
        async with endpoint_site(models, config) as site, site.client() as client:
            await client.audio.transcriptions.create(model="whisper", file=("a", file.getvalue()))
            assert heard_samples(models)[2000:6000].std() == pytest.approx(0.5 / np.sqrt(2), rel=0.05)

    run()


def extensible(samples: np.ndarray, bits: int, tag: int) -> bytes:
    """WAVE whose format says at its end what it is."""
    frame = bits // 8
    head = b"".join(value.to_bytes(size, "little") for value, size in ((0xFFFE, 2), (1, 2), (RATE, 4)))
    head += b"".join(value.to_bytes(size, "little") for value, size in ((RATE * frame, 4), (frame, 2), (bits, 2)))
    head += (22).to_bytes(2, "little") + bits.to_bytes(2, "little") + bytes(4) + tag.to_bytes(2, "little") + bytes(14)
    data = samples.tobytes()
    chunks = b"fmt " + len(head).to_bytes(4, "little") + head + b"LIST\x03\0\0\0abc\0"
    return b"RIFF\0\0\0\0WAVE" + chunks + b"data" + len(data).to_bytes(4, "little") + data


@pytest.mark.parametrize(
    ("samples", "bits", "tag"),
    [
        (tone(0.1), 32, 3),
        (tone(0.1).astype("<f8"), 64, 3),
        ((tone(0.1) * 127 + 128).astype(np.uint8), 8, 1),
        ((tone(0.1).astype(np.float64) * 2**31).astype("<i4"), 32, 1),
        ((tone(0.1).astype(np.float64) * 2**31).astype("<i4").view(np.uint8).reshape(-1, 4)[:, 1:].copy(), 24, 1),
    ],
)
def test_all_widths_of_samples_are_read(samples: np.ndarray, bits: int, tag: int) -> None:
    @in_loop
    async def run() -> None:
        models, config = speech()
        async with endpoint_site(models, config) as site, site.client() as client:
            await client.audio.transcriptions.create(model="whisper", file=extensible(samples, bits, tag))
            assert heard_samples(models) == pytest.approx(tone(0.1), abs=0.02)

    run()


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({}, "file", "Missing required parameter: 'file'."),
        ({"file": b"noise"}, "file", "'file' is no audio that can be read"),
        (
            {"file": b"\x1aE\xdf\xa3 video"},
            "file",
            "'file' is webm, which cannot be read; wav, flac, ogg and mp3 can (Form",
        ),
        ({"file": b"RIFF\0\0\0\0WAVEdata\0\0\0\0"}, "file", "'file' is WAVE without a format or without data."),
        ({"file": wav(tone(0))}, "file", "'file' has no samples."),
        ({"file": wav(tone(3))}, "file", "'file' is longer than 2 s."),
        ({"file": b"", "response_format": "diarized_json"}, "response_format", "must be one of json, text"),
        ({"file": b"", "temperature": "hot"}, "temperature", "'temperature' must be a number from 0 to 1, got 'hot'."),
        ({"file": b"", "stream": "perhaps"}, "stream", "'stream' must be true or false, got 'perhaps'."),
        (
            {"file": b"", "timestamp_granularities[]": "word"},
            "timestamp_granularities",
            "'timestamp_granularities' 'word' is not supported; accepted: segment.",
        ),
    ],
)
def test_a_wrong_form_is_a_400_that_names_the_field(fields: dict[str, Any], param: str, text: str) -> None:
    if text.endswith("read") or "webm" in text:
        pytest.importorskip("soundfile")

    @in_loop
    async def run() -> None:
        models, config = speech(max_audio_s=2.0)
        async with endpoint_site(models, config) as site:
            body = form_of(model="whisper", **fields)
            path = "/v1/audio/transcriptions"
            status, _, answer = await site.call("POST", path, body, {"Content-Type": FORM})
            error = orjson.loads(answer)["error"]
            assert (status, error["param"]) == (400, param)
            assert text in error["message"]

    run()


@in_loop
async def test_windows_are_counted_and_a_body_that_is_no_form_is_refused() -> None:
    models, config = speech(window_s=1.0)
    async with endpoint_site(models, config) as site, site.client() as client:
        await client.audio.transcriptions.create(model="whisper", file=wav(tone(2.5)))
        _, _, page = await site.call("GET", "/metrics")
        labels = '{endpoint="transcriptions",model_name="whisper"}'
        assert f"slipstream:endpoint_inputs_total{labels} 3.0" in page.decode()
        status, _, _ = await site.call("POST", "/v1/audio/transcriptions", {"model": "whisper"})
        assert status == 415


@pytest.mark.parametrize(
    ("texts", "deltas"),
    [
        ([" one", " two", "three ", "four"], ["one", " two", " three", " four"]),
        (["  ", "\n", "one  ", "  two "], ["", "", "one", "    two"]),
    ],
)
def test_the_texts_of_segments_grow_to_the_whole_text(texts: list[str], deltas: list[str]) -> None:
    text = GrowingText()
    assert [text.add(one) for one in texts] == deltas
    assert joined(texts) == "".join(deltas)


@in_loop
async def test_a_key_that_is_over_its_limit_has_no_file_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    def read(data: bytes, max_s: float) -> Audio:
        decoded.append(len(data))
        return read_audio(data, max_s)

    monkeypatch.setattr(transcriptions_api, "read_audio", read)
    models, config = speech()
    keys = tmp_path / "keys.yaml"
    secret = hashlib.sha256(b"one").hexdigest()
    keys.write_text(f"keys: [{{name: one, sha256: {secret}, requests_per_minute: 1}}]")
    keys.chmod(0o600)
    async with endpoint_site(models, config, keys=keys) as site, site.client("one") as client:
        await client.audio.transcriptions.create(model="whisper", file=wav(tone(0.1)))
        with pytest.raises(openai.RateLimitError):
            await client.audio.transcriptions.create(model="whisper", file=wav(tone(0.1)))
    assert len(decoded) == 1
