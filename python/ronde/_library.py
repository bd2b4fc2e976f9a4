# SPDX-License-Identifier: Apache-2.0
"""The C interface of Ronde by ctypes; <ronde/ronde_c.h> is the reference.

The library is ``lib/libronde_c.so`` beside this file, else the file that the variable
RONDE_LIBRARY names, else what the loader finds. Its functions have no prototypes here: arguments
are ctypes objects, bytes, None, or ints that fit a C int. The GIL is released during each call.
"""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

INVALID_ARGUMENT, GROUP, TIMEOUT = 1, 5, 6
DUPLICATE_NAME, UNKNOWN_SET, NOT_A_MEMBER = 12, 13, 14
SUM, AVERAGE, MIN, MAX, PRODUCT, ADASUM = range(6)
MAX_DIMS = 8


class RankList(ctypes.Structure):
    """``ronde_rank_list``."""

    _fields_ = [("ranks", POINTER(c_int)), ("count", c_int)]


class InitOptions(ctypes.Structure):
    """``ronde_init_options``."""

    _fields_ = [
        ("struct_size", c_size_t), ("process_sets", POINTER(RankList)),
        ("process_set_count", c_int), ("mpi_comm", POINTER(c_int)), ("mpi_ranks", RankList),
        ("rank", c_int), ("size", c_int), ("local_rank", c_int), ("put", c_void_p),
        ("get", c_void_p), ("context", c_void_p), ("prefix", c_char_p)]

    def __init__(self) -> None:
        super().__init__(ctypes.sizeof(InitOptions))


class Tensor(ctypes.Structure):
    """``ronde_tensor``, on the CPU until ``device`` is set; ``room`` is where its shape is."""

    _fields_ = [
        ("struct_size", c_size_t), ("data", c_void_p), ("shape", POINTER(c_int64)),
        ("dims", c_int), ("dtype", c_int), ("device", c_int), ("stream", c_void_p),
        ("capacity", c_int64)]

    def __init__(self) -> None:
        super().__init__(ctypes.sizeof(Tensor), None, None, 0, -1, -1, None, -1)
        self.room = (c_int64 * MAX_DIMS)()
        self.shape = self.room


Allocate = ctypes.CFUNCTYPE(c_void_p, c_void_p, POINTER(c_int64), c_int)


class OperationOptions(ctypes.Structure):
    """``ronde_operation_options``."""

    _fields_ = [
        ("struct_size", c_size_t), ("name", c_char_p), ("op", c_int), ("wire_dtype", c_int),
        ("prescale", c_double), ("postscale", c_double), ("root", c_int), ("peer", c_int),
        ("tag", c_int64), ("splits", POINTER(c_int64)), ("split_count", c_int),
        ("process_set", c_uint32), ("timeout_s", c_double), ("caller_orders", c_int),
        ("allocate", Allocate), ("allocate_context", c_void_p), ("rank_factor", c_double)]

    def __init__(self) -> None:
        super().__init__(ctypes.sizeof(OperationOptions), None, SUM, -1, 1.0, 1.0, 0, -1, 0, None,
                         0, 0, 0.0, 0, Allocate(), None, 0.0)


def _load() -> Any:
    own = Path(__file__).parent / "lib" / "libronde_c.so"
    library = ctypes.CDLL(str(own) if own.exists()
                          else os.environ.get("RONDE_LIBRARY", "libronde_c.so"))
    library.ronde_last_error.restype = c_char_p
    return library


lib: Any = _load()


def ints(values: Any) -> Any:
    """A C array of ints."""
    values = list(values)
    return (c_int * len(values))(*values)
