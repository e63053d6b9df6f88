"""Runs operations in children of one process that has imported everything: forks are cheap.

One JSON request a line: operation, home, url, kill_at. One JSON answer: signal, code, steps, error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from concurrent import futures
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from pairgate.app.workspace import Workspace
from pairgate.review import report
from tests.faults.operations import OPERATIONS
from tests.faults.recorder import Recorder


class OneWorker(futures.ThreadPoolExecutor):
    """Files are stored by one thread, so that a step has the same number in every run."""

    def __init__(self, max_workers: int | None = None) -> None:
        super().__init__(max_workers=1)


def _plain_report(*_: Any, **__: Any) -> str:
    return "<!doctype html>"


def main() -> None:
    futures.ThreadPoolExecutor = OneWorker  # type: ignore[misc]
    # Drawing is most of the time of a small evaluation and writes nothing.
    report.report_html = _plain_report  # type: ignore[assignment]
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_answer(request)), flush=True)  # noqa: T201


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os._exit(_run(request, writing))
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    answer = json.loads(said) if said else {"steps": [], "error": "", "modules": []}
    for module in answer.pop("modules"):  # the next child has them already
        with suppress(ImportError):
            import_module(module)
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return answer | {"signal": killed, "code": os.waitstatus_to_exitcode(status)}


def _run(request: dict[str, Any], pipe: int) -> int:
    home = Path(request["home"])
    recorder = Recorder(home, request["kill_at"])
    known = set(sys.modules)
    recorder.install()
    error = ""
    try:
        ws = Workspace.open(home=str(home), database_url=request["url"], create=True)
        OPERATIONS[request["operation"]].run(ws)
        ws.close()
    except BaseException:
        error = traceback.format_exc()
    recorder.stop()
    answer = {"steps": recorder.steps, "error": error, "modules": sorted(set(sys.modules) - known)}
    with open(pipe, "wb") as said:
        said.write(json.dumps(answer).encode())
    return 1 if error else 0


if __name__ == "__main__":
    main()
