"""A FastAPI application as the front of a cluster: it has its own paths and rules, and hands chats to the router.

ROUTER=http://127.0.0.1:8000 PYTHONPATH=docs/examples uvicorn fastapi_front:app --port 9000
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from front_client import RouterClient


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.router = RouterClient(os.environ["ROUTER"], os.environ.get("ROUTER_KEY", ""))
    yield
    await app.state.router.close()


app = FastAPI(lifespan=lifespan)


@app.get("/hello")
async def hello() -> dict[str, str]:
    return {"hello": "world"}


@app.post("/v1/chat/completions")
async def chat(request: Request) -> StreamingResponse:
    body = await request.body()
    if len(body) > 100_000:
        raise HTTPException(413, "this front takes at most 100,000 bytes")
    try:
        answer = await request.app.state.router.send(
            "/v1/chat/completions", body, request.headers.get("x-request-id", "")
        )
    except httpx.TransportError as error:
        raise HTTPException(502, f"the router does not answer: {error!r}") from error
    return StreamingResponse(answer.parts, answer.status, answer.headers)
