# SPDX-License-Identifier: Apache-2.0
"""The backend "ronde" of torch.distributed, as torch finds it by the entry point `torch.backends`."""

from __future__ import annotations

import os
import sys
from typing import Any


def register() -> None:
    """Makes "ronde" known to torch.distributed. Called at ``import torch``, for every program.

    Nothing is loaded before a program asks for the backend, and nothing is raised, as that would
    end programs that never do. May be called again.
    """
    try:
        from torch import distributed

        if distributed.is_available():
            distributed.Backend.register_backend(
                "ronde", _make_backend, extended_api=True, devices=["cpu", "cuda"]
            )
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"ronde: the backend of torch.distributed is not available: {error}\n")


def _make_backend(options: Any, pg_options: Any) -> Any:
    """Makes the backend of a process group; its ranks call this together."""
    if pg_options is not None:
        raise TypeError(f"the backend ronde takes no pg_options, but got {type(pg_options).__name__}")
    _expect_built_for_this_torch()
    import torch

    from ronde import _c10d

    # DDP takes its buckets from memory that all ranks map, which torch 2.11 does only if told so.
    # Not where there are GPUs, whose NCCL would follow the same variable.
    if not torch.cuda.is_available():
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    return _c10d.make(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=options.timeout,
        group=options.group_id,
        global_ranks=options.global_ranks_in_group,
    )


def _expect_built_for_this_torch() -> None:
    """Raises RuntimeError where the extension, if it were loaded, would crash."""
    import torch

    cure = "Build it here: pip install --force-reinstall --no-deps ./python in a clone of Ronde"
    try:
        from ronde import _built_with
    except ImportError as error:
        raise RuntimeError(f"ronde has no backend of torch.distributed in it. {cure}") from error
    built = (_minor(_built_with.TORCH), _minor(_built_with.PYTHON))
    here = (_minor(torch.__version__), f"{sys.version_info.major}.{sys.version_info.minor}")
    if built != here:
        raise RuntimeError(
            f"ronde's backend of torch.distributed was built for torch {built[0]} and Python "
            f"{built[1]}, but this is torch {here[0]} and Python {here[1]}. {cure}"
        )


def _minor(version: str) -> str:
    """Returns "2.11" of "2.11.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])
