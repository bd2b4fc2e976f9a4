# SPDX-License-Identifier: Apache-2.0
"""Collectives of tensors.

Each has a form that waits and one with ``_async``, which returns a handle for poll() and
synchronize(). Those that end in ``_`` work in place and have no gradient. A ``grouped_`` form takes
a list of tensors, and reduces or gathers all or none. Ranks match calls by ``name``, within a kind
of operation, or without one by their order. Tensors that are not row-major are copied.

Errors: ValueError where the call itself is wrong; HorovodInternalError where ranks disagree (the
group continues) or a rank is lost (it has ``failed_rank`` then). Gradients are Horovod's.
"""

import ctypes
import functools
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from ronde import _library as c
from ronde._library import lib
from ronde.torch.basics import ProcessSet, check, number, rank
from ronde.torch.basics import global_process_set as ALL
from ronde.torch.compression import Compression

Average, Sum, Adasum, Min, Max, Product = c.AVERAGE, c.SUM, c.ADASUM, c.MIN, c.MAX, c.PRODUCT
DTYPES = {dtype: code for code, dtype in enumerate((  # by their place in ronde_dtype
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.bool, torch.uint16, torch.uint32, torch.uint64,
    torch.complex64, torch.complex128))}
WIDE = (torch.float32, torch.float64)
INTEGERS = {dtype for dtype in DTYPES if not (dtype.is_floating_point or dtype.is_complex)}
Name = str | None
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Tensors = Sequence[Tensor]
Finish = Callable[["Handle"], Any] | None
_CALLS = {kind: getattr(lib, "ronde_" + kind)
          for kind in ("allreduce", "broadcast", "allgather", "alltoall", "reducescatter")}
_SLICE_S = ctypes.c_double(0.1)  # Ctrl-C ends a wait within this time


class _Scratch(threading.local):
    """The structs of a call, for each thread. The library copies what they say."""

    def __init__(self) -> None:
        self.input, self.output, self.options = c.Tensor(), c.Tensor(), c.OperationOptions()
        self.arguments: Any = tuple(map(ctypes.byref, (self.input, self.output, self.options)))


_scratch = _Scratch()
_OWN_MEMORY = c.Allocate()  # the work brings memory for its result


class Handle:
    """An operation in flight. It keeps its tensors until then, also where the program drops it."""

    __slots__ = ("work", "kept", "result", "finish", "done", "stream")

    def __init__(self, work: ctypes.c_void_p, kept: Any = None, result: Any = None,
                 finish: Finish = None, stream: int | None = None) -> None:
        self.work, self.kept, self.result, self.finish = work, kept, result, finish
        self.stream = stream  # the program's, where tensors are on a GPU
        self.done = False

    def poll(self) -> bool:
        """Whether it is done, so that synchronize() does not block."""
        return self.done or number(lib.ronde_work_done, self.work) != 0

    def wait(self) -> Any:
        """Blocks until it is done, and returns its tensor or tuple; None the second time."""
        if self.done:
            return None
        if self.stream is None:
            code = lib.ronde_work_wait(self.work, _SLICE_S)
            while code == c.TIMEOUT:
                code = lib.ronde_work_wait(self.work, _SLICE_S)
        else:
            code = lib.ronde_work_wait_stream(self.work, ctypes.c_void_p(self.stream))
        self.done = True
        try:
            check(code)
            return self.result if self.finish is None else self.finish(self)
        finally:
            self.kept = self.result = self.finish = None

    __call__ = wait  # what Horovod gives for sparse tensors is a function

    def then(self, function: Callable[[Any], Any]) -> "Handle":
        """Has wait() return ``function`` of what it returned."""
        finish, result = self.finish, self.result
        self.finish = lambda handle: function(result if finish is None else finish(handle))
        return self

    def __del__(self) -> None:
        if self.done or self.poll():
            lib.ronde_work_free(self.work)
        else:
            _dropped[:] = [one for one in _dropped if not one.poll()]
            _dropped.append(Handle(self.work, self.kept, self.result, None, self.stream))


