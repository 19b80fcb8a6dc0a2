"""Small health endpoint of a worker rank: 503 until the head is warmed, then 200."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .errors import EngineError


class HealthServer:
    """Serves /health from a thread."""

    def __init__(self, host: str, port: int) -> None:
        self.ready = threading.Event()
        ready = self.ready

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                status = 404 if self.path != "/health" else 200 if ready.is_set() else 503
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Probes are not logged."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise port_error(host, port, error) from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def port_error(host: str, port: int, error: OSError) -> EngineError:
    """TS-ENGINE-PORT: the API port is not ours."""
    return EngineError(
        "TS-ENGINE-PORT",
        "API port can not be used",
        where=f"{host}:{port}",
        expected="a free port",
        observed=error.strerror or str(error),
        remedy="stop what holds the port or choose another --port",
    )
