# SPDX-License-Identifier: Apache-2.0
"""Start and end, ranks, what the library can do, and process sets."""

import atexit
import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ronde import _library as c
from ronde._library import lib


T = TypeVar("T")


class HorovodInternalError(RuntimeError):
    """An operation failed: ranks disagree, or a rank is lost.

    ``failed_rank`` is the rank that was lost; every later operation then fails. Else it is None.
    """

    failed_rank: int | None = None


def check(code: int) -> None:
    """Raises an error unless ``code`` is 0: ValueError where the call itself is wrong."""
    if not code:
        return
    text = lib.ronde_last_error().decode(errors="replace")
    if code in (c.INVALID_ARGUMENT, c.DUPLICATE_NAME, c.UNKNOWN_SET, c.NOT_A_MEMBER):
        raise ValueError(text)
    error, lost = HorovodInternalError(text), ctypes.c_int(-1)
    if code == c.GROUP:
        lib.ronde_failed_rank(0, ctypes.byref(lost))
    error.failed_rank = lost.value if lost.value >= 0 else None
    raise error


def number(function: Any, *arguments: Any) -> int:
    """The int that a function of the library writes to its last argument."""
    value = ctypes.c_int()
    check(function(*arguments, ctypes.byref(value)))
    return value.value


def _numbers(function: Any, *arguments: Any) -> list[int]:
    """The list that a function of the library writes, and its length."""
    values = c.ints([0] * number(function, *arguments, None))
    check(function(*arguments, values, ctypes.byref(ctypes.c_int(len(values)))))
    return list(values)


def _query(ask: Callable[[], T], doc: str) -> Callable[[], T]:
    """A function that asks the library."""
    def query() -> T:
        try:
            return ask()
        except HorovodInternalError as error:
            raise ValueError(f"{error}; use hvd.init()") from error
    query.__doc__ = doc
    return query


def _number(function: Any, doc: str, *arguments: Any) -> Callable[[], int]:
    return _query(lambda: number(function, *arguments), doc + " ValueError before init().")


def _feature(name: bytes, doc: str) -> Callable[[], bool]:
    return _query(lambda: bool(lib.ronde_has(name)), doc)


size = _number(lib.ronde_size, "How many ranks there are.", 0)
rank = _number(lib.ronde_rank, "The number of this process, from 0.", 0)
local_size = _number(lib.ronde_local_size, "How many ranks this host has.")
local_rank = _number(lib.ronde_local_rank, "This rank's number among those of its host.")
cross_size = _number(lib.ronde_cross_size, "How many hosts have a rank of this local rank.")
cross_rank = _number(lib.ronde_cross_rank, "This rank's number among those of its local rank.")
is_homogeneous = _number(lib.ronde_is_homogeneous, "1 if every host has as many ranks, else 0.")
is_initialized = _query(lambda: bool(lib.ronde_is_initialized()), "Whether there is a group.")
mpi_built = _feature(b"mpi_communicator", "Whether the library was built with MPI.")
mpi_enabled = _feature(b"mpi", "Whether an MPI launcher can start the ranks.")
gloo_built = _feature(b"key_value", "Whether ranks start without MPI, as by Gloo in Horovod.")
gloo_enabled = gloo_built
cuda_built = _feature(b"cuda", "Whether tensors can be on GPUs: the driver can be loaded.")
rocm_built = ddl_built = ccl_built = _feature(b"", "False: there is none.")
nccl_built = _query(lambda: int(lib.ronde_feature_version(b"nccl")),
                    "The version of NCCL (22304 is 2.23.4); 0 where it cannot be loaded.")


def mpi_threads_supported() -> bool:
    """True: the program may call MPI beside Ronde. ValueError without MPI."""
    if not mpi_built():
        raise ValueError("this build of Ronde has no MPI")
    return True


class ProcessSet:
    """Some of the ranks, in ascending order, once init() or add_process_set() has made it.

    ``ranks`` are its ranks; ``process_set_id`` is its number, None before that and after its end,
    which is that of the group at the latest.
    """

    process_set_id: int | None = None

    def __init__(self, ranks: Iterable[int]) -> None:
        if hasattr(ranks, "py2f"):
            raise NotImplementedError("process sets of communicators: not yet; pass the ranks")
        self.ranks: list[int] = sorted(ranks)
        if any(not isinstance(one, int) for one in self.ranks):
            raise ValueError("a ProcessSet is made of a list of ranks")

    def size(self) -> int | None:
        """How many ranks it has; None before it is made."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This rank's number in it; None before it is made, ValueError outside of it.

        Roots are numbers in the whole group, as in Horovod.
        """
        if self.process_set_id is not None and not self.included():
            raise ValueError(f"rank {rank()} is not in {self}")
        return None if self.process_set_id is None else self.ranks.index(rank())

    def included(self) -> bool:
        """Whether this rank is in it."""
        return rank() in self.ranks

    def made(self) -> int:
        """Its number; ValueError before it is made."""
        if self.process_set_id is None:
            raise ValueError(f"{self} is not made: use hvd.init(), hvd.add_process_set()")
        return self.process_set_id

    def count(self) -> int:
        """How many ranks it has; ValueError before it is made."""
        self.made()
        return len(self.ranks)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
