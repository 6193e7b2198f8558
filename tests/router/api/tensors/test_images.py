"""`POST /v1/images/generations` over tensor models."""

from __future__ import annotations

import base64
import io
import zlib
from typing import Any

import numpy as np
import pytest

from slipstream.router.api.tensors.images import images_api
from slipstream.router.api.tensors.images.pixels import pixels_of, png
from slipstream.router.config.endpoints_config import EndpointsConfig, ImagesEndpoint
from slipstream.router.tensors.model_spec import TensorSpec
from tests.support.router.endpoint_site import Compute, computed, endpoint_site
from tests.support.router.fake_tensor_service import FakeTensorService, tensor_model
from tests.support.router.in_loop import in_loop

PROMPT = TensorSpec("prompt", "BYTES", (1,))
PATH = "/v1/images/generations"


def optional(name: str, datatype: str) -> TensorSpec:
    return TensorSpec(name, datatype, (1,), is_optional=True)


def painted(prompt: Any, width: Any, height: Any, seed: Any, **others: Any) -> dict[str, Any]:
    """Images of one shade, which is the seed."""
    size = (len(prompt), int(height.flat[0]), int(width.flat[0]), 3)
    return {"image": np.broadcast_to(seed.reshape(-1, 1, 1, 1), size).astype(np.uint8)}


def painter(compute: Compute = painted, **settings: Any) -> tuple[FakeTensorService, EndpointsConfig]:
    models = FakeTensorService()
    inputs = [PROMPT, *(optional(name, "INT32") for name in ("width", "height", "steps"))]
    inputs += [optional("seed", "INT64"), optional("negative_prompt", "BYTES")]
    models.add(tensor_model("paint", inputs, [TensorSpec("image", "UINT8", (-1, -1, 3))], 2), computed(compute))
    endpoint = ImagesEndpoint("paint", **{"sizes": ("8x4", "4x4"), **settings})
    return models, EndpointsConfig(images={"painter": endpoint})


def png_pixels(file: bytes) -> np.ndarray:
    """[height, width, channels] of a PNG without filters."""
    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    position, chunks = 8, dict[bytes, bytes]()
    while position < len(file):
        length = int.from_bytes(file[position : position + 4], "big")
        kind, data = file[position + 4 : position + 8], file[position + 8 : position + 8 + length]
        assert int.from_bytes(file[position + 8 + length : position + 12 + length], "big") == zlib.crc32(kind + data)
        chunks[kind] = data
        position += 12 + length
    width, height = (int.from_bytes(chunks[b"IHDR"][at : at + 4], "big") for at in (0, 4))
    channels = {0: 1, 2: 3, 6: 4}[chunks[b"IHDR"][9]]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)


@in_loop
async def test_each_image_has_a_seed_of_its_own() -> None:
    models, config = painter()
    async with endpoint_site(models, config) as site, site.client() as client:
        answer = await client.images.generate(model="painter", prompt="a cat", n=3, extra_body={"seed": 7, "steps": 5})
        assert answer.data is not None
        shades = [png_pixels(base64.b64decode(image.b64_json or "")) for image in answer.data]
        assert [(shade.shape, shade.min(), shade.max()) for shade in shades] == [
            ((4, 8, 3), seed, seed) for seed in (7, 8, 9)
        ]
        inputs = {tensor.name: tensor for tensor in models.submitted[0].request.inputs}
        assert inputs["steps"].shape == (2, 1)
        assert "negative_prompt" not in inputs
        assert [len(submission.request.inputs[0].view) for submission in models.submitted] == [18, 9]


@in_loop
async def test_a_size_is_one_of_those_that_are_allowed() -> None:
    models, config = painter()
    async with endpoint_site(models, config) as site, site.client() as client:
        answer = await client.images.generate(model="painter", prompt="a", size="4x4", response_format="b64_json")  # type: ignore[call-overload]
        assert png_pixels(base64.b64decode(answer.data[0].b64_json)).shape == (4, 4, 3)
        status, error = await site.error(PATH, {"model": "painter", "prompt": "a", "size": "9x9"})
        assert (status, error["message"]) == (400, "'size' must be 8x4, 4x4, got '9x9'.")


@in_loop
async def test_a_url_contains_the_image() -> None:
    models, config = painter()
    async with endpoint_site(models, config) as site:
        answer = await site.json("POST", PATH, {"model": "painter", "prompt": "a", "response_format": "url"})
        head, _, data = answer["data"][0]["url"].partition(",")
        assert head == "data:image/png;base64"
        assert png_pixels(base64.b64decode(data)).shape == (4, 8, 3)