_dropped: list[Handle] = []  # in flight, so that their tensors are in use


def _describe(struct: Any, tensor: Tensor) -> int | None:
    """Fills a ronde_tensor. Returns the stream that a tensor on a GPU is used in."""
    shape: Sequence[int] = tensor.shape
    if len(shape) > c.MAX_DIMS:
        shape = (shape[0], math.prod(shape[1:]))
    struct.data, struct.dims, struct.dtype = tensor.data_ptr(), len(shape), DTYPES[tensor.dtype]
    struct.room[:len(shape)] = shape
    if not tensor.is_cuda:
        struct.device, struct.stream = -1, None
        return None
    stream: int = torch.cuda.current_stream(tensor.device).cuda_stream
    struct.device, struct.stream = tensor.device.index, stream
    return stream


def dense(tensor: Tensor, has_rows: bool = False) -> Tensor:
    """The tensor, or a copy in row-major order; ValueError for one that cannot be sent."""
    if has_rows and tensor.dim() == 0:
        raise ValueError("a scalar has no rows to join or to divide")
    if tensor.layout != torch.strided or tensor.dtype not in DTYPES:
        raise ValueError(f"tensors of {tensor.dtype}, {tensor.layout} are not supported")
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().contiguous().resolve_conj().resolve_neg()


def _submit(kind: str, tensor: Tensor, output: Tensor | None, name: Name,
            process_set: ProcessSet, finish: Finish = None, op: int = Sum,
            factors: tuple[float, float] = (1.0, 1.0), root: int = 0, wire: int = -1,
            splits: list[int] | None = None) -> Handle:
    """Starts an operation whose result is ``output``, or what the work brings."""
    scratch, options = _scratch, _scratch.options
    stream = _describe(scratch.input, tensor)
    given, into, described = scratch.arguments
    kept: list[Any] = [tensor, output]
    options.allocate = _OWN_MEMORY
    if output is tensor:
        into = given
    elif output is not None:
        _describe(scratch.output, output)
    else:
        into = None
        if stream is not None:
            options.allocate = _allocator(kept)
    options.name = None if name is None else f"{kind}.{name}".encode()
    options.caller_orders = int(name is None)
    options.op, options.root, options.wire_dtype = op, root, wire
    options.prescale, options.postscale = factors
    options.process_set = process_set.made()
    options.splits = None if splits is None else (ctypes.c_int64 * len(splits))(*splits)
    options.split_count = 0 if splits is None else len(splits)
    work = ctypes.c_void_p()
    check(_CALLS[kind](given, into, described, ctypes.byref(work)))
    return Handle(work, kept, output, finish, stream)


def _allocator(kept: list[Any]) -> Any:
    """Gives memory on a GPU for a result, from Ronde's thread, and adds the tensor to ``kept``."""
    like: Tensor = kept[0]
    stream = torch.cuda.current_stream(like.device)

    @c.Allocate
    def allocate(_: Any, shape: Any, dims: int) -> int:
        try:
            with torch.cuda.stream(stream):
                kept.append(like.new_empty((shape[0], *like.shape[1:])))
        except RuntimeError:  # no memory; out of here it would leave the result undefined
            return 0
        address: int = kept[-1].data_ptr()
        return address

    kept.append(allocate)
    return allocate


def _brought(handle: Handle) -> Tensor:
    """The result of a work that brought it: without a copy, so it owns the work from now on."""
    like: Tensor = handle.kept[0]
    if handle.stream is not None:
        result: Tensor = handle.kept.pop()
        handle.kept.clear()  # the allocator refers to the list
        return result
    data, shape = ctypes.c_void_p(), (ctypes.c_int64 * c.MAX_DIMS)()
    check(lib.ronde_work_output(handle.work, ctypes.byref(data), None, shape, None))
    sizes = torch.Size((shape[0], *like.shape[1:]))
    if not data.value:
        return like.new_empty(sizes)
    buffer = (ctypes.c_ubyte * (sizes.numel() * like.element_size())).from_address(data.value)
    owner = buffer.owner = Handle(handle.work)  # type: ignore[attr-defined]
    owner.done = True
    handle.work = ctypes.c_void_p()
    return torch.frombuffer(buffer, dtype=like.dtype).view(sizes)


