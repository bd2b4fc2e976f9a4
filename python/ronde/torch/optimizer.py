# SPDX-License-Identifier: Apache-2.0
"""An optimizer that reduces its gradients over the ranks before each step."""

import warnings
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ronde.torch import basics
from ronde.torch.basics import ProcessSet, global_process_set
from ronde.torch.compression import Compression
from ronde.torch.functions import broadcast_object
from ronde.torch.operations import (Adasum, Average, Handle, PreparedAllreduce, allreduce_async_,
                                    dense, grouped_allreduce_async_, sparse_allreduce_async)

Groups = int | list[list[Tensor]] | None
# Compressions that the engine does by itself, with sums in f32.
_BUILT_IN = (Compression.none, Compression.fp16, Compression.bf16)


class _Bucket:
    """Gradients that an optimizer reduces together: one, or those of a group."""

    __slots__ = ("optimizer", "parameters", "passes", "is_group", "handle", "prepared", "key")

    def __init__(self, optimizer: "_DistributedOptimizer", parameters: list[Tensor],
                 is_group: bool) -> None:
        self.optimizer = weakref.ref(optimizer)  # else the hooks would keep it alive
        self.parameters, self.is_group = parameters, is_group
        self.passes = dict.fromkeys(parameters, optimizer.backward_passes_per_step)  # to come
        self.handle: Handle | None = None
        self.prepared: PreparedAllreduce | None = None
        self.key: Any = None  # what it is prepared for

    def on_gradient(self, p: Tensor) -> None:
        """Backward has added to a gradient."""
        optimizer = self.optimizer()
        if optimizer is None:
            return
        if self.handle is not None or self.passes[p] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to "
                "step(). Increase backward_passes_per_step to accumulate gradients locally.")
        self.passes[p] -= 1
        optimizer._began = True
        if not any(self.passes.values()):
            optimizer._reduce(self)


