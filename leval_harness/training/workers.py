"""Trainings side by side in processes of their own, each with its share of the threads."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import torch
from tqdm import tqdm


def in_processes(
    function: Callable[..., list[Any]], calls: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[Any]:
    """Items of the lists that the calls return, in the order in which they finish.

    Small models keep one core busy better than two: as many processes as cores train more of them
    in an hour than one process with as many threads. What the first failing call raised is raised,
    and those still running are stopped. The function has to be importable by name.
    """
    with ProcessPoolExecutor(
        min(jobs, len(calls)),
        # A forked process cannot use CUDA, and inherits the locks of torch's threads.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(max(1, torch.get_num_threads() // jobs),),
    ) as pool:
        futures = [pool.submit(function, *call) for call in calls]
        try:
            finished = as_completed(futures)
            for future in tqdm(finished, total=len(calls), disable=bool(os.environ.get("CI"))):
                yield from future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    # Ctrl-C reaches every process of the terminal; a worker has nothing to say about it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
