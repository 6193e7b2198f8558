"""OpenAI's endpoint that makes images of a prompt."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any, cast

import numpy as np
import orjson

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes
from slipstream.router.api.tensors.images.images_request import ImagesRequest
from slipstream.router.api.tensors.images.pixels import ImageFormat, can_encode, encoded, format_of, pixels_of
from slipstream.router.api.tensors.models.endpoint_call import EndpointCall, EndpointServer
from slipstream.router.api.tensors.models.endpoint_errors import invalid, misconfigured
from slipstream.router.api.tensors.models.model_caller import all_of
from slipstream.router.api.tensors.models.model_tensors import NUMBERS, TEXT
from slipstream.router.api.tensors.models.tensor_arrays import Array
from slipstream.router.api.tensors.text.text_source import text_array
from slipstream.router.config.endpoints_config import ImagesEndpoint
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request
from slipstream.router.process.random_bytes import random_bytes
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.model_spec import TensorSpec

PATH = "/v1/images/generations"
PROMPTS = ("text", "text_input")
IMAGES = ("image", "images", "generated_image")
MAX_SEED = 2**63 - 1
PIXELS = NUMBERS | {"UINT8", TEXT}  # datatypes of an output
OTHER_NAMES = {"steps": ("num_inference_steps",), "guidance": ("guidance_scale",)}


class ImagesApi:
    """Serves the endpoints of its kind."""

    def __init__(self, server: EndpointServer) -> None:
        self._server = server

    def add_to(self, routes: ApiRoutes) -> None:
        """Register the endpoint."""
        routes.add("POST", PATH, self.generations, body=ImagesRequest)

    async def generations(self, request: Request, exchange: ApiExchange) -> None:
        """Images of a prompt."""
        body = self._server.parse(request, exchange, ImagesRequest)
        async with self._server.call("images", body.model, request, exchange) as call:
            config = cast(ImagesEndpoint, call.config)
            form: ImageFormat = body.output_format or "png"
            if not can_encode(form):
                message = f"'output_format' {form} is not supported here; png is."
                raise HttpError(400, message, param="output_format", code="unsupported_parameter")
            if (body.n or 1) > config.max_images:
                raise invalid("n", f"must be at most {config.max_images}, got {body.n}")
            size = size_of(body, config)
            images = await ImageRun(call, config, body, size).images()
            files = await asyncio.to_thread(files_of, images, form, body.output_compression, call.endpoint.title)
            exchange.respond(200, await asyncio.to_thread(answer_of, files, body))


class ImageRun:
    """The calls of the model for one request."""

    def __init__(
        self, call: EndpointCall, config: ImagesEndpoint, body: ImagesRequest, size: tuple[int, int] | None
    ) -> None:
        self._call = call
        self._body = body
        self._size = size
        self._model = call.model()
        self._layout = call.layout(self._model)
        self._tensors = call.tensors(self._model, config.inputs)
        self._prompt = self._tensors.text_input("prompt", PROMPTS)
        self._output = self._tensors.output(config.output, PIXELS, IMAGES)

    async def images(self) -> list[Array | bytes]:
        """One for each that was asked for. Raises HttpError."""
        num_images = self._body.n or 1
        self._call.admit(num_images)
        most = self._layout.num_rows(self._prompt, 0)
        seed = self._body.seed if self._body.seed is not None else int.from_bytes(random_bytes(4), "little") >> 1
        parts = [self._part(seed + begin, min(most, num_images - begin)) for begin in range(0, num_images, most)]
        return [image for part in await all_of(parts) for image in part]

    async def _part(self, seed: int, num_rows: int) -> list[Array | bytes]:
        """Row i has the seed + i, so that the images of a request differ, and are the same in any batch."""
        body = self._body
        prompts = text_array([body.prompt] * num_rows)
        inputs = {self._prompt.name: self._layout.placed(self._prompt, prompts)}
        width, height = self._size or (None, None)
        values: dict[str, Any] = {
            "negative_prompt": body.negative_prompt,
            "width": width,
            "height": height,
            "steps": body.num_steps,
            "guidance": body.guidance_scale,
        }
        given_rows = {role: None if value is None else [value] * num_rows for role, value in values.items()}
        given_rows["seed"] = [(seed + index) & MAX_SEED for index in range(num_rows)]
        for role, given in given_rows.items():
            tensor = self._tensors.input_of(role, OTHER_NAMES.get(role, ()))
            if tensor is None:
                self._check_not_asked_for(role)
            elif given is not None or not tensor.is_optional:
                inputs[tensor.name] = self._layout.placed(tensor, typed(given or [""] * num_rows, tensor))
        output = (await self._model.infer(inputs, [self._output.name]))[self._output.name]
        if self._output.datatype == TEXT:
            return self._whole([bytes(file) for file in output.ravel()], num_rows)
        rows = self._layout.rows_of(self._output.name, output, num_rows)
        return self._whole(list(rows), num_rows)

    def _whole(self, images: list[Any], num_rows: int) -> list[Any]:
        if len(images) != num_rows:
            problem = f"output {self._output.name!r} has {len(images)} images for {num_rows} prompts"
            raise misconfigured(self._model.endpoint, problem)
        return images

    def _check_not_asked_for(self, role: str) -> None:
        """Raises HttpError 400 for a field of the request that the model has no input for."""
        body = self._body
        asked = {
            "negative_prompt": ("negative_prompt", body.negative_prompt),
            "steps": ("num_inference_steps" if body.steps is None else "steps", body.num_steps),
            "guidance": ("guidance_scale", body.guidance_scale),
            "seed": ("seed", body.seed),
        }
        param, value = asked.get(role, (role, None))
        if value is not None:
            message = f"'{param}' is not supported by this model."
            raise HttpError(400, message, param=param, code="unsupported_parameter")


def typed(values: list[Any], tensor: TensorSpec) -> Array:
    if tensor.datatype == TEXT:
        return text_array([str(value) for value in values])
    return np.array([value or 0 for value in values]).astype(DATATYPES[tensor.datatype].numpy_name or np.float32)


def size_of(body: ImagesRequest, config: ImagesEndpoint) -> tuple[int, int] | None:
    """Width and height; None: the model decides. Raises HttpError 400."""
    wanted = body.size if body.size not in (None, "auto") else (config.sizes[0] if config.sizes else None)
    if wanted is None:
        return None
    if wanted not in config.sizes:
        allowed = ", ".join(config.sizes) if config.sizes else "what the model decides"
        raise invalid("size", f"must be {allowed}, got {wanted[:64]!r}")
    width, _, height = wanted.partition("x")
    return int(width), int(height)


def files_of(images: list[Array | bytes], form: ImageFormat, compression: int | None, endpoint: str) -> list[bytes]:
    """Raises HttpError for what is no image."""
    files = []
    for image in images:
        if isinstance(image, bytes):
            if format_of(image) != form:
                found = format_of(image) or "none of png, webp and jpeg"
                raise misconfigured(endpoint, f"the model has encoded its image itself, as {found} and not {form}")
            files.append(image)
            continue
        try:
            files.append(encoded(pixels_of(image), form, compression))
        except ValueError as error:
            raise misconfigured(endpoint, f"its output {error}") from error
    return files


def answer_of(files: list[bytes], body: ImagesRequest) -> bytes:
    """With the files themselves, or with URLs that contain them, which a browser shows as any other."""
    form = body.output_format or "png"
    texts = [base64.b64encode(file).decode() for file in files]
    if body.response_format == "url":
        data = [{"url": f"data:image/{form};base64,{text}"} for text in texts]
    else:
        data = [{"b64_json": text} for text in texts]
    return orjson.dumps({"created": int(time.time()), "output_format": form, "data": data})
