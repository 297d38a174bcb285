"""The web application: predictions as JSON, a page, health and metrics."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from torch import Tensor

from comatch.classifier import TrainedClassifier
from comatch.commands.serve import Address, Limits
from comatch.commands.serve.batches import Batches, BusyError
from comatch.commands.serve.security import Guard, LimitBody, error
from comatch.data.images import ImageError, read_upload

PAGE = Path(__file__).with_name("page.html")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'nonce-{nonce}'",
        "style-src 'nonce-{nonce}'",
        "img-src blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)  # of the histogram


Answer = Callable[[Request], Awaitable[dict[str, Any]]]


class Upload(NamedTuple):
    """A file of a form."""

    name: str
    content: bytes


class Metrics:
    """What Prometheus reads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        names = ("path", "status")
        self.requests = Counter("comatch_requests", "Requests", names, registry=own)
        self.images = Counter(
            "comatch_images", "Images by predicted class", ("label",), registry=own
        )
        self.refused = Counter("comatch_images_refused", "Files that are no image", registry=own)
        self.seconds = Histogram(
            "comatch_request_seconds", "Time of a request", buckets=SECONDS, registry=own
        )
        self.running = Gauge("comatch_requests_running", "Requests in progress", registry=own)


def build_app(classifier: TrainedClassifier, address: Address, limits: Limits) -> Starlette:
    """The application that serves one classifier."""
    service = Service(classifier, limits)
    return Starlette(
        routes=[
            Route("/", service.page),
            Route("/health", service.health),
            Route("/metrics", service.metrics_text),
            Route("/predict", service.predict, methods=["POST"]),
            Route("/predict/batch", service.predict_batch, methods=["POST"]),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=address.names, www_redirect=False),
            Middleware(Guard, token=address.token),
            Middleware(LimitBody, most=limits.bytes),
        ],
        exception_handlers={HTTPException: failed, Exception: broken},
        lifespan=service.lifespan,
    )


async def failed(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    answer = error(failure.status_code, failure.detail)
    answer.headers.update(failure.headers or {})
    return answer


async def broken(request: Request, failure: Exception) -> Response:
    return error(500, "the server failed: its log says why")


class Service:
    """The answers of one classifier."""

    def __init__(self, classifier: TrainedClassifier, limits: Limits) -> None:
        self.classifier, self.limits = classifier, limits
        self.metrics = Metrics()
        self.batches = Batches(classifier, limits.waiting)
        self.decoding = asyncio.Semaphore(os.cpu_count() or 1)  # decoded images take memory

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self.batches.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    # ------------------------------------------------------------------------- answers

    async def page(self, request: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        headers = {
            "Content-Security-Policy": POLICY.format(nonce=nonce),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return HTMLResponse(PAGE.read_text().replace("NONCE", nonce), headers=headers)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics_text(self, request: Request) -> Response:
        text = generate_latest(self.metrics.registry)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def predict(self, request: Request) -> Response:
        """One image, as the body or as the file of a form, and its prediction."""
        return await self.timed(request, self.answer_one)

    async def predict_batch(self, request: Request) -> Response:
        """The files of a form, and the prediction or the error of each."""
        return await self.timed(request, self.answer_batch)

    async def timed(self, request: Request, answer: Answer) -> Response:
        """The answer, or why there is none, counted for the metrics."""
        began, status = time.perf_counter(), 500
        self.metrics.running.inc()
        try:
            try:
                response: Response = JSONResponse(await answer(request))
            except HTTPException as failure:
                response = await failed(request, failure)
            except BusyError:
                response = error(503, "too many images are waiting: try again later")
            except ClientDisconnect:
                response = error(400, "the connection was cut")
            status = response.status_code
            return response
        finally:
            self.metrics.running.dec()
            self.metrics.requests.labels(request.url.path, str(status)).inc()
            self.metrics.seconds.observe(time.perf_counter() - began)

    async def answer_one(self, request: Request) -> dict[str, Any]:
        async with self.time_limit(408, "the request took too long to arrive"):
            if request.headers.get("content-type", "").startswith("multipart/"):
                uploads = await self.files(request)
                if len(uploads) != 1:
                    raise HTTPException(400, "send one image, or several to /predict/batch")
                content = uploads[0].content
            else:
                content = await request.body()
        async with self.time_limit(503, "the server was too slow: try again later"):
            try:
                return self.record(await self.classify(content))
            except ImageError as why:
                raise HTTPException(422, f"the image cannot be read: {why}") from None

    async def answer_batch(self, request: Request) -> dict[str, Any]:
        async with self.time_limit(408, "the request took too long to arrive"):
            uploads = await self.files(request)
        if not uploads:
            raise HTTPException(400, "send images as the files of a form (multipart/form-data)")
        async with self.time_limit(503, "the server was too slow: try again later"):
            tasks = (self.classify(upload.content) for upload in uploads)
            found = await asyncio.gather(*tasks, return_exceptions=True)
        records = []
        for upload, p in zip(uploads, found, strict=True):
            if isinstance(p, ImageError):
                records.append({"name": upload.name, "error": str(p)})
            elif isinstance(p, BaseException):
                raise p
            else:
                records.append({"name": upload.name, **self.record(p)})
        return {"predictions": records}

    @asynccontextmanager
    async def time_limit(self, status: int, message: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.limits.seconds):
                yield
        except TimeoutError:
            raise HTTPException(status, message) from None

    async def files(self, request: Request) -> list[Upload]:
        """The files of a form."""
        async with request.form(max_files=self.limits.images, max_fields=10) as form:
            return [
                Upload(value.filename or "", await value.read())
                for _, value in form.multi_items()
                if isinstance(value, UploadFile)
            ]

    async def classify(self, content: bytes) -> Tensor:  # [C]
        size, side = self.classifier.image_size, self.classifier.resize
        try:
            async with self.decoding:
                pixels = await run_in_threadpool(
                    read_upload, content, size, side, self.limits.pixels
                )
        except ImageError:
            self.metrics.refused.inc()
            raise
        p = await self.batches.predict(pixels)
        self.metrics.images.labels(self.classifier.classes[int(p.argmax())]).inc()
        return p

    def record(self, p: Tensor) -> dict[str, Any]:
        best = int(p.argmax())
        shares = [round(share, 6) for share in p.tolist()]
        return {
            "label": self.classifier.classes[best],
            "probability": shares[best],
            "probabilities": dict(zip(self.classifier.classes, shares, strict=True)),
        }
