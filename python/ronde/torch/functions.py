# SPDX-License-Identifier: Apache-2.0
"""Parameters, the state of optimizers, and objects of one rank, for all ranks."""

import ctypes
import io
import pickle
from typing import Any

import torch
from torch import Tensor

from ronde.torch.basics import ProcessSet, global_process_set, rank
from ronde.torch.operations import Handle, Name, allgather, broadcast_, broadcast_async_

try:
    from cloudpickle import dumps  # type: ignore  # takes lambdas, and classes of __main__
except ImportError:
    from pickle import dumps


def broadcast_parameters(params: dict[str, Tensor] | list[Any], root_rank: int) -> None:
    """Overwrites parameters with those of rank ``root_rank``.

    ``params`` is ``model.state_dict()``, or a list of parameters or of pairs (name, parameter).
    """
    if not isinstance(params, (dict, list)):
        raise ValueError(f"invalid params of type: {type(params)}")
    pairs = sorted(params.items()) if isinstance(params, dict) else [
        one if isinstance(one, tuple) else (None, one) for one in params]
    started: dict[int, Handle] = {}
    for name, tensor in pairs:
        if tensor.data_ptr() in started:  # tied to one before: it is written once at a time
            started[tensor.data_ptr()].wait()
        started[tensor.data_ptr()] = broadcast_async_(tensor, root_rank, name)
    for handle in started.values():
        handle.wait()


def _here(storage: Any, place: str) -> Any:
    """Has torch.load() put what was on a GPU on this rank's."""
    return storage if place == "cpu" else storage.cuda()


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int,
                              model: torch.nn.Module | None = None) -> None:
    """Overwrites an optimizer's state and options with those of rank ``root_rank``.

    On the other ranks the state may be empty, or another one. ``model`` is not needed.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    stream = io.BytesIO()
    if rank() == root_rank:
        torch.save(([optimizer.state.get(p) for p in parameters],
                    [{key: one for key, one in group.items() if key != "params"}
                     for group in optimizer.param_groups]), stream)
    data = broadcast_object(stream.getvalue(), root_rank)
    if rank() != root_rank:
        states, options = torch.load(io.BytesIO(data), _here, weights_only=False)
        for p, state in zip(parameters, states):
            optimizer.state.pop(p, None)
            if state:
                optimizer.state[p] = state
        for group, one in zip(optimizer.param_groups, options):
            group.update(one)
    for p in parameters:  # Horovod steps an optimizer without state on zeros, and leaves them
        if p.requires_grad and p.grad is None and not optimizer.state.get(p):
            p.grad = torch.zeros_like(p)


def broadcast_object(obj: Any, root_rank: int = 0, name: Name = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Returns the object of rank ``root_rank``, pickled, by cloudpickle where it is installed."""
    data = bytearray(dumps(obj) if rank() == root_rank else b"")
    size = broadcast_(torch.tensor([len(data)]), root_rank, name and name + ".sz", process_set)
    data = data or bytearray(int(size))
    broadcast_(torch.frombuffer(data, dtype=torch.uint8), root_rank, name and name + ".t",
               process_set)
    return obj if rank() == root_rank else pickle.loads(data)


def allgather_object(obj: Any, name: Name = None,
                     process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks, pickled as by broadcast_object()."""
    data = torch.frombuffer(bytearray(dumps(obj)), dtype=torch.uint8)
    sizes = allgather(torch.tensor([len(data)]), name and name + ".sz", process_set).tolist()
    everything = allgather(data, name and name + ".t", process_set)
    return [pickle.loads(ctypes.string_at(part.data_ptr(), len(part)))
            for part in everything.split(sizes)]  # type: ignore[no-untyped-call]
