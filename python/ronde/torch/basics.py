# SPDX-License-Identifier: Apache-2.0
"""Start and end, ranks, what the library can do, and process sets."""

import atexit
import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, Union

from ronde import _library as c
from ronde._library import lib


class HorovodInternalError(RuntimeError):
    """An operation failed: ranks disagree, or a rank is lost.

    ``failed_rank`` is the rank that was lost; every later operation then fails. Else it is None.
    """

    def __init__(self, *args: Any, failed_rank: Optional[int] = None) -> None:
        super().__init__(*args)
        self.failed_rank = failed_rank


class HostsUpdatedInterrupt(RuntimeError):
    """hvd.elastic.run() forms a new group and goes on with the state as it is.

    Only programs raise it, on all ranks at the same place. ``skip_sync`` changes nothing.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the program asks for a new group")
        self.skip_sync = skip_sync


def failure(code: int) -> Exception:
    """The exception for a status of the library: ValueError where the call itself is wrong."""
    error = c.Error(code)
    if code in (c.INVALID_ARGUMENT, c.DUPLICATE_NAME, c.UNKNOWN_SET, c.NOT_A_MEMBER):
        return ValueError(str(error))
    lost = ctypes.c_int(-1)
    if code == c.GROUP:
        lib.ronde_failed_rank(0, ctypes.byref(lost))
    return HorovodInternalError(str(error), failed_rank=lost.value if lost.value >= 0 else None)


def check(code: int) -> None:
    """Raises what failure() returns, unless ``code`` is 0."""
    if code:
        raise failure(code)


def _query(function: Any, doc: str, *arguments: Any) -> Callable[[], int]:
    """A function that asks the library for a number."""
    def query() -> int:
        try:
            return c.number(function, *arguments)
        except c.Error as error:
            raise ValueError(f"{error}; use hvd.init()") from error
    query.__doc__ = doc + " ValueError before init()."
    return query


size = _query(lib.ronde_size, "How many ranks there are.", 0)
rank = _query(lib.ronde_rank, "The number of this process, from 0.", 0)
local_size = _query(lib.ronde_local_size, "How many ranks this host has.")
local_rank = _query(lib.ronde_local_rank, "This rank's number among those of its host.")
cross_size = _query(lib.ronde_cross_size, "How many hosts have a rank of this local rank.")
cross_rank = _query(lib.ronde_cross_rank, "This rank's number among those of its local rank.")
is_homogeneous = _query(lib.ronde_is_homogeneous, "1 if every host has as many ranks, else 0.")


class ProcessSet:
    """Some of the ranks, in ascending order, once init() or add_process_set() has made it.

    ``ranks`` are its ranks; ``process_set_id`` is its number, None before that and after its end.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        if hasattr(ranks, "py2f"):
            raise NotImplementedError("process sets of communicators: not yet; pass the ranks")
        self.ranks: list[int] = sorted(ranks)
        if any(not isinstance(one, int) for one in self.ranks):
            raise ValueError("a ProcessSet is made of a list of ranks")
        self.process_set_id: Optional[int] = None

    def size(self) -> Optional[int]:
        """How many ranks it has; None before it is made."""
        return None if self.process_set_id is None else self.count()

    def rank(self) -> Optional[int]:
        """This rank's number in it; None before it is made, ValueError outside of it.

        Roots are numbers in the whole group, as in Horovod.
        """
        if self.process_set_id is None:
            return None
        if rank() not in self.ranks:
            raise ValueError(f"rank {rank()} is not in {self}")
        return self.ranks.index(rank())

    def included(self) -> bool:
        """Whether this rank is in it."""
        return rank() in self.ranks

    def made(self) -> int:
        """Its number; ValueError before it is made."""
        if self.process_set_id is None:
            raise ValueError(f"{self} is not made: use hvd.add_process_set()")
        return self.process_set_id

    def count(self) -> int:
        """How many ranks it has; ValueError before it is made."""
        if self.process_set_id is None or not self.ranks:
            raise ValueError(f"{self} is not made: use hvd.init(), hvd.add_process_set()")
        return len(self.ranks)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0
generation = 0  # of init() and rejoin(): what was prepared in an earlier one is void
_made: list[ProcessSet] = []  # those of this generation


def _known_sets() -> dict[tuple[int, ...], int]:
    """The ranks of each set, and its number."""
    count = ctypes.c_int(0)
    lib.ronde_process_set_ids(None, ctypes.byref(count))
    ids = (ctypes.c_uint32 * count.value)()
    check(lib.ronde_process_set_ids(ids, ctypes.byref(count)))
    known: dict[tuple[int, ...], int] = {}
    for number in ids:
        ranks = (ctypes.c_int * size())()
        count.value = len(ranks)
        check(lib.ronde_process_set_ranks(number, ranks, ctypes.byref(count)))
        known.setdefault(tuple(ranks[:count.value]), number)
    return known


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Makes a process set and returns it. Every rank calls it, with the same ranks.

    ValueError if there is one of these ranks.
    """
    one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if tuple(one.ranks) in _known_sets():
        raise ValueError(f"there is a process set of these ranks: {one}")
    number = ctypes.c_uint32()
    check(lib.ronde_process_set_add(c.ints(one.ranks), len(one.ranks), ctypes.byref(number)))
    one.process_set_id = number.value
    _made.append(one)
    return one


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a process set; every rank calls it. False for all ranks, or one that is not made."""
    if not process_set.process_set_id:
        return False
    check(lib.ronde_process_set_remove(process_set.process_set_id))
    process_set.process_set_id = None
    return True


