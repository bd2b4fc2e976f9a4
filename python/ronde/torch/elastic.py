# SPDX-License-Identifier: Apache-2.0
"""Horovod's hvd.elastic: training that goes on when a rank dies, under `ronde run --elastic`.

    hvd.init()
    sampler = hvd.elastic.ElasticSampler(dataset)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    @hvd.elastic.run
    def train(state):
        while state.epoch < epochs:
            for i, (data, target) in enumerate(loader):
                ...
                state.sampler.record_batch(i, batch_size)
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
"""

import copy
import ctypes
import functools
import itertools
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch
import torch.utils.data

from ronde._library import GROUP, lib
from ronde.torch import basics
from ronde.torch.basics import HorovodInternalError
from ronde.torch.functions import (allgather_object, broadcast_object, broadcast_optimizer_state,
                                   broadcast_parameters)
from ronde.torch.operations import barrier


class HostsUpdatedInterrupt(RuntimeError):
    """run() forms a new group and goes on with the state as it is.

    Only programs raise it, on all ranks at the same place. ``skip_sync`` changes nothing.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the program asks for a new group")
        self.skip_sync = skip_sync


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides what is left of an epoch among the ranks, which get equally many samples.

    Where they cannot be divided so, the first of them come twice. The order depends on ``seed`` and
    the epoch alone.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch with all samples: called at the end of the one before."""
        self.load_state_dict({"epoch": epoch, "processed_indices": ()})

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This rank has used its batch of that number since the last division."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        """This rank has used these samples; commit() tells the others."""
        self._unshared.update(indices)
        self.processed_indices |= self._unshared

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """This rank's samples of a batch."""
        return self.indices[batch_idx * batch_size:(batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and the samples of it that were used."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there."""
        self.epoch: int = state_dict["epoch"]
        self.processed_indices: set[int] = set(state_dict["processed_indices"])
        self._unshared: set[int] = set()
        self.reset()

    def reset(self) -> None:
        """Divides the samples that are left."""
        self.num_replicas, self.rank = basics.size(), basics.rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        left = self.remaining_indices = [i for i in order if i not in self.processed_indices]
        self.num_samples = -(-len(left) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices = [left[i % len(left)]
                        for i in range(self.rank, self.total_size, self.num_replicas)]

    def share(self) -> None:
        """Tells all ranks what each has used."""
        used = allgather_object((self.epoch, self._unshared))
        if any(epoch != self.epoch for epoch, _ in used):
            raise ValueError(f"the ranks' samplers are in the epochs {[one[0] for one in used]}: "
                             "commit() needs all of them in one")
        self.processed_indices.update(*[indices for _, indices in used])
        self._unshared = set()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples


class TorchState:
    """What training needs to go on, as attributes: objects, and values that can be pickled.

    Objects are what has state_dict() and load_state_dict(), such as schedulers; values are copied.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        self.__dict__.update(kwargs, model=model, optimizer=optimizer)
        self._names = ["model", "optimizer", *kwargs]
        self._callbacks: list[Callable[[], Any]] = []
        self._saves = -1  # of the training, not of this rank alone; 0: it has just started
        self.save()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Has these called, without arguments, in each new group before sync()."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls them."""
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state to which all ranks return after a failure; all of them call it."""
        for name in self._names:
            if isinstance(getattr(self, name), ElasticSampler):
                getattr(self, name).share()
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Does nothing: no host joins a job that runs."""

    def save(self) -> None:
        """As commit(), but the ranks do not tell each other which samples they have used."""
        values = {name: getattr(self, name) for name in self._names}
        self._saved = {name: copy.deepcopy(value.state_dict() if _is_object(value) else value)
                       for name, value in values.items()}
        self._saves += 1

    def restore(self) -> None:
        """Returns to what was saved last, and drops gradients."""
        for name, saved in copy.deepcopy(self._saved).items():  # optimizers keep what they load
            value = getattr(self, name)
            if isinstance(value, torch.optim.Optimizer):
                _restore_optimizer(value, saved)
            elif _is_object(value):
                value.load_state_dict(saved)
            else:
                setattr(self, name, saved)

    def sync(self) -> None:
        """Gives all ranks the state of the lowest one that has saved most often, and saves it.

        So no rank gets that of one that has just started, unless all have, and the job with them.
        RuntimeError, with which the job ends, if no rank is left that has the state of a
        job; one that has loaded a checkpoint and called save() has it.
        """
        saves = allgather_object(self._saves)
        root = saves.index(max(saves))
        if saves[root] == 0 and lib.ronde_job_goes_on():
            why = ("hvd.elastic.run: no rank is left that holds the state of this job: each was "
                   "lost, or has returned from the function. Start again, or load a checkpoint and "
                   "call state.save() before the function")
            basics.check(lib.ronde_fail_job(why.encode()))
            raise RuntimeError(why)
        values = {}
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, torch.nn.Module):
                broadcast_parameters(value.state_dict(), root)
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, root)
            elif isinstance(value, ElasticSampler):
                states = allgather_object(value.state_dict())
                used = [state["processed_indices"] for state, count in zip(states, saves)
                        if count == saves[root]]  # others may lack a step
                value.load_state_dict({**states[root], "processed_indices": set().union(*used)})
            elif _is_object(value):
                value.load_state_dict(broadcast_object(value.state_dict(), root))
            else:
                values[name] = value
        self.__dict__.update(broadcast_object(values, root))
        self._saves = saves[root]
        self.save()


def _is_object(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Leaves groups and state the objects that schedulers and DistributedOptimizer() share."""
    groups, state = optimizer.param_groups, optimizer.state
    optimizer.load_state_dict(saved)
    for group, loaded in zip(groups, optimizer.param_groups):
        group.update(loaded)
    state.clear()
    state.update(optimizer.state)
    optimizer.param_groups, optimizer.state = groups, state
    optimizer.zero_grad()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of a TorchState, which is called again when a rank was lost.

    All ranks then form a new group, with a replacement or without, return to the last commit() and
    call the reset callbacks. sync() precedes each call. The caller gets an error by which the group
    has not failed, and each one in a job that is not elastic.
    """
    @functools.wraps(func)
    def wrapper(state: TorchState, *args: Any, **kwargs: Any) -> Any:
        returns = False
        for resets in itertools.count():
            try:
                if returns:
                    state.restore()
                if resets:
                    state.on_reset()
                state.sync()
                result = func(state, *args, **kwargs)
                if basics.is_initialized():
                    barrier()  # a rank that is done is one that no other needs
                return result
            except (HorovodInternalError, HostsUpdatedInterrupt) as error:
                returns = isinstance(error, HorovodInternalError)
                has_failed = lib.ronde_failed_rank(0, ctypes.byref(ctypes.c_int())) == GROUP
                if not lib.ronde_is_elastic() or returns and not has_failed:
                    raise
                logging.getLogger("ronde").warning("goes on in a new group after: %s", error)
            basics.start()

    return wrapper
