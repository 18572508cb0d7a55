"""What workers are given and when, what comes back, and how they end; no process is started."""

from __future__ import annotations

import gc
import multiprocessing
import random
import signal
from collections import deque
from types import SimpleNamespace

import pytest
from files import each

from grpo_cli.engine import memory, pool
from grpo_cli.engine.pieces import Bundle
from grpo_cli.engine.pool import WorkerError, in_order, receive, send
from grpo_cli.errors import InputError
from grpo_cli.records import Block
from grpo_cli.records.open.blocks import Span

SPAN = Span("a.jsonl", "a.jsonl", 5, 0, 1, (1, 1))
BLOCK = Block("a.jsonl", 5, [b"{}"])


class Played(pool._Worker):
    """A worker that works when its result is taken."""

    def __init__(self, work):
        self.work, self.given, self.killed = work, deque(), False
        self.connection = self.process = self

    def give(self, number, piece):
        self.given.append((number, piece))

    def take(self):
        number, piece = self.given.popleft()
        return number, piece, self.work(piece)

    def kill(self):
        self.killed = True


@pytest.fixture
def workers(monkeypatch):
    """Workers that are played; the function says whose results are there when one waits."""

    def played(ready):
        made = []
        monkeypatch.setattr(pool, "_Worker", lambda work: made.append(Played(work)) or made[-1])
        monkeypatch.setattr(pool, "wait", ready)
        return made

    return played


def negative(piece):
    return -piece


@each("jobs", [1, 2, 3, 5])
@each("count", [0, 1, 2, 7, 60])
def test_results_come_in_the_order_of_their_pieces(workers, jobs, count):
    draw = random.Random(jobs)
    made = workers(lambda busy: draw.sample(busy, draw.randint(1, len(busy))))
    assert list(in_order(negative, range(count), jobs)) == [(at, -at) for at in range(count)]
    assert [worker.killed for worker in made] == [True] * jobs


@each("jobs", [2, 3, 5])
def test_what_waits_for_a_slow_worker_is_limited(workers, jobs):
    """Four results per worker; one other has a piece beyond, the rest the two they are given."""
    workers(lambda busy: busy[-1:])  # the first one's results come last
    rest = iter(range(100))
    found = in_order(negative, rest, jobs)
    assert next(found) == (0, 0)
    assert next(rest) == 4 * jobs + 1 + 2 * (jobs - 1)
    more = [piece for piece, _ in found]
    assert len(more) == 100 - 2
    assert more == sorted(more)


def test_workers_have_their_next_pieces_while_results_are_used(workers):
    made = workers(list)
    for piece, _ in in_order(negative, range(40), 3):
        left = [len(worker.given) for worker in made]
        assert left == [2, 2, 2] if piece < 32 else sum(left) <= 6


def test_who_has_less_is_fed_first():
    few, none, full = Played(negative), Played(negative), Played(negative)
    few.given += [(0, SPAN)]
    full.given += [(1, SPAN), (2, SPAN)]
    pool._feed([full, few, none], iter([(3, SPAN), (4, SPAN), (5, SPAN)]))
    assert [[number for number, _ in one.given] for one in (full, few, none)] == [
        [1, 2],
        [0, 5],
        [3, 4],
    ]


@each(
    ("given", "wants"),
    [
        ([], True),
        ([SPAN], True),
        ([SPAN, SPAN], False),
        ([BLOCK], False),
        ([Bundle((SPAN, SPAN))], True),
        ([Bundle((SPAN, BLOCK))], False),
        ([Bundle((BLOCK, SPAN))], False),
    ],
)
def test_two_pieces_are_given_at_once_or_one_text(given, wants):
    worker = Played(negative)
    worker.given += enumerate(given)
    assert worker.wants_more is wants


def test_an_error_comes_behind_the_results_before_it(workers):
    made = workers(lambda busy: busy[::-1])
    error = InputError("bad")
    found = in_order(lambda piece: pool._Failed(error) if piece == 4 else piece, range(9), 2)
    assert [next(found) for _ in range(4)] == [(at, at) for at in range(4)]
    with pytest.raises(InputError) as raised:
        next(found)
    assert raised.value is error
    assert all(worker.killed for worker in made)


def test_workers_are_ended_where_nobody_wants_more(workers):
    made = workers(list)
    found = in_order(negative, range(9), 2)
    next(found)
    assert not any(worker.killed for worker in made)
    found.close()
    assert all(worker.killed for worker in made)


