"""Start, watch and stop an SGLang server with the plugin, from any Python."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from leyline_agent import server_log
from leyline_agent.builtin import TINY, Progress, check_model, model_path
from leyline_agent.core import ServerError, SetupError
from leyline_agent.interrupts import held_interrupts
from leyline_agent.ports import check_port, free_port

PACKAGE = Path(__file__).parent
STANDINS = ("sgl_kernel", "torchvision")


def find_server_python(python: str | None = None) -> str:
    """The Python that has SGLang.

    In order: the argument, $LEYLINE_SERVER_PYTHON, this interpreter, `.venv-server` beside
    this interpreter's environment, the package, or the working directory.

    Raises:
        SetupError: there is none; says how to make one.
    """
    named = python or os.environ.get("LEYLINE_SERVER_PYTHON")
    if named:
        if not Path(named).exists():
            raise SetupError(f"the server Python {named} does not exist")
        return named
    if importlib.util.find_spec("sglang") is not None:
        return sys.executable
    for folder in (Path(sys.prefix).parent, PACKAGE.parent, Path.cwd()):
        candidate = folder / ".venv-server" / "bin" / "python"
        if candidate.exists():
            return str(candidate)
    raise SetupError(
        "no SGLang found. In a checkout run `make setup`; elsewhere install "
        "leyline-agent[server] and set LEYLINE_SERVER_PYTHON to that environment's Python"
    )


def server_env(python: str, extra: Mapping[str, str], cpu: bool) -> dict[str, str]:
    """Environment of the server process: stand-ins for what the CPU build cannot load."""
    env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", **extra}
    if cpu:
        env["SGLANG_USE_CPU_ENGINE"] = "1"
        env.setdefault("HF_HUB_OFFLINE", "1")
        # Compiling costs a C++ compiler, half a minute at the first request, and again mid-run.
        env.setdefault("TORCHDYNAMO_DISABLE", "1")
        # OpenMP's waiting threads spin by default: two servers on two cores then stop each other.
        env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        root = PACKAGE / "server" / "cpu" / "standins"
        missing = [str(root / name) for name in STANDINS if not _loads(python, name)]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [*missing, env.get("PYTHONPATH", "")]))
    return env


def _loads(python: str, module: str) -> bool:
    """Whether the real module imports there (a torchvision for another torch does not)."""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", f"import {module}"], capture_output=True, timeout=300
    )
    return done.returncode == 0


def has_cuda(python: str) -> bool:
    """Whether that Python's torch sees a GPU."""
    code = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 1)"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


