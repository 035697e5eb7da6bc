"""The API server: `create_app` puts the parts together.

`felix serve` puts it behind `server.web.connections`, which limits connections. The process has
no state that another one would need, so any number may serve one database. It refuses to start on
a database of another schema.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Collection, Mapping

import anyio
import fastapi
from starlette import routing

from felix import version
from server import cache, folders, notifications, upkeep
from server import settings as settings_module
from server.api import document
from server.api import events as event_routes
from server.dashboard import routers as dashboard
from server.database import database, models, schema
from server.parsing import parser
from server.store import blobs, statements
from server.web import dependencies, middleware, problems
from server.web import metrics as web_metrics

#: Workloads that are parsed at the same time.
PARSE_AT_ONCE = 2

#: How long a key that was read from the database is trusted, in seconds.
KEY_TTL_S = 5.0


def create_app(settings: settings_module.Settings | None = None) -> fastapi.FastAPI:
    """The application.

    Args:
        settings: None: from the environment.

    Raises:
        SettingsError: an environment variable makes no sense.
        SchemaMismatch: the database has another schema; the message says the command.
    """
    settings = settings or settings_module.Settings.from_environment()
    services = _services(settings)
    schema.check(services.unrestricted_db)
    metrics = web_metrics.Metrics(services.unrestricted_db, settings.stale_s)
    app = fastapi.FastAPI(
        title="Felix",
        version=version.__version__,
        description=document.TEXT,
        lifespan=_lifespan,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        routes=_routes(),
    )
    app.state.services, app.state.metrics = services, metrics
    problems.install(app)
    app.add_middleware(middleware.KnownCallers, services=services)
    app.add_middleware(
        middleware.Envelope,
        metrics=metrics,
        is_https=services.is_https,
        invalidate=services.invalidate_caches,
    )
    app.add_middleware(middleware.TrustedProxies, trusted=settings.trusted_proxies)
    app.openapi = lambda: document.document(app)  # type: ignore[method-assign]
    return app


@functools.cache
def _routes() -> list[routing.BaseRoute]:
    """Those of the API and of the pages; FastAPI analyses each once, so all apps share them."""
    root = fastapi.APIRouter()
    for router in document.ROUTERS:
        root.include_router(router, responses=document.PROBLEMS)
    for router in dashboard.ALL:
        root.include_router(router)
    return root.routes


def _services(settings: settings_module.Settings) -> dependencies.Services:
    folders.tighten(settings.data_dir)
    db = database.Database(settings.database)

    def last_seqs(job_ids: Collection[int]) -> Mapping[int, int]:
        with db.read() as tx:
            return statements.by_number(tx, models.Job.id, models.Job.last_seq, job_ids)

    ttl_s = settings.cache_ttl_s
    responses = cache.ResponseCache(ttl_s)
    return dependencies.Services(
        settings=settings,
        unrestricted_db=db,
        blobs=blobs.open_store(settings.blobs, settings.s3_endpoint),
        parser=parser.Parser(settings.parse_s, settings.parse_bytes, PARSE_AT_ONCE),
        notifier=cache.Notifier(last_seqs),
        stream_chunks=cache.SingleFlight(),
        visible_jobs=cache.VisibleJobs(db),
        response_cache=responses,
        recent_events=cache.RecentEvents(db, event_routes.encode, ttl_s, responses.invalidate),
        key_cache=cache.SingleFlight(KEY_TTL_S),
        throttle=dependencies.Throttle(),
        parse_limiter=anyio.CapacityLimiter(PARSE_AT_ONCE),
    )


@contextlib.asynccontextmanager
async def _lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
    services: dependencies.Services = app.state.services
    settings = services.settings
    services.parser.warm()
    db = services.unrestricted_db
    reap = functools.partial(upkeep.reap, db, settings.max_attempts)
    clean = functools.partial(upkeep.clean, db, services.blobs, settings.retention_days)
    upkeeping = (
        upkeep.Loop("reap", reap, settings.reap_s),
        upkeep.Loop("clean", clean, settings.clean_s),
    )
    sending = notifications.Sender(settings.webhook_allow_private)
    delivering = notifications.Deliverer(db, sending, settings.webhook_poll_s)
    loops = [asyncio.create_task(each.run()) for each in (services.notifier, delivering)]
    try:
        yield
    finally:
        services.notifier.close()
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        for each in upkeeping:
            each.close()
        db.close()
