"""What the thread does with a tracker that is slow, fails, or refuses one record."""

import threading

import pytest

from algorithms.train.trackers.tracker import Delivery, Outcome


class Server:
    """Takes records while it is up, but never one of a step that it refuses."""

    name = "server"

    def __init__(self, up=True, refused=()):
        self.up, self.refused, self.taken, self.outcome = up, refused, [], None
        self.tried = threading.Semaphore(0)
        self.held = set()

    def holds(self, tag, step):
        return (tag, step) in self.held

    def scalars(self, step, values, time_s):
        if not self.up or step in self.refused:
            self.tried.release()
            raise ConnectionError("nobody is there\nand more")
        self.taken.append((step, dict(values)))
        self.tried.release()

    def conversations(self, step, rows):
        self.scalars(step, {"conversations": len(rows)}, 0.0)

    def close(self, outcome):
        self.outcome = outcome


def warnings(caplog):
    return [record.getMessage() for record in caplog.records]


def test_records_arrive_in_their_order_before_close_returns():
    server = Server()
    delivery = Delivery(server)
    for step in range(100):
        delivery.scalars(step, {"a": step})
    delivery.close(Outcome.INTERRUPTED)
    assert server.taken == [(step, {"a": step}) for step in range(100)]
    assert server.outcome is Outcome.INTERRUPTED


def test_a_point_that_the_tracked_run_holds_is_not_sent_again():
    server = Server()
    server.held = {("a", 1), ("a", 2), ("b", 2), ("conversations", 2)}
    delivery = Delivery(server)
    for step in (1, 2, 3):
        delivery.scalars(step, {"a": 0.0, "b": 1.0})
        delivery.conversations(step, [{}] * (step - 1))
    delivery.close(Outcome.FINISHED)
    assert server.taken == [(1, {"b": 1.0}), (3, {"a": 0.0, "b": 1.0}), (3, {"conversations": 2})]


def test_an_outage_is_warned_of_once_and_its_records_arrive_when_it_is_over(caplog):
    server = Server(up=False)
    delivery = Delivery(server)
    for step in range(5):
        delivery.scalars(step, {"a": step})
        assert server.tried.acquire(timeout=60)
    (warning,) = warnings(caplog)
    assert "server failed (ConnectionError: nobody is there); the run continues" in warning
    server.up = True
    delivery.close(Outcome.FINISHED)
    assert sorted(step for step, _ in server.taken) == list(range(5))
    assert warnings(caplog) == [warning]


def test_a_record_that_is_always_refused_holds_up_no_other(caplog):
    server = Server(refused=[0])
    delivery = Delivery(server)
    for step in range(5):
        delivery.scalars(step, {"a": step})
    delivery.close(Outcome.FINISHED)
    assert sorted(step for step, _ in server.taken) == [1, 2, 3, 4]
    assert "did not accept everything up to the end" in warnings(caplog)[-1]


def test_a_tracker_that_never_answers_holds_up_the_end_for_a_bounded_time(caplog):
    ever = threading.Event()
    server = Server()
    server.scalars = lambda *_: ever.wait()
    delivery = Delivery(server, patience_s=0.1)
    delivery.scalars(1, {"a": 1.0})
    delivery.close(Outcome.FINISHED)
    assert "did not accept everything within 0.1 s" in warnings(caplog)[-1]
    ever.set()


@pytest.mark.parametrize("outcome", list(Outcome))
def test_closing_twice_is_harmless(outcome):
    delivery = Delivery(Server())
    delivery.close(outcome)
    delivery.close(outcome)