@pytest.mark.parametrize("form", ["webp", "jpeg"])
def test_other_formats_are_those_of_pillow(form: str) -> None:
    image = pytest.importorskip("PIL.Image")

    @in_loop
    async def run() -> None:
        models, config = painter()
        async with endpoint_site(models, config) as site:
            body = {"model": "painter", "prompt": "a", "output_format": form, "output_compression": 100, "seed": 9}
            answer = await site.json("POST", PATH, body)
            file = image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"])))
            assert (file.format, file.size, answer["output_format"]) == (form.upper(), (8, 4), form)
            assert np.abs(np.asarray(file).astype(int) - 9).max() < 4

    run()


@pytest.mark.parametrize("field", ["steps", "num_inference_steps", "guidance_scale", "negative_prompt"])
def test_a_field_without_an_input_is_refused(field: str) -> None:
    @in_loop
    async def run() -> None:
        models, config = painter()
        inputs = [PROMPT, *(optional(name, "INT32") for name in ("width", "height")), optional("seed", "INT64")]
        outputs = [TensorSpec("image", "UINT8", (-1, -1, 3))]
        models.add(tensor_model("paint", inputs, outputs, 2), computed(painted))
        async with endpoint_site(models, config) as site:
            value = "blue" if field == "negative_prompt" else 3
            status, error = await site.error(PATH, {"model": "painter", "prompt": "a", field: value})
            assert (status, error["param"], error["code"]) == (400, field, "unsupported_parameter")

    run()


def test_without_pillow_a_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @in_loop
    async def run() -> None:
        monkeypatch.setattr(images_api, "can_encode", lambda form: form == "png")
        models, config = painter()
        async with endpoint_site(models, config) as site:
            status, error = await site.error(PATH, {"model": "painter", "prompt": "a", "output_format": "webp"})
            assert (status, error["code"]) == (400, "unsupported_parameter")
            await site.json("POST", PATH, {"model": "painter", "prompt": "a"})

    run()


@in_loop
async def test_a_field_that_the_model_has_no_input_for_is_refused() -> None:
    models, config = painter()
    async with endpoint_site(models, config) as site:
        status, error = await site.error(PATH, {"model": "painter", "prompt": "a", "guidance_scale": 3.0})
        assert (status, error["param"]) == (400, "guidance_scale")
        for field, value in (("n", 11), ("style", "loud"), ("prompt", ""), ("output_compression", 3)):
            status, error = await site.error(PATH, {"model": "painter", "prompt": "a", field: value})
            assert (status, error["param"]) == (400, field)


@in_loop
async def test_a_model_may_encode_its_images_itself() -> None:
    file = png(np.zeros((2, 2, 3), np.uint8))
    models = FakeTensorService()
    output = TensorSpec("image", "BYTES", (1,))
    models.add(tensor_model("own", [PROMPT], [output]), computed(lambda prompt: {"image": [file]}))
    async with endpoint_site(models, EndpointsConfig(images={"own": ImagesEndpoint()})) as site:
        answer = await site.json("POST", PATH, {"model": "own", "prompt": "a", "n": 2})
        assert [base64.b64decode(image["b64_json"]) for image in answer["data"]] == [file, file]
        if images_api.can_encode("webp"):
            status, error = await site.error(PATH, {"model": "own", "prompt": "a", "output_format": "webp"})
            assert (status, error["code"]) == (500, "endpoint_misconfigured")


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (np.full((2, 5, 3), 1.0, np.float32), (2, 5, 3, 255)),
        (np.full((3, 2, 5), 0.5, np.float32), (2, 5, 3, 128)),
        (np.full((4, 2, 5), -1.0, np.float32), (2, 5, 4, 0)),
        (np.full((2, 5), np.nan, np.float32), (2, 5, 1, 0)),
        (np.full((1, 2, 5), 300, np.int32), (2, 5, 1, 255)),
    ],
)
def test_pixels_are_bytes_with_channels_last(image: np.ndarray, expected: tuple[int, int, int, int]) -> None:
    pixels = pixels_of(image)
    assert (*pixels.shape, pixels.max()) == expected
    assert png_pixels(png(pixels)).tolist() == pixels.tolist()


def test_what_is_no_image_is_said() -> None:
    with pytest.raises(ValueError, match=r"shape \[2, 5, 7\]"):
        pixels_of(np.zeros((2, 5, 7), np.uint8))
