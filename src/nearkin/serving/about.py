"""Routes that say what is served: /health, /index."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from nearkin.index.layout import NAME as LAYOUT
from nearkin.serving import schemas
from nearkin.serving.service import Service


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> schemas.Health:
        """Whether the server works, without a key."""
        return schemas.Health(status="ok", items=await service.read(len, service.index))

    @routes.get("/index")
    async def index() -> schemas.About:
        """What the index holds and can be asked."""
        return await service.read(_about, service)

    return routes


def _about(service: Service) -> schemas.About:
    status, counts, settings = service.index.status(), service.overview(), service.settings
    return schemas.About(
        name=service.index.path.name,
        items=counts.items,
        labelled=counts.labelled,
        labels=[schemas.LabelCount(label=label, items=n) for label, n in counts.labels],
        columns=[
            schemas.Column(name=each.name, kind="number" if each.is_number else "text", min=each.least, max=each.most)
            for each in counts.columns
        ],
        distance=status.distance,
        dim=status.dim,
        calibrated=status.calibration is not None,
        encoder=status.encoder,
        engine=dict(status.engine),
        calibration=None if status.calibration is None else asdict(status.calibration),
        limits=schemas.Limits(bytes=settings.max_bytes, pixels=settings.max_pixels, k=settings.max_k),
        read_only=settings.read_only,
        failed=len(status.failed),
        map=(service.index.path / LAYOUT).exists(),
    )