def init(comm: Any = None, process_sets: Union[Sequence[ProcessSet], str, None] = None) -> None:
    """Joins the ranks that the launcher started; alone without one. Does nothing the second time.

    In a job of `ronde run --elastic` it joins the next group; ``comm`` and ``process_sets`` are a
    ValueError there.

    Args:
        comm: ranks of MPI_COMM_WORLD, or a communicator of mpi4py, that make the group instead;
            the program has initialised MPI.
        process_sets: sets to make, equal on all ranks. "dynamic" is the same as None: sets can
            always be added.
    """
    sets = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    if not is_initialized():
        _start(comm, [one.ranks for one in sets])
    global_process_set.ranks = list(range(size()))
    known, taken = _known_sets(), {0}
    for index, one in enumerate(sets):
        number = known.get(tuple(one.ranks), 0)
        if number in taken:
            raise ValueError(f"process_sets[{index}] is a duplicate, or was not made: {one}")
        taken.add(number)
        one.process_set_id = number


def _start(comm: Any, sets: list[list[int]]) -> None:
    global generation
    os.environ.setdefault("RONDE_JOIN_AVERAGE", "all")  # averages divide by all, as in Horovod
    options = c.InitOptions()
    lists = (c.RankList * len(sets))(*[c.RankList(c.ints(ranks), len(ranks)) for ranks in sets])
    options.process_sets, options.process_set_count = lists, len(sets)
    if hasattr(comm, "py2f"):
        options.mpi_comm = ctypes.pointer(ctypes.c_int(comm.py2f()))
    elif comm:
        options.mpi_ranks = c.RankList(c.ints(comm), len(comm))
    if not is_elastic():
        check(lib.ronde_init(ctypes.byref(options)))
    elif comm or sets:
        raise ValueError("an elastic job takes neither comm nor process_sets, as its ranks change: "
                         "use add_process_set() in the function that hvd.elastic.run calls")
    else:
        place = ctypes.byref(ctypes.c_int())  # of this rank in the job, which is not asked for
        check(lib.ronde_reform(1, place, place, None, place))
    if generation == 0:
        atexit.register(_leave)
        os.register_at_fork(after_in_child=lambda: atexit.unregister(_leave))
    generation += 1


def is_elastic() -> bool:
    """Whether `ronde run --elastic` has started this process."""
    return bool(lib.ronde_is_elastic())


def has_failed() -> bool:
    """Whether the group has failed."""
    return bool(lib.ronde_failed_rank(0, ctypes.byref(ctypes.c_int())) == c.GROUP)


def rejoin() -> None:
    """Ends the group of an elastic job and joins the next, where process sets are made anew."""
    while _made:
        _made.pop().process_set_id = None
    _start(None, [])
    global_process_set.ranks = list(range(size()))


def _leave() -> None:
    """The end of the program; an uncaught exception ends the group with its text."""
    error = getattr(sys, "last_value", None)
    if error is None:
        shutdown()
    elif is_initialized():
        lib.ronde_abort(f"{type(error).__name__}: {error}".encode())
        lib.ronde_shutdown()  # it fails with that text


def shutdown() -> None:
    """Leaves the group together with the other ranks. The end of the program does it, too."""
    global_process_set.ranks = []
    check(lib.ronde_shutdown())


def is_initialized() -> bool:
    """Whether this process is in the group."""
    return bool(lib.ronde_is_initialized())


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes a timeline to ``file_path`` from now on. ``mark_cycles`` changes nothing."""
    check(lib.ronde_timeline_start(os.fsencode(file_path), int(mark_cycles)))


def stop_timeline() -> None:
    """Ends the timeline."""
    check(lib.ronde_timeline_stop())


def _feature(name: bytes, doc: str) -> Callable[[], bool]:
    """A function that says whether the library has a feature on this machine."""
    def has() -> bool:
        return bool(lib.ronde_has(name))
    has.__doc__ = doc
    return has


mpi_built = _feature(b"mpi_communicator", "Whether the library was built with MPI.")
mpi_enabled = _feature(b"mpi", "Whether an MPI launcher can start the ranks.")
gloo_built = _feature(b"key_value", "Whether ranks start without MPI, as by Gloo in Horovod.")
gloo_enabled = gloo_built
cuda_built = _feature(b"cuda", "Whether tensors can be on GPUs: the driver can be loaded.")
rocm_built = ddl_built = ccl_built = _feature(b"", "False: there is none.")


def nccl_built() -> int:
    """The version of NCCL (22304 is 2.23.4); 0 where it cannot be loaded."""
    return int(lib.ronde_feature_version(b"nccl"))


def mpi_threads_supported() -> bool:
    """True: the program may call MPI beside Ronde. ValueError without MPI."""
    if not mpi_built():
        raise ValueError("this build of Ronde has no MPI")
    return True
