"""Turngate over HTTP: prompts, cancels, resumable events and a live page; extra ``turngate[server]``.

``turngate serve`` runs it by itself. To mount it into an application of yours::

    from turngate.server import asgi_app

    agent = asgi_app(dispatcher, token=...)
    app = FastAPI(lifespan=agent.lifespan)
    app.mount("/agent", agent)
"""

from turngate.server._app import App, asgi_app
from turngate.server._demo import demonstration
from turngate.server._limits import Limits
from turngate.server._serving import serve

__all__ = ["App", "Limits", "asgi_app", "demonstration", "serve"]