generation = 0  # of the group: what was prepared in an earlier one is void
_sets: dict[tuple[int, ...], ProcessSet] = {}  # those of the group, by their ranks


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a process set and returns it. Every rank calls it, with the same ranks.

    ValueError if there is one of these ranks; init() takes one of RONDE_PROCESS_SETS.
    """
    one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if tuple(one.ranks) in _sets:
        raise ValueError(f"there is a process set of these ranks: {one}")
    one.process_set_id = number(lib.ronde_process_set_add, c.ints(one.ranks), len(one.ranks))
    _sets[tuple(one.ranks)] = one
    return one


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a process set; every rank calls it. False for all ranks, or one that is not made."""
    if not process_set.process_set_id:
        return False
    check(lib.ronde_process_set_remove(process_set.process_set_id))
    process_set.process_set_id = None
    del _sets[tuple(process_set.ranks)]
    return True


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Joins the ranks that the launcher started; alone without one. Does nothing the second time.

    In a job of `ronde run --elastic` it joins the next group; ``comm`` and ``process_sets`` are a
    ValueError there.

    Args:
        comm: ranks of MPI_COMM_WORLD, or a communicator of mpi4py, that make the group instead;
            the program has initialised MPI.
        process_sets: sets to make, equal on all ranks. "dynamic" is the same as None: sets can
            always be added.
    """
    if not is_initialized():
        start(comm, [] if isinstance(process_sets, str) else list(process_sets or ()))


def start(comm: Any = None, sets: Sequence[ProcessSet] = ()) -> None:
    """Joins a group: in an elastic job the next one, after the end of that which failed."""
    global generation
    os.environ.setdefault("RONDE_JOIN_AVERAGE", "all")  # averages divide by all, as in Horovod
    options = c.InitOptions()
    if hasattr(comm, "py2f"):
        options.mpi_comm = ctypes.pointer(ctypes.c_int(comm.py2f()))
    elif comm:
        options.mpi_ranks = c.RankList(c.ints(comm), len(comm))
    _forget_sets()
    if not lib.ronde_is_elastic():
        check(lib.ronde_init(ctypes.byref(options)))
    elif comm or sets:
        raise ValueError("an elastic job takes neither comm nor process_sets, as its ranks change: "
                         "use add_process_set() in the function that hvd.elastic.run calls")
    else:
        place = ctypes.byref(ctypes.c_int())  # of this rank in the job, which is not asked for
        check(lib.ronde_reform(1, place, place, None, place))
    atexit.register(_leave, os.getpid())
    generation += 1
    global_process_set.ranks = list(range(size()))
    configured: dict[tuple[int, ...], int] = {}  # and that of all ranks
    for one_id in _numbers(lib.ronde_process_set_ids):
        configured.setdefault(tuple(_numbers(lib.ronde_process_set_ranks, one_id)), one_id)
    for one in [global_process_set, *sets]:
        one.process_set_id = configured.pop(tuple(one.ranks), None)
        if one.process_set_id is None:
            add_process_set(one)
        _sets[tuple(one.ranks)] = one
    for ranks, number in configured.items():
        _sets[ranks] = ProcessSet(ranks)
        _sets[ranks].process_set_id = number


def _forget_sets() -> None:
    """Their numbers may be those of other sets in the next group."""
    for one in _sets.values():
        one.process_set_id = None
    _sets.clear()


def _leave(process: int) -> None:
    """The end of the program; an uncaught exception ends the group with its text."""
    error = getattr(sys, "last_value", None)
    if os.getpid() != process or not is_initialized():
        return
    if error is None:
        shutdown()
    else:
        lib.ronde_abort(f"{type(error).__name__}: {error}".encode())
        lib.ronde_shutdown()  # it fails with that text


def shutdown() -> None:
    """Leaves the group together with the other ranks. The end of the program does it, too."""
    _forget_sets()
    check(lib.ronde_shutdown())


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes a timeline to ``file_path`` from now on. ``mark_cycles`` changes nothing."""
    check(lib.ronde_timeline_start(os.fsencode(file_path), int(mark_cycles)))


def stop_timeline() -> None:
    """Ends the timeline."""
    check(lib.ronde_timeline_stop())