class _DistributedOptimizer(torch.optim.Optimizer):
    """What DistributedOptimizer() puts before the class of the optimizer that it wraps."""

    _began = False  # a backward pass since the last step()
    _synchronized = False
    _should_synchronize = True

    def _adopt(self, optimizer: torch.optim.Optimizer, names: dict[Tensor, str], compression: Any,
               passes: int, op: int, predivide: float, as_dense: bool, ranks: ProcessSet) -> None:
        """Takes over what ``optimizer`` has, and how its gradients are to be reduced."""
        # The step() that a learning-rate scheduler puts into an optimizer would hide this class's.
        self.__dict__.update({key: one for key, one in vars(optimizer).items() if key != "step"})
        self._parameter_names, self._compression, self.op = names, compression, op
        self.backward_passes_per_step, self.sparse_as_dense = passes, as_dense
        self.process_set, self._factors = ranks, (1.0 / predivide, predivide)
        self._buckets: list[_Bucket] = []

    def _watch(self, parameters: list[Tensor], groups: Groups) -> None:
        """Has the gradients of these parameters reduced from now on."""
        if not self.process_set.included() or basics.size() == 1 or self.op == Adasum:
            return
        parameters = [p for p in parameters if p.requires_grad]
        parts = [[p] for p in parameters] if groups is None else self._parts(parameters, groups)
        for part in parts:
            bucket = _Bucket(self, part, groups is not None)
            self._buckets.append(bucket)
            for p in part:
                p.register_post_accumulate_grad_hook(bucket.on_gradient)  # type: ignore

    def _parts(self, parameters: list[Tensor],
               groups: int | list[list[Tensor]]) -> list[list[Tensor]]:
        """The members of each group, in the order of the lowest rank's parameters."""
        names = broadcast_object([self._parameter_names[p] for p in parameters],
                                 self.process_set.ranks[0], process_set=self.process_set)
        place = {name: i for i, name in enumerate(names)}
        parameters = sorted(parameters, key=lambda p: place[self._parameter_names[p]])
        if isinstance(groups, int):
            parts = [[parameters[i] for i in part]
                     for part in torch.arange(len(parameters)).tensor_split(groups)]
        else:
            own, listed = set(parameters), {p for group in groups for p in group}
            parts = [[p for p in group if p in own] for group in groups]
            parts += [[p] for p in parameters if p not in listed]
        return [part for part in parts if part]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters. Their gradients are reduced, too."""
        super().add_param_group(param_group)
        number = len(self.param_groups) - 1
        for j, p in enumerate(self.param_groups[-1]["params"]):
            self._parameter_names.setdefault(p, f"allreduce.noname.{number}.{j}")
        self._watch(self.param_groups[-1]["params"], None)

    def _reduce(self, bucket: _Bucket) -> None:
        """Starts the reduction of gradients."""
        gradients: list[Tensor] = []
        for p in bucket.parameters:
            if p.grad is None:  # other ranks may have computed it
                p.grad = torch.zeros_like(p)
            gradients.append(p.grad)
        first, is_group, gradient = bucket.parameters[0], bucket.is_group, gradients[0]
        name, is_sparse = self._parameter_names[first], gradient.is_sparse
        if is_sparse and not (is_group or self.sparse_as_dense):
            bucket.handle = sparse_allreduce_async(
                gradient, name, self.op, self.process_set).then(partial(_assign, first))
            return
        built_in = self._compression in _BUILT_IN
        if (built_in and not (is_group or is_sparse) and gradient.is_contiguous()
                and dense(gradient) is gradient):
            bucket.handle = self._prepared(bucket, name, gradient).start(gradient)
            return
        compression = Compression.none if built_in else self._compression
        sent, contexts = zip(*[compression.compress(one.to_dense() if one.is_sparse else one)
                               for one in gradients])

        def finish(output: Any) -> None:
            for p, one, ctx in zip(bucket.parameters, output if is_group else [output], contexts):
                _assign(p, compression.decompress(one, ctx))

        start: Any = grouped_allreduce_async_ if is_group else allreduce_async_
        bucket.handle = start(
            sent if is_group else sent[0], None, name, self.op, *self._factors, self.process_set,
            _wire=self._compression.wire_dtype if built_in else None).then(finish)

    def _prepared(self, bucket: _Bucket, name: str, gradient: Tensor) -> PreparedAllreduce:
        """What costs less at each start, made again for another group, shape or type."""
        key = (basics.generation, gradient.dtype, gradient.device, gradient.shape)
        if bucket.prepared is None or bucket.key != key:
            bucket.key = key
            bucket.prepared = PreparedAllreduce(gradient, name, self.op, self._factors,
                                                self._compression.wire_dtype, self.process_set)
        return bucket.prepared

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; one that backward did not compute is zeros."""
        try:
            for bucket in self._buckets:
                if bucket.handle is None:
                    self._reduce(bucket)
            for bucket in self._buckets:
                assert bucket.handle is not None
                bucket.handle.wait()
        finally:
            self._reset()
        self._synchronized = True

    def _reset(self) -> None:
        for bucket in self._buckets:
            bucket.handle = None
        self.set_backward_passes_per_step(self.backward_passes_per_step)
        self._began = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes come before each step() from now on."""
        self.backward_passes_per_step = passes
        for bucket in self._buckets:
            bucket.passes = dict.fromkeys(bucket.parameters, passes)

    def load_state_dict(self, *arguments: Any, **options: Any) -> None:
        """As the wrapped optimizer's; what backward began is dropped."""
        self._reset()
        self._synchronized, self._should_synchronize = False, True
        super().load_state_dict(*arguments, **options)

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it step() does not reduce: for gradients changed after synchronize()."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """Reduces what backward left to reduce, waits, and steps. A closure is called before."""
        inner = closure
        if self._should_synchronize and closure is not None:
            def inner() -> Any:
                loss = closure()
                self.synchronize()
                return loss
        elif self._should_synchronize:
            if self._synchronized:
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize() context "
                              "after optimizer.synchronize(): gradients are reduced twice.")
            self.synchronize()
        result = super().step(inner)
        self._synchronized = False
        return result

    step.hooked = True  # type: ignore[attr-defined]  # the wrapped step() runs torch's hooks

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        """As the wrapped optimizer's; AssertionError between backward and step()."""
        if self._began:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(), so that gradients are in flight.")
        super().zero_grad(*arguments, **options)