class _Recorded(torch.autograd.Function):
    """A collective of tensors, and what gives their gradients."""

    @staticmethod
    def forward(ctx: Any, call: Callable[..., Any], back: Callable[..., Any], *tensors: Any) -> Any:
        ctx.back = back
        return call(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, *ctx.back(gradients))


def _recorded(start: Callable[..., Handle], back: Callable[[Tensors], Any], tensor: T,
              compression: Any = Compression.none, **options: Any) -> T:
    """Waits for an operation of one tensor, or of several, and returns the result or results.

    For autograd, ``back`` gives the gradients of the tensors from those of the results.
    """
    alone, tensors = isinstance(tensor, Tensor), cast(Tensors, tensor)
    sent = [compression.compress(one) for one in ([tensor] if alone else tensors)]
    inputs = [one for one, _ in sent]

    def call(*inputs: Tensor) -> Any:
        return (start(*inputs, **options).wait(),) if alone else start(inputs, **options).wait()

    if torch.is_grad_enabled() and any(one.requires_grad for one in inputs):
        results = _Recorded.apply(call, back, *inputs)  # type: ignore[no-untyped-call]
    else:
        results = call(*inputs)
    results = [compression.decompress(one, ctx) for one, (_, ctx) in zip(results, sent)]
    return cast(T, results[0] if alone else results)


def _each(start: Callable[[Tensor, Name], Handle], tensor: Any, name: Name,
          process_set: ProcessSet) -> Handle:
    """Starts an operation of one tensor, or those of several: all or none."""
    if isinstance(tensor, Tensor):
        return start(tensor, name)
    check(lib.ronde_group_begin(process_set.made()))
    members: list[Handle] = []
    try:
        for i, one in enumerate(tensor):
            members.append(start(one, name and f"{name}.{i}"))
    except BaseException:
        lib.ronde_group_cancel()
        raise
    work = ctypes.c_void_p()
    check(lib.ronde_group_end(ctypes.byref(work)))
    return Handle(work, members, None, lambda _: tuple([one.wait() for one in members]),
                  members[0].stream if members else None)


def _form(of: Any, name: str, doc: str, form: Callable[..., Any]) -> Any:
    """Gives ``form``, which calls another function, its own name and text."""
    functools.update_wrapper(form, of)
    form.__name__, form.__qualname__, form.__doc__ = name, name, doc.format(of.__name__)
    return form


def _in_place(start: F) -> F:
    """The form of an asynchronous operation whose result overwrites its tensor."""
    return cast(F, _form(start, start.__name__ + "_", "As {}(), in place.",
                         functools.partial(start, _in_place=True)))


def _waiting(start: Callable[P, Handle]) -> Callable[P, Any]:
    """The form of an asynchronous operation that waits."""
    return cast(Callable[P, Any], _form(
        start, start.__name__.replace("_async", ""), "As {}(); returns the result.",
        lambda *arguments, **options: start(*arguments, **options).wait()))


def _grouped(call: Callable[Concatenate[Tensor, P], Any],
             ) -> Callable[Concatenate[Tensors, P], Any]:
    """The form of an operation for several tensors."""
    return cast(Callable[Concatenate[Tensors, P], Any], _form(
        call, f"grouped_{call.__name__}", "As {}(), of several tensors: all or none.",
        lambda tensors, *arguments, **options: cast(Any, call)(tensors, *arguments, **options)))


def _op(op: int | None, average: bool | None) -> int:
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn("average= is deprecated, use op=", DeprecationWarning, stacklevel=3)
    return Average if average else Sum


