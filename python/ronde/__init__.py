# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training on many ranks: collectives for PyTorch.

``import ronde.torch as hvd`` has Horovod's calls. This module imports no torch.
"""

__version__ = "0.1.0"
