"""A reward server over a referee that does nothing real: the web and the judging in threads of their own."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from kernelwright.listening import listen
from kernelwright.rl import LocalScorer
from kernelwright.rl._serve import _run_web, _web_server
from kernelwright.rl._service import Service, refusal
from kernelwright.store import Store


class Served:
    """A server that runs; ``hold`` keeps its judging thread from taking jobs."""

    def __init__(self, service: Service, url: str, port: int) -> None:
        self.service, self.url, self.port = service, url, port
        self.may_judge = threading.Event()
        self.may_judge.set()
        self.ended = threading.Event()


@contextmanager
def served(settings, referee, *, tokens=None, problems=(), capacity=8, port=0, run_id=None, reward="kevin"):
    service = Service(settings, problems=problems, capacity=capacity)
    listener = listen("127.0.0.1", port)
    web = _web_server(service, tokens or {})
    number = listener.getsockname()[1]
    made = Served(service, f"http://127.0.0.1:{number}", number)

    def judge():
        with Store.open(settings.store) as store:
            more = {"reward": reward, "run_id": run_id, "open_referee": lambda _: referee}
            with LocalScorer(settings, store, **more) as scorer:
                while not made.ended.is_set():
                    if made.may_judge.wait(0.05):
                        service.work_once(scorer, 0.05)

    threads = [
        threading.Thread(target=judge, daemon=True),
        threading.Thread(target=_run_web, args=(web, listener, 1), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        made.ended.set()
        service.jobs.close(refusal(503, "the server was stopped"))
        web.should_exit = True
        for thread in threads:
            thread.join(10)
        listener.close()