def _into(kind: str, tensor: Tensor, result: Tensor | None, name: Name, process_set: ProcessSet,
          op: int = Sum, prescale: float = 1.0, postscale: float = 1.0, root: int = 0,
          wire: torch.dtype | None = None) -> Handle:
    """Starts an operation into ``result``; None is a new tensor of the same shape."""
    source, after = dense(tensor), 1.0
    result = torch.empty_like(source) if result is None else result
    output = source if result is tensor else result
    if (prescale != 1.0 or postscale != 1.0) and source.dtype in INTEGERS:
        # Horovod truncates a product before it sums; the engine's sums of products are exact.
        if op == Average:
            op, postscale = Sum, postscale / process_set.count()
        source = (source.double() * prescale).to(source.dtype)
        prescale, postscale, after = 1.0, 1.0, postscale

    def finish(_: Handle) -> Tensor:
        with torch.no_grad():
            if after != 1.0:
                output.copy_(output.double() * after)
            return result if result is output else result.copy_(output)

    return _submit(kind, source, output, name, process_set,
                   finish if after != 1.0 or result is not output else None, op,
                   (prescale, postscale), root,
                   -1 if wire is None or source.dtype not in WIDE else DTYPES[wire])


def allreduce_async(tensor: Tensor, average: bool | None = None, name: Name = None,
                    op: int | None = None, prescale_factor: float = 1.0,
                    postscale_factor: float = 1.0, process_set: ProcessSet = ALL, *,
                    _in_place: bool = False, _wire: torch.dtype | None = None) -> Handle:
    """Starts an allreduce into a new tensor; see allreduce()."""
    return _each(lambda one, name: _into(
        "allreduce", one, one if _in_place else None, name, process_set, _op(op, average),
        prescale_factor, postscale_factor, wire=_wire), tensor, name, process_set)


allreduce_async_ = _in_place(allreduce_async)
allreduce_ = _waiting(allreduce_async_)
grouped_allreduce_async = _grouped(allreduce_async)
grouped_allreduce_async_ = _grouped(allreduce_async_)
grouped_allreduce_ = _waiting(grouped_allreduce_async_)


def allreduce(tensor: Tensor, average: bool | None = None, name: Name = None,
              compression: Any = Compression.none, op: int | None = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = ALL) -> Tensor:
    """Returns the average, or what ``op`` says, of the ranks' tensors of one shape and type.

    Args:
        average: deprecated: True is op=Average, False is op=Sum.
        compression: how the tensor travels.
        op: Average (the default), Sum, Adasum, Min, Max or Product.
        prescale_factor, postscale_factor: factors before and after the reduction; products of
            integers are truncated.
        process_set: the ranks that take part.
    """
    rest: Any = {"op": _op(op, average), "prescale_factor": prescale_factor,
                 "postscale_factor": postscale_factor, "process_set": process_set}
    return _recorded(allreduce_async, lambda gradients: grouped_allreduce(gradients, **rest),
                     tensor, compression, name=name, **rest)


grouped_allreduce = _grouped(allreduce)


def allgather_async(tensor: Tensor, name: Name = None, process_set: ProcessSet = ALL) -> Handle:
    """Starts an allgather; see allgather()."""
    return _each(lambda one, name: _submit("allgather", dense(one, True), None, name, process_set,
                                           _brought), tensor, name, process_set)


grouped_allgather_async = _grouped(allgather_async)


def allgather(tensor: Tensor, name: Name = None, process_set: ProcessSet = ALL) -> Tensor:
    """Returns the ranks' tensors one after the other; their first dimensions may differ."""
    tensors = [tensor] if isinstance(tensor, Tensor) else tensor
    rows = [one.shape[:1].numel() for one in tensors]

    def back(gradients: Tensors) -> list[Tensor]:
        averaged = grouped_allreduce(gradients, process_set=process_set)
        counts = allgather(torch.tensor([rows]), process_set=process_set)
        before = counts[:process_set.rank()].sum(0).tolist()
        return [one[first:first + own] for one, first, own in zip(averaged, before, rows)]

    return _recorded(allgather_async, back, tensor, name=name, process_set=process_set)


