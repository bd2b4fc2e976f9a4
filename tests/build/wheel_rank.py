# SPDX-License-Identifier: Apache-2.0
"""One of two ranks: the installed package is imported without torch, and its C library adds up."""

import importlib.metadata
import os
import sys
from ctypes import addressof, byref, c_char_p, c_double, c_float, c_void_p

import ronde
from ronde import _library as c

assert "torch" not in sys.modules, "import ronde has imported torch"
(plugin,) = importlib.metadata.entry_points(group="torch.backends", name="ronde")
assert plugin.value == "ronde._plugin:register", plugin
c.lib.ronde_version.restype = c_char_p
assert ronde.__version__ == importlib.metadata.version("ronde")
assert c.lib.ronde_version().decode() == ronde.__version__


FLOAT32 = 7  # ronde_dtype


def check(status):
    if status:
        raise RuntimeError(f"status {status}: {c_char_p(c.lib.ronde_last_error()).value}")


value = c_float(1 + int(os.environ["RANK"]))
tensor, work = c.Tensor(), c_void_p()
tensor.data, tensor.dtype = addressof(value), FLOAT32
check(c.lib.ronde_init(None))
check(c.lib.ronde_allreduce(byref(tensor), byref(tensor), None, byref(work)))
check(c.lib.ronde_work_wait(work, c_double(-1)))
check(c.lib.ronde_work_free(work))
check(c.lib.ronde_shutdown())
print(f"the sum is {value.value:g}")