def _assign(p: Tensor, value: Tensor) -> None:
    """Makes ``value`` the gradient, sparse if it was."""
    assert p.grad is not None
    if p.grad.is_sparse:
        p.grad = value if value.is_sparse else value.to_sparse()
    elif value is not p.grad:
        p.grad.copy_(value)


class _AdasumOptimizer(_DistributedOptimizer):
    """Combines the ranks' steps by Adasum: no gradient is reduced."""

    def skip_synchronize(self) -> Any:
        """AssertionError: there is nothing to skip."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum.")

    def step(self, closure: Any = None) -> Any:
        """Steps, and replaces this rank's step by all ranks' combined."""
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        starts = [p.detach().clone() for p in parameters]
        loss = super(_DistributedOptimizer, self).step(closure)
        sent = [self._compression.compress(p.detach() - start)
                for p, start in zip(parameters, starts)]
        handles = [allreduce_async_(delta, None, self._parameter_names[p], Adasum,
                                    process_set=self.process_set)
                   for p, (delta, _) in zip(parameters, sent)]
        for p, start, handle, (_, ctx) in zip(parameters, starts, handles, sent):
            p.detach().copy_(start.add_(self._compression.decompress(handle.wait(), ctx)))
        return loss

    step.hooked = True  # type: ignore[attr-defined]


def _named(optimizer: torch.optim.Optimizer,
           named_parameters: Iterable[tuple[str, Tensor]] | None) -> dict[Tensor, str]:
    """The name of each parameter; ValueError unless each has one of its own."""
    groups = [group["params"] for group in optimizer.param_groups]
    pairs = list(named_parameters) if named_parameters is not None else [
        (f"allreduce.noname.{i}.{j}", p) for i, group in enumerate(groups)
        for j, p in enumerate(group)]
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters should be a sequence of tuples (name, parameter), "
                         "usually produced by model.named_parameters().")
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique: {twice}")
    names = {p: name for name, p in pairs}
    unnamed = [list(p.shape) for group in groups for p in group if p not in names]
    if unnamed:
        raise ValueError(f"named_parameters lacks parameters of the optimizer of shapes {unnamed}")
    return names


def DistributedOptimizer(optimizer: torch.optim.Optimizer,
                         named_parameters: Iterable[tuple[str, Tensor]] | None = None,
                         compression: Any = Compression.none, backward_passes_per_step: int = 1,
                         op: int = Average, gradient_predivide_factor: float = 1.0,
                         num_groups: int = 0, groups: Groups = None, sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set) -> Any:
    """Returns an optimizer of the same class that reduces each gradient once backward has it.

    It shares parameters, options and state with ``optimizer``. To clip gradients:

        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()

    Args:
        named_parameters: ``model.named_parameters()``; without it names are numbers.
        compression: Compression.none, fp16 or bf16, or a class of your own.
        backward_passes_per_step: how many backward passes add up before a step.
        op: Average, Sum, Min, Max or Product of gradients; Adasum combines the ranks' steps.
        gradient_predivide_factor: what an average divides by before the sum.
        num_groups: deprecated: groups.
        groups: a number of groups that are reduced all or none, or lists of parameters.
        sparse_as_dense: sparse gradients travel as dense ones.
        process_set: the ranks that reduce; others step by themselves.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("num_groups= is deprecated, use groups=", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    listed = [p for group in groups for p in group] if isinstance(groups, list) else []
    if ((isinstance(groups, int) and groups <= 0) or len(set(listed)) < len(listed)
            or any(not isinstance(p, Tensor) for p in listed)):
        raise ValueError("groups is a positive number, or lists of tensors, each in one of them")
    combines = op == Adasum and basics.size() > 1 and process_set.included()
    front = _AdasumOptimizer if combines else _DistributedOptimizer
    kind: Any = type(type(optimizer).__name__, (front, type(optimizer)), {})
    wrapped = kind.__new__(kind)
    wrapped._adopt(optimizer, _named(optimizer, named_parameters), compression,
                   backward_passes_per_step, op, gradient_predivide_factor, sparse_as_dense,
                   process_set)
    wrapped._watch([p for group in wrapped.param_groups for p in group["params"]], groups)
    return wrapped