grouped_allgather = _grouped(allgather)


def sparse_allreduce_async(tensor: Tensor, name: Name = None, op: int | None = None,
                           process_set: ProcessSet = ALL) -> Handle:
    """Starts a sum or an average of sparse tensors, not coalesced; ``handle()`` waits for it."""
    op = _op(op, None)
    if op not in (Average, Sum):
        raise ValueError("sparse tensors are summed or averaged")

    def finish(gathered: Tensors) -> Tensor:
        indices, values = gathered
        if op == Average:
            values = values / process_set.count()
        # Other ranks' tensors may be larger.
        with torch.sparse.check_sparse_tensor_invariants(True):  # type: ignore[no-untyped-call]
            return torch.sparse_coo_tensor(indices.t(), values, tensor.size())

    parts = [tensor._indices().t(), tensor._values()]
    gathering: Handle = grouped_allgather_async(parts, name, process_set)
    return gathering.then(finish)


def broadcast_async(tensor: Tensor, root_rank: int, name: Name = None,
                    process_set: ProcessSet = ALL, *, _in_place: bool = False) -> Handle:
    """Starts a broadcast into a new tensor; see broadcast()."""
    root = root_rank
    if process_set is not ALL:
        if root not in process_set.ranks:
            raise ValueError(f"the root, rank {root}, is not in {process_set}")
        root = process_set.ranks.index(root)
    return _into("broadcast", tensor, tensor if _in_place else None, name, process_set, root=root)


broadcast_async_ = _in_place(broadcast_async)
broadcast_ = _waiting(broadcast_async_)


def broadcast(tensor: Tensor, root_rank: int, name: Name = None,
              process_set: ProcessSet = ALL) -> Tensor:
    """Returns the tensor of rank ``root_rank``, which is a number in the whole group."""
    def back(gradients: Tensors) -> list[Tensor]:
        averaged = allreduce(gradients[0], process_set=process_set)
        return [averaged if rank() == root_rank else torch.zeros_like(averaged)]

    return _recorded(broadcast_async, back, tensor, root_rank=root_rank, name=name,
                     process_set=process_set)