class ServerProcess:
    """One SGLang server as a child process; a context manager that stops it again.

    Args:
        model: a built-in name (`builtin.TINY`), a folder, or owner/name on the hub.
        dtype: None leaves it to SGLang (float32 for the built-in models).
        extra_args: passed to SGLang as they are. env: added to its environment.
        stock: without the plugin's cache and hooks, for comparison.
        timeout: seconds until it must answer.
        port: None takes a free one. log_path: None makes a folder for it.
        progress: called with one line for each step and once a second while it loads.

    Entering raises SetupError (nothing to start) or ServerError (it stopped or never
    answered; the message says why as its log does).
    """

    def __init__(
        self,
        model: str = "tiny",
        *,
        dtype: str | None = None,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        stock: bool = False,
        host: str = "127.0.0.1",
        port: int | None = None,
        python: str | None = None,
        log_path: Path | None = None,
        timeout: float = 600,
        progress: Progress = lambda _line: None,
    ) -> None:
        self.model, self.dtype, self.stock = model, dtype, stock
        self.extra_args, self.env = list(extra_args), dict(env or {})
        self.host, self.port = host, port or free_port()
        self.python, self.timeout, self.progress = python, timeout, progress
        self.log_path = log_path or Path(tempfile.mkdtemp(prefix="leyline-")) / "server.log"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """Root of the server; OpenAI clients take base_url + "/v1"."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        return f"http://{host}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the server, which leads a process group of its own."""
        if self._child is None:
            raise ServerError("the server was not started")
        return self._child.pid

    def command(self, python: str, path: str, cpu: bool) -> list[str]:
        """The command line of SGLang."""
        args = [python, "-W", "ignore", "-m", "sglang.launch_server", "--model-path", path]
        args += ["--host", self.host, "--port", str(self.port), "--enable-cache-report"]
        if not self.stock:
            args += ["--radix-cache-backend", "leyline"]
        if cpu:
            args += ["--device", "cpu", "--attention-backend", "torch_native"]
            args += ["--skip-server-warmup", "--sleep-on-idle"]
        if self.model in TINY:
            args += ["--served-model-name", self.model, "--tool-call-parser", "qwen"]
            args += ["--constrained-json-disable-any-whitespace"]
            args += (
                [] if "--max-total-tokens" in self.extra_args else ["--max-total-tokens", "131072"]
            )
        dtype = self.dtype or ("float32" if self.model in TINY else None)
        return args + (["--dtype", dtype] if dtype else []) + self.extra_args

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def start(self) -> None:
        """What entering does: for callers that must know the object before the server lives."""
        # First of all: a server that runs there keeps its log.
        check_port(self.host, self.port)
        check_model(self.model)
        python = find_server_python(self.python)
        cpu = self.model in TINY or not has_cuda(python)
        path = model_path(self.model, python, self.progress)
        env = server_env(
            python, {**self.env, **({"LEYLINE_DISABLE": "1"} if self.stock else {})}, cpu
        )
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.progress(f"starting SGLang; its log is {self.log_path}")
        try:
            # Whoever is interrupted once the child lives knows the child.
            with held_interrupts(), self.log_path.open("wb") as log:
                self._child = subprocess.Popen(
                    self.command(python, path, cpu),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=env,
                    start_new_session=True,
                )
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        """Until /health answers.

        Raises:
            ServerError: the process ended, or the time is up.
        """
        assert self._child is not None
        began = time.monotonic()
        while time.monotonic() - began < self.timeout:
            if self._child.poll() is not None:
                raise ServerError(
                    f"SGLang stopped with status {self._child.returncode} before it was ready: "
                    f"{server_log.told(self.log_path)}"
                )
            if self.healthy():
                self.progress(f"ready after {time.monotonic() - began:.0f} s")
                return
            time.sleep(0.25)
            self.progress(f"loading, {time.monotonic() - began:.0f} s")
        raise ServerError(
            f"SGLang did not answer within {self.timeout:.0f} s: {server_log.told(self.log_path)}"
        )

    def healthy(self) -> bool:
        """Whether the server answers now."""
        try:
            with urllib.request.urlopen(f"{self.base_url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait(self) -> int:
        """Block until the server ends; its exit status."""
        assert self._child is not None
        return self._child.wait()

    def stop(self, grace: float = 15) -> None:
        """End the server's own process group: SIGTERM, after `grace` seconds SIGKILL.

        An interrupt cuts the grace short; it takes effect when the server is gone.
        """
        if self._child is None:
            return
        try:
            self._end(self._child, signal.SIGTERM, grace)
        finally:
            with held_interrupts():
                self._end(self._child, signal.SIGKILL, 10.0)

    @staticmethod
    def _end(child: subprocess.Popen[bytes], sign: int, seconds: float) -> None:
        """Signal the group, wait until it is gone."""
        deadline = time.monotonic() + seconds
        there = _signal_group(child.pid, sign)
        while there and time.monotonic() < deadline:
            time.sleep(0.05)
            child.poll()
            there = _signal_group(child.pid, 0)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _signal_group(group: int, sign: int) -> bool:
    """Send a signal (0 only asks); whether the group is still there."""
    try:
        os.killpg(group, sign)
    except (ProcessLookupError, PermissionError):
        return False
    return True