@pytest.fixture
def connected():
    """A worker without a process, and the end of its connection that would be the process's."""
    worker = object.__new__(pool._Worker)
    worker.given = deque()
    worker.connection, theirs = multiprocessing.Pipe()
    yield worker, theirs
    worker.connection.close()
    theirs.close()


def test_a_piece_goes_and_its_result_comes(connected):
    worker, theirs = connected
    worker.give(7, SPAN)
    worker.give(8, BLOCK)
    assert [*worker.given] == [(7, SPAN), (8, BLOCK)]
    assert [theirs.recv(), theirs.recv()] == [SPAN, BLOCK]
    send(theirs, ["result"])
    assert worker.take() == (7, SPAN, ["result"])
    assert [*worker.given] == [(8, BLOCK)]


@pytest.mark.parametrize("piece", [SPAN, BLOCK, Bundle((SPAN, BLOCK._replace(line=6)))])
def test_a_worker_that_is_gone(connected, piece):
    """Where it is given something, and where its result is waited for."""
    worker, theirs = connected
    worker.given.append((1, piece))
    theirs.close()
    for call in (lambda: worker.give(2, piece), worker.take):
        with pytest.raises(WorkerError, match=r"died on a\.jsonl, at or after line 5 \(") as told:
            call()
        assert told.value.exit_code == 70
        assert told.value.__cause__ is None


def test_the_end_of_a_process_is_seen(monkeypatch):
    """Its end of the connection is open in no other process, so that it closes with it."""

    class Process:
        def __init__(self, **given):
            started.append(given)

        def start(self):
            started.append("start")

    started = []
    monkeypatch.setattr(pool.multiprocessing, "Process", Process)
    worker = pool._Worker(negative)
    about, then = started
    assert (about["target"], about["args"][0]) == (pool._serve, negative)
    assert (about["daemon"], then, worker.wants_more) == (True, "start", True)
    with pytest.raises(WorkerError):
        worker.give(0, SPAN)


def test_the_life_of_a_worker(monkeypatch):
    """Ctrl-C is its parent's; a signal to end ends it; it watches its parent beside its work."""

    class Thread:
        def __init__(self, **given):
            said.append(given)

        def start(self):
            said.append("start")

    class Connection:
        def recv(self):
            if not waiting:
                raise EOFError
            return waiting.pop(0)

    said, waiting, sent = [], [1, 2, 3], []
    monkeypatch.setattr(pool.signal, "signal", lambda *given: said.append(given))
    monkeypatch.setattr(pool.memory, "settle", lambda: said.append("settle"))
    monkeypatch.setattr(pool.threading, "Thread", Thread)
    monkeypatch.setattr(pool, "send", lambda connection, result: sent.append(result))
    pool._serve(negative, Connection())
    assert said == [
        (signal.SIGINT, signal.SIG_IGN),
        (signal.SIGTERM, signal.SIG_DFL),
        "settle",
        {"target": pool._end_with_parent, "daemon": True},
        "start",
    ]
    assert (sent, waiting) == ([-1, -2, -3], [])


@pytest.mark.parametrize("error", [InputError("bad"), MemoryError("none left")])
def test_what_is_wrong_with_a_piece_is_an_outcome(error):
    def work(piece):
        raise error

    assert pool._outcome(work, SPAN) == pool._Failed(error)
    ours, theirs = multiprocessing.Pipe()
    send(ours, pool._outcome(work, SPAN))
    assert str(receive(theirs).error) == str(error)


def test_a_worker_ends_when_its_parent_is_gone(monkeypatch):
    said = []
    parent = SimpleNamespace(join=lambda: said.append("joined"))
    monkeypatch.setattr(pool.multiprocessing, "parent_process", lambda: parent)
    monkeypatch.setattr(pool.os, "_exit", said.append)
    pool._end_with_parent()
    assert said == ["joined", 1]


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="a signal that Windows does not have")
@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_pipe_that_breaks_is_an_error_where_a_piece_is_sent(before):
    found = signal.signal(signal.SIGPIPE, before)
    try:
        with pool._without_sigpipe():
            assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGPIPE) is before
    finally:
        signal.signal(signal.SIGPIPE, found)


def test_where_there_is_no_such_signal(monkeypatch):
    monkeypatch.delattr(signal, "SIGPIPE", raising=False)
    with pool._without_sigpipe():
        pass


def test_garbage_is_looked_for_seldom_and_what_was_there_is_not():
    """By a program that did not look for any while it started."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.disable()
    frozen = gc.get_freeze_count()
    try:
        memory.settle()
        assert gc.isenabled()
        assert gc.get_threshold()[0] > 700
        assert gc.get_freeze_count() > frozen
    finally:
        gc.enable()
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()