def alltoall_async(tensor: Tensor, splits: Tensor | Sequence[int] | None = None,
                   name: Name = None, process_set: ProcessSet = ALL) -> Handle:
    """Starts an alltoall; the result is always the pair of tensor and received splits."""
    tensor, ranks = dense(tensor, True), process_set.count()
    rows, dtype = len(tensor), splits.dtype if isinstance(splits, Tensor) else torch.int32
    if splits is None and rows % ranks:
        raise ValueError(f"{rows} rows do not divide by {ranks} ranks: give splits")
    given = torch.as_tensor([rows // ranks] * ranks if splits is None else splits)
    numbers = given.tolist()
    if (given.dtype not in (torch.int32, torch.int64) or len(numbers) != ranks or min(numbers) < 0
            or sum(numbers) > rows):
        raise ValueError(f"splits {splits} do not divide {rows} rows among {ranks} ranks")

    def finish(handle: Handle) -> tuple[Tensor, Tensor]:
        received = (ctypes.c_int64 * ranks)()
        check(lib.ronde_work_splits(handle.work, received))
        return _brought(handle), given.new_tensor(list(received), dtype=dtype)

    return _submit("alltoall", tensor[:sum(numbers)], None, name, process_set, finish,
                   splits=numbers)


def alltoall(tensor: Tensor, splits: Tensor | Sequence[int] | None = None, name: Name = None,
             process_set: ProcessSet = ALL) -> Any:
    """Sends ``splits[r]`` rows to rank r of the set, without splits equally many to each.

    Returns the rows that came, in rank order, and, where splits are given, how many from each.
    """
    received, rows = torch.empty(0), tensor.shape[:1].numel()

    def start(one: Tensor, **options: Any) -> Handle:
        def keep_splits(both: tuple[Tensor, Tensor]) -> Tensor:
            nonlocal received
            result, received = both
            return result

        return alltoall_async(one, splits, **options).then(keep_splits)

    def back(gradients: Tensors) -> list[Tensor]:
        own, _ = alltoall(gradients[0], received, process_set=process_set)
        return [torch.cat([own, own.new_zeros(rows - len(own), *own.shape[1:])])]

    result = _recorded(start, back, tensor, name=name, process_set=process_set)
    return result if splits is None else (result, received)


def reducescatter_async(tensor: Tensor, name: Name = None, op: int = Average,
                        process_set: ProcessSet = ALL, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> Handle:
    """Starts a reducescatter; see reducescatter()."""
    def start(one: Tensor, name: Name) -> Handle:
        source, own = dense(one, True), process_set.rank() or 0
        rows, more = divmod(len(source), process_set.count())
        output = source.new_empty((rows + (own < more), *source.shape[1:]))
        return _into("reducescatter", source, output, name, process_set, op, prescale_factor,
                     postscale_factor)

    return _each(start, tensor, name, process_set)


grouped_reducescatter_async = _grouped(reducescatter_async)


def reducescatter(tensor: Tensor, name: Name = None, compression: Any = Compression.none,
                  op: int = Average, process_set: ProcessSet = ALL, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> Tensor:
    """Reduces, and returns this rank's rows of the result; the first ranks get those left over."""
    def back(gradients: Tensors) -> Any:  # scaled as in Horovod
        factor = prescale_factor * postscale_factor * (process_set.count() if op == Sum else 1)
        return grouped_allgather([one * factor for one in gradients], process_set=process_set)

    return _recorded(reducescatter_async, back, tensor, compression, name=name, op=op,
                     process_set=process_set, prescale_factor=prescale_factor,
                     postscale_factor=postscale_factor)


grouped_reducescatter = _grouped(reducescatter)


poll, synchronize = Handle.poll, Handle.wait


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined, it adds zeros to their reductions.

    An average divides by all ranks. Returns the rank that joined last. ``device`` is not needed.
    """
    work = ctypes.c_void_p()
    check(lib.ronde_join(0, ctypes.byref(work)))
    joined = Handle(work)
    joined.wait()
    return number(lib.ronde_work_last_rank, work)


def barrier(process_set: ProcessSet = ALL) -> None:
    """Waits until all ranks of the set have called it."""
    options, work = c.OperationOptions(), ctypes.c_void_p()
    options.process_set, options.caller_orders = process_set.made(), 1
    check(lib.ronde_barrier(ctypes.byref(options), ctypes.byref(work)))
    Handle(work).wait()


class PreparedAllreduce:
    """An allreduce in place that is started for each step, on tensors of one shape and type."""

    def __init__(self, tensor: Tensor, name: str, op: int, factors: tuple[float, float],
                 wire: torch.dtype | None, process_set: ProcessSet) -> None:
        description, options = c.Tensor(), c.OperationOptions()
        self._stream = _describe(description, tensor)
        options.name, options.op = f"allreduce.{name}".encode(), op
        options.prescale, options.postscale = factors
        options.process_set = process_set.made()
        if wire is not None and tensor.dtype in WIDE:
            options.wire_dtype = DTYPES[wire]
        self._prepared, one = ctypes.c_void_p(), ctypes.byref(description)
        check(lib.ronde_allreduce_init(one, one, ctypes.byref(options),
                                       ctypes.byref(self._prepared)))

    def start(self, tensor: Tensor) -> Handle:
        """Starts it on a row-major tensor."""
        data, work = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p()
        check(lib.ronde_start(self._prepared, data, data, ctypes.byref(work)))
        return Handle(work, tensor, tensor, None, self._stream)

    def __del__(self) -> None:
        lib.ronde_persistent_free(self._prepared)
