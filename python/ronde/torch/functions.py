# SPDX-License-Identifier: Apache-2.0
"""Parameters, the state of optimizers, and objects of one rank, for all ranks."""

import ctypes
import pickle
from typing import Any, Optional, Union

import torch
from torch import Tensor

from ronde.torch.basics import ProcessSet, global_process_set, rank
from ronde.torch.operations import Handle, Name, allgather, broadcast_, broadcast_async_

try:
    from cloudpickle import dumps  # type: ignore  # takes lambdas, and classes of __main__
except ImportError:
    from pickle import dumps


def broadcast_parameters(params: Union[dict[str, Tensor], list[Any]], root_rank: int) -> None:
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


class _Place:
    """Where a tensor was in an object that is pickled without its tensors."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.dtype, self.on_cpu = tensor.shape, tensor.dtype, not tensor.is_cuda


def _mapped(value: Any, function: Any) -> Any:
    """The value with ``function`` of the tensors and places in it."""
    if isinstance(value, (Tensor, _Place)):
        return function(value)
    if isinstance(value, dict):
        return {key: _mapped(one, function) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(one, function) for one in value)
    return value


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int,
                              model: Optional[torch.nn.Module] = None) -> None:
    """Overwrites an optimizer's state and options with those of rank ``root_rank``.

    On the other ranks the state may be empty, or another one. ``model`` is not needed.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    tensors: list[Tensor] = []

    def take(tensor: Tensor) -> _Place:
        tensors.append(tensor)
        return _Place(tensor)

    content: Any = None
    if rank() == root_rank:
        content = ([_mapped(optimizer.state.get(p, {}), take) for p in parameters],
                   [{key: one for key, one in group.items() if key != "params"}
                    for group in optimizer.param_groups])
    states, options = broadcast_object(content, root_rank)
    if rank() != root_rank:
        for p, state in zip(parameters, states):
            def make(place: _Place, device: torch.device = p.device) -> Tensor:
                tensors.append(torch.empty(place.shape, dtype=place.dtype,
                                           device="cpu" if place.on_cpu else device))
                return tensors[-1]

            optimizer.state.pop(p, None)
            if state:
                optimizer.state[p] = _mapped(state, make)
        for group, one in zip(optimizer.param_groups, options):
            group.update(one)
    broadcast_parameters(tensors, root_rank)
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
