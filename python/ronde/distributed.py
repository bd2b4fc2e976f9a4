# SPDX-License-Identifier: Apache-2.0
"""``import ronde.distributed`` registers the backend "ronde" where torch does not do so by itself.

That is where TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set, or the package is on the path without having
been installed.
"""

from ronde._plugin import register

register()
