"""Threads that do what they share in turn, so that it has the same order in every run."""

import contextlib
import itertools
import threading


def run_in_turn(threads, work):
    """Call `work(place, turn)` in so many threads, each with its place, until all have ended.

    What is within `with turn():` is done by one thread after the other, the first in place 0. All threads have to
    enter it as often.
    """
    turns, places = threading.Condition(), itertools.cycle(range(threads))
    whose = [next(places)]

    def run(place):
        @contextlib.contextmanager
        def turn():
            with turns:
                assert turns.wait_for(lambda: whose[0] == place, timeout=60)
                yield
                whose[0] = next(places)
                turns.notify_all()

        work(place, turn)

    running = [threading.Thread(target=run, args=(place,)) for place in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
