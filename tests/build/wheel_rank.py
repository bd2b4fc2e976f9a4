# SPDX-License-Identifier: Apache-2.0
"""One of two ranks: the installed package is imported without torch, and its C library adds up."""

import ctypes
import importlib.metadata
import os
import sys

import ronde

F32, CPU, CAPACITY_OF_SHAPE = 7, -1, -1


class Tensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("dims", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("device", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
    ]


assert "torch" not in sys.modules, "import ronde has imported torch"
(plugin,) = importlib.metadata.entry_points(group="torch.backends", name="ronde")
assert plugin.value == "ronde._plugin:register", plugin
library = ctypes.CDLL(os.path.join(ronde.__path__[0], "lib", "libronde_c.so"))
library.ronde_version.restype = library.ronde_last_error.restype = ctypes.c_char_p
assert ronde.__version__ == importlib.metadata.version("ronde")
assert library.ronde_version().decode() == ronde.__version__


def check(status):
    assert status == 0, library.ronde_last_error().decode()


value = ctypes.c_float(1 + int(os.environ["RANK"]))
tensor = Tensor(ctypes.sizeof(Tensor), ctypes.addressof(value), None, 0, F32, CPU, None, CAPACITY_OF_SHAPE)
work = ctypes.c_void_p()
check(library.ronde_init(None))
check(library.ronde_allreduce(ctypes.byref(tensor), ctypes.byref(tensor), None, ctypes.byref(work)))
check(library.ronde_work_wait(work, ctypes.c_double(-1)))
check(library.ronde_work_free(work))
check(library.ronde_shutdown())
print(f"the sum is {value.value:g}")
