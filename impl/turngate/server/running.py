"""What a command line needs to run the server by itself; applications use `asgi_app`."""

from turngate.server._app import App, backend_of
from turngate.server._security import for_address, is_loopback
from turngate.server._serving import listening
from turngate.server._serving import serve as serve_app

__all__ = ["App", "backend_of", "for_address", "is_loopback", "listening", "serve_app"]
