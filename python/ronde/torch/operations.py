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
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Optional, ParamSpec, Union

import torch
from torch import Tensor

from ronde import _library as c
from ronde._library import lib
from ronde.torch.basics import ProcessSet, check, failure, rank
from ronde.torch.basics import global_process_set as ALL
from ronde.torch.compression import Compression

Average, Sum, Adasum, Min, Max, Product = c.AVERAGE, c.SUM, c.ADASUM, c.MIN, c.MAX, c.PRODUCT
DTYPES = {torch.uint8: c.U8, torch.int8: c.I8, torch.int16: c.I16, torch.int32: c.I32,
          torch.int64: c.I64, torch.float16: c.F16, torch.bfloat16: c.BF16, torch.float32: c.F32,
          torch.float64: c.F64, torch.bool: c.BOOL, torch.uint16: c.U16, torch.uint32: c.U32,
          torch.uint64: c.U64, torch.complex64: c.C64, torch.complex128: c.C128}
INTEGERS = {dtype for dtype in DTYPES if not (dtype.is_floating_point or dtype.is_complex)}
Name = Optional[str]
P = ParamSpec("P")
Tensors = Sequence[Tensor]
Finish = Optional[Callable[["Handle"], Any]]
_CALLS = {kind: getattr(lib, "ronde_" + kind)
          for kind in ("allreduce", "broadcast", "allgather", "alltoall", "reducescatter")}
_SLICE_S = ctypes.c_double(0.1)  # Ctrl-C ends a wait within this time


class _Scratch(threading.local):
    """The structs of a call, for each thread. The library copies what they say."""

    def __init__(self) -> None:
        self.input, self.output, self.options = c.Tensor(), c.Tensor(), c.OperationOptions()
        self.arguments = tuple(map(ctypes.byref, (self.input, self.output, self.options)))


_scratch = _Scratch()


class Handle:
    """An operation in flight. It keeps its tensors until then, also where the program drops it."""

    __slots__ = ("work", "kept", "result", "finish", "done", "stream")

    def __init__(self, work: ctypes.c_void_p, kept: Any, result: Any, finish: Finish = None,
                 stream: Optional[int] = None) -> None:
        self.work, self.kept, self.result, self.finish = work, kept, result, finish
        self.stream = stream  # the program's, where tensors are on a GPU
        self.done = False

    def poll(self) -> bool:
        """Whether wait() does not block."""
        return self.done or c.number(lib.ronde_work_done, self.work) != 0

    def wait(self) -> Any:
        """Blocks until it is done, and returns its result, but None after the first time."""
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

    def __del__(self) -> None:
        if self.done or self.poll():
            lib.ronde_work_free(self.work)
        else:
            _dropped[:] = [one for one in _dropped if not one.poll()]
            _dropped.append(Handle(self.work, self.kept, self.result, None, self.stream))


_dropped: list[Handle] = []  # in flight, so that their tensors are in use


class _Several:
    """Handles as one; the result is that of ``finish`` of theirs."""

    def __init__(self, parts: Sequence[Handle], finish: Callable[..., Any]) -> None:
        self._parts, self._finish = parts, finish

    def poll(self) -> bool:
        return all(part.poll() for part in self._parts)

    def wait(self) -> Any:
        return self._finish(*[part.wait() for part in self._parts])

    __call__ = wait  # what Horovod gives for sparse tensors is a function


def _describe(struct: Any, tensor: Tensor) -> Optional[int]:
    """Fills a ronde_tensor. Returns the stream that a tensor on a GPU is used in."""
    shape: Sequence[int] = tensor.shape
    if len(shape) > c.MAX_DIMS:
        shape = (shape[0], tensor[:1].numel())
    struct.data, struct.dims, struct.dtype = tensor.data_ptr(), len(shape), DTYPES[tensor.dtype]
    struct.room[:len(shape)] = shape
    if not tensor.is_cuda:
        struct.device, struct.stream = -1, None
        return None
    stream: int = torch.cuda.current_stream(tensor.device).cuda_stream
    struct.device, struct.stream = tensor.device.index, stream
    return stream


def _dense(tensor: Tensor, has_rows: bool = False) -> Tensor:
    """The tensor, or a copy in row-major order; ValueError for one that cannot be sent."""
    if has_rows and tensor.dim() == 0:
        raise ValueError("a scalar has no rows to join or to divide")
    if tensor.layout != torch.strided or tensor.dtype not in DTYPES:
        raise ValueError(f"tensors of {tensor.dtype}, {tensor.layout} are not supported")
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().contiguous().resolve_conj().resolve_neg()


def _submit(kind: str, tensor: Tensor, output: Optional[Tensor], name: Name,
            process_set: ProcessSet, finish: Finish = None, op: int = Sum,
            factors: tuple[float, float] = (1.0, 1.0), root: int = 0,
            splits: Optional[list[int]] = None) -> Handle:
    """Starts an operation whose result is ``output``, or what the work brings."""
    scratch, options = _scratch, _scratch.options
    stream = _describe(scratch.input, tensor)
    into, kept = None, [tensor]
    options.allocate = c.Allocate()
    if output is not None:
        _describe(scratch.output, output)
        into = scratch.arguments[1]
        kept.append(output)
    elif stream is not None:
        options.allocate = _allocator(kept)
    options.name = None if name is None else f"{kind}.{name}".encode()
    options.caller_orders = int(name is None)
    options.op, options.root, options.process_set = op, root, process_set.made()
    options.prescale, options.postscale = factors
    options.splits = None if splits is None else (ctypes.c_int64 * len(splits))(*splits)
    options.split_count = 0 if splits is None else len(splits)
    work = ctypes.c_void_p()
    code = _CALLS[kind](scratch.arguments[0], into, scratch.arguments[2], ctypes.byref(work))
    if code:
        raise failure(code)
    return Handle(work, kept, output, finish, stream)


def _allocator(kept: list[Any]) -> Any:
    """Gives memory on a GPU for a result, from Ronde's thread, and adds the tensor to ``kept``."""
    like: Tensor = kept[0]
    stream = torch.cuda.current_stream(like.device)

    def allocate(_: Any, shape: Any, dims: int) -> int:
        try:
            with torch.cuda.stream(stream):
                kept.append(like.new_empty((shape[0], *like.shape[1:])))
        except RuntimeError:  # no memory; out of here it would leave the result undefined
            return 0
        return kept[-1].data_ptr()

    callback = c.Allocate(allocate)
    kept.append(callback)
    return callback


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
    owner = Handle(handle.work, None, None)
    owner.done = True
    buffer.owner = owner  # type: ignore[attr-defined]
    handle.work = ctypes.c_void_p()
    return torch.frombuffer(buffer, dtype=like.dtype).view(sizes)


def _group(start: Callable[..., Handle], tensors: Tensors, name: Name, process_set: ProcessSet,
           **options: Any) -> Any:
    """Starts an operation for each tensor, all or none; the result is the tuple of theirs."""
    if not tensors:
        return _Several([], lambda: ())
    check(lib.ronde_group_begin(process_set.made()))
    members = []
    try:
        for i, tensor in enumerate(tensors):
            own = None if name is None else f"{name}.{i}"
            members.append(start(tensor, name=own, process_set=process_set, **options))
    except BaseException:
        lib.ronde_group_cancel()
        raise
    work = ctypes.c_void_p()
    check(lib.ronde_group_end(ctypes.byref(work)))
    return Handle(work, members, None, lambda _: tuple([one.wait() for one in members]),
                  members[0].stream)


class _Recorded(torch.autograd.Function):
    """A collective of tensors, and what gives their gradients."""

    @staticmethod
    def forward(ctx: Any, call: Callable[..., Any], back: Callable[..., Any], *tensors: Any) -> Any:
        ctx.back = back
        return call(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, *ctx.back(*gradients))


def _apply(call: Callable[..., Any], back: Callable[..., Any], *tensors: Tensor) -> Any:
    """Calls, and records it where autograd does."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _Recorded.apply(call, back, *tensors)  # type: ignore[no-untyped-call]
    return call(*tensors)


def _compressed(call: Callable[..., Any], back: Callable[..., Any], compression: Any,
                tensors: Tensors) -> list[Tensor]:
    sent = [compression.compress(tensor) for tensor in tensors]
    results = _apply(call, back, *[tensor for tensor, _ in sent])
    return [compression.decompress(one, ctx) for one, (_, ctx) in zip(results, sent)]


def _waiting(start: Callable[P, Any]) -> Callable[P, Any]:
    """The form of an asynchronous operation that waits."""
    @functools.wraps(start)
    def wait(*arguments: P.args, **options: P.kwargs) -> Any:
        return start(*arguments, **options).wait()

    wait.__name__ = wait.__qualname__ = start.__name__.replace("_async", "")
    wait.__doc__ = f"As {start.__name__}(); waits, and returns the result."
    return wait


def _op(op: Optional[int], average: Optional[bool]) -> int:
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn("average= is deprecated, use op=", DeprecationWarning, stacklevel=3)
    return Average if average else Sum


def _reduce(kind: str, tensor: Tensor, output: Tensor, result: Tensor, name: Name,
            process_set: ProcessSet, op: int, prescale: float, postscale: float) -> Handle:
    """A reduction of row-major tensors; ``result`` gets the output."""
    after = 1.0
    if (prescale != 1.0 or postscale != 1.0) and tensor.dtype in INTEGERS:
        # Horovod truncates a product before it sums; the engine's sums of products are exact.
        if op == Average:
            op, postscale = Sum, postscale / process_set.count()
        tensor = (tensor.double() * prescale).to(tensor.dtype)
        prescale, postscale, after = 1.0, 1.0, postscale

    def finish(_: Handle) -> Tensor:
        if after != 1.0:
            output.copy_(output.double() * after)
        if result is not output:
            result.detach().copy_(output)
        return result

    return _submit(kind, tensor, output, name, process_set,
                   finish if after != 1.0 or result is not output else None, op,
                   (prescale, postscale))


def _allreduce(tensor: Tensor, name: Name, process_set: ProcessSet, op: int, prescale: float,
               postscale: float, in_place: bool) -> Handle:
    source = _dense(tensor)
    output = source if in_place else torch.empty_like(source)
    return _reduce("allreduce", source, output, tensor if in_place else output, name, process_set,
                   op, prescale, postscale)


def allreduce_async(tensor: Tensor, average: Optional[bool] = None, name: Name = None,
                    op: Optional[int] = None, prescale_factor: float = 1.0,
                    postscale_factor: float = 1.0, process_set: ProcessSet = ALL) -> Handle:
    """Starts an allreduce into a new tensor; see allreduce()."""
    return _allreduce(tensor, name, process_set, _op(op, average), prescale_factor,
                      postscale_factor, False)


def allreduce_async_(tensor: Tensor, average: Optional[bool] = None, name: Name = None,
                     op: Optional[int] = None, prescale_factor: float = 1.0,
                     postscale_factor: float = 1.0, process_set: ProcessSet = ALL) -> Handle:
    """Starts an allreduce in place."""
    return _allreduce(tensor, name, process_set, _op(op, average), prescale_factor,
                      postscale_factor, True)


def grouped_allreduce_async(tensors: Tensors, average: Optional[bool] = None, name: Name = None,
                            op: Optional[int] = None, prescale_factor: float = 1.0,
                            postscale_factor: float = 1.0, process_set: ProcessSet = ALL) -> Any:
    """Starts allreduces into new tensors."""
    return _group(allreduce_async, tensors, name, process_set, op=_op(op, average),
                  prescale_factor=prescale_factor, postscale_factor=postscale_factor)


def grouped_allreduce_async_(tensors: Tensors, average: Optional[bool] = None, name: Name = None,
                             op: Optional[int] = None, prescale_factor: float = 1.0,
                             postscale_factor: float = 1.0, process_set: ProcessSet = ALL) -> Any:
    """Starts allreduces in place."""
    return _group(allreduce_async_, tensors, name, process_set, op=_op(op, average),
                  prescale_factor=prescale_factor, postscale_factor=postscale_factor)


allreduce_ = _waiting(allreduce_async_)
grouped_allreduce_ = _waiting(grouped_allreduce_async_)


def allreduce(tensor: Tensor, average: Optional[bool] = None, name: Name = None,
              compression: Any = Compression.none, op: Optional[int] = None,
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
    rest: Any = (_op(op, average), prescale_factor, postscale_factor, process_set)
    return _compressed(lambda one: (allreduce_async(one, None, name, *rest).wait(),),
                       lambda one: [allreduce(one, None, None, Compression.none, *rest)],
                       compression, [tensor])[0]


def grouped_allreduce(tensors: Tensors, average: Optional[bool] = None, name: Name = None,
                      compression: Any = Compression.none, op: Optional[int] = None,
                      prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: ProcessSet = ALL) -> list[Tensor]:
    """As allreduce(), of several tensors."""
    rest: Any = (_op(op, average), prescale_factor, postscale_factor, process_set)
    return _compressed(lambda *all: grouped_allreduce_async(all, None, name, *rest).wait(),
                       lambda *all: grouped_allreduce(all, None, None, Compression.none, *rest),
                       compression, tensors)


def sparse_allreduce_async(tensor: Tensor, name: Name = None, op: Optional[int] = None,
                           process_set: ProcessSet = ALL) -> Any:
    """Starts a sum or an average of sparse tensors, not coalesced; ``handle()`` waits for it."""
    op = _op(op, None)
    if op not in (Average, Sum):
        raise ValueError("sparse tensors are summed or averaged")
    gathered = [allgather_async(part, name and f"{name}.{of}", process_set) for part, of in
                ((tensor._indices().t(), "indices"), (tensor._values(), "values"))]

    def finish(indices: Tensor, values: Tensor) -> Tensor:
        if op == Average:
            values = values / process_set.count()
        # Other ranks' tensors may be larger.
        with torch.sparse.check_sparse_tensor_invariants(True):  # type: ignore[no-untyped-call]
            return torch.sparse_coo_tensor(indices.t(), values, tensor.size())

    return _Several(gathered, finish)


def allgather_async(tensor: Tensor, name: Name = None, process_set: ProcessSet = ALL) -> Handle:
    """Starts an allgather; see allgather()."""
    return _submit("allgather", _dense(tensor, True), None, name, process_set, _brought)


def grouped_allgather_async(tensors: Tensors, name: Name = None,
                            process_set: ProcessSet = ALL) -> Any:
    """Starts allgathers of several tensors."""
    return _group(allgather_async, tensors, name, process_set)


def _own_parts(gradients: Tensors, rows: list[int], process_set: ProcessSet) -> list[Tensor]:
    """This rank's rows of the averaged gradients of allgathers."""
    averaged = grouped_allreduce(gradients, process_set=process_set)
    counts = allgather(torch.tensor([rows]), process_set=process_set)
    before = counts[:process_set.rank()].sum(0).tolist()
    return [one[first:first + own] for one, first, own in zip(averaged, before, rows)]


def allgather(tensor: Tensor, name: Name = None, process_set: ProcessSet = ALL) -> Tensor:
    """Returns the ranks' tensors one after the other; their first dimensions may differ."""
    rows = list(tensor.shape[:1])
    return _apply(lambda one: allgather_async(one, name, process_set).wait(),
                  lambda one: _own_parts([one], rows, process_set), tensor)


def grouped_allgather(tensors: Tensors, name: Name = None,
                      process_set: ProcessSet = ALL) -> Tensors:
    """As allgather(), of several tensors."""
    rows = [tensor.shape[0] for tensor in tensors]
    return _apply(lambda *all: grouped_allgather_async(all, name, process_set).wait(),
                  lambda *all: _own_parts(all, rows, process_set), *tensors)


def _broadcast(tensor: Tensor, root_rank: int, name: Name, process_set: ProcessSet,
               in_place: bool) -> Handle:
    source = _dense(tensor)
    output = source if in_place else torch.empty_like(source)
    root = root_rank
    if process_set is not ALL:
        if root not in process_set.ranks:
            raise ValueError(f"the root, rank {root}, is not in {process_set}")
        root = process_set.ranks.index(root)

    def copy_back(_: Handle) -> Tensor:
        tensor.detach().copy_(source)
        return tensor

    return _submit("broadcast", source, output, name, process_set,
                   copy_back if in_place and source is not tensor else None, root=root)


def broadcast_async(tensor: Tensor, root_rank: int, name: Name = None,
                    process_set: ProcessSet = ALL) -> Handle:
    """Starts a broadcast into a new tensor; see broadcast()."""
    return _broadcast(tensor, root_rank, name, process_set, False)


def broadcast_async_(tensor: Tensor, root_rank: int, name: Name = None,
                     process_set: ProcessSet = ALL) -> Handle:
    """Starts a broadcast in place."""
    return _broadcast(tensor, root_rank, name, process_set, True)


def broadcast(tensor: Tensor, root_rank: int, name: Name = None,
              process_set: ProcessSet = ALL) -> Tensor:
    """Returns the tensor of rank ``root_rank``, which is a number in the whole group."""
    def back(gradient: Tensor) -> list[Tensor]:
        averaged = allreduce(gradient, process_set=process_set)
        return [averaged if rank() == root_rank else averaged * 0]

    return _apply(lambda one: broadcast_async(one, root_rank, name, process_set).wait(), back,
                  tensor)


broadcast_ = _waiting(broadcast_async_)


def _split_list(rows: int, splits: Any, ranks: int) -> Optional[list[int]]:
    if splits is None:
        if rows % ranks:
            raise ValueError(f"{rows} rows do not divide by {ranks} ranks: give splits")
        return None
    if isinstance(splits, Tensor):
        if splits.dtype not in (torch.int32, torch.int64):
            raise ValueError("splits are integers of 32 or 64 bits")
        splits = splits.tolist()
    if len(splits) != ranks or min(splits) < 0 or sum(splits) > rows:
        raise ValueError(f"splits {splits} do not divide {rows} rows among {ranks} ranks")
    return list(splits)


def alltoall_async(tensor: Tensor, splits: Union[Tensor, Sequence[int], None] = None,
                   name: Name = None, process_set: ProcessSet = ALL) -> Handle:
    """Starts an alltoall; the result is always the pair of tensor and received splits."""
    tensor, ranks = _dense(tensor, True), process_set.count()
    numbers = _split_list(tensor.shape[0], splits, ranks)
    like = splits if isinstance(splits, Tensor) else torch.empty(0, dtype=torch.int32)

    def finish(handle: Handle) -> tuple[Tensor, Tensor]:
        received = (ctypes.c_int64 * ranks)()
        check(lib.ronde_work_splits(handle.work, received))
        return _brought(handle), like.new_tensor(list(received))

    return _submit("alltoall", tensor if numbers is None else tensor[:sum(numbers)], None, name,
                   process_set, finish, splits=numbers)


def alltoall(tensor: Tensor, splits: Union[Tensor, Sequence[int], None] = None, name: Name = None,
             process_set: ProcessSet = ALL) -> Any:
    """Sends ``splits[r]`` rows to rank r of the set, without splits equally many to each.

    Returns the rows that came, in rank order, and, where splits are given, how many from each.
    """
    received, rows = torch.empty(0), tensor.shape[:1]

    def call(one: Tensor) -> Tensor:
        nonlocal received
        result, received = alltoall_async(one, splits, name, process_set).wait()
        return result

    def back(gradient: Tensor) -> list[Tensor]:
        own, _ = alltoall(gradient, received, process_set=process_set)
        unsent = rows[0] - own.shape[0]
        return [torch.cat([own, own.new_zeros(unsent, *own.shape[1:])]) if unsent else own]

    result = _apply(call, back, tensor)
    return result if splits is None else (result, received)


def reducescatter_async(tensor: Tensor, name: Name = None, op: int = Average,
                        process_set: ProcessSet = ALL, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> Handle:
    """Starts a reducescatter; see reducescatter()."""
    source, own = _dense(tensor, True), process_set.rank() or 0
    rows, more = divmod(source.shape[0], process_set.count())
    output = source.new_empty((rows + (own < more), *source.shape[1:]))
    return _reduce("reducescatter", source, output, output, name, process_set, op, prescale_factor,
                   postscale_factor)


def grouped_reducescatter_async(tensors: Tensors, name: Name = None, op: int = Average,
                                process_set: ProcessSet = ALL, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> Any:
    """Starts reducescatters of several tensors."""
    return _group(reducescatter_async, tensors, name, process_set, op=op,
                  prescale_factor=prescale_factor, postscale_factor=postscale_factor)


def reducescatter(tensor: Tensor, name: Name = None, compression: Any = Compression.none,
                  op: int = Average, process_set: ProcessSet = ALL, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> Tensor:
    """Reduces, and returns this rank's rows of the result; the first ranks get those left over."""
    rest: Any = (name, op, process_set, prescale_factor, postscale_factor)
    return _compressed(lambda one: (reducescatter_async(one, *rest).wait(),),
                       lambda one: _all_parts([one], *rest), compression, [tensor])[0]


def _all_parts(gradients: Tensors, _: Name, op: int, process_set: ProcessSet, prescale: float,
               postscale: float) -> Tensors:
    """The gradients of reducescatters: those of all parts, scaled as in Horovod."""
    factor = prescale * postscale * (process_set.count() if op == Sum else 1)
    return grouped_allgather([one * factor for one in gradients], process_set=process_set)


def grouped_reducescatter(tensors: Tensors, name: Name = None, compression: Any = Compression.none,
                          op: int = Average, process_set: ProcessSet = ALL,
                          prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> list[Tensor]:
    """As reducescatter(), of several tensors."""
    rest: Any = (name, op, process_set, prescale_factor, postscale_factor)
    return _compressed(lambda *all: grouped_reducescatter_async(all, *rest).wait(),
                       lambda *all: _all_parts(all, *rest), compression, tensors)


def poll(handle: Any) -> bool:
    """Whether an operation is done, so that synchronize() does not block."""
    return handle.poll()


def synchronize(handle: Any) -> Any:
    """Waits for an operation, and returns its tensor or tuple; None the second time."""
    return handle.wait()


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined, it adds zeros to their reductions.

    An average divides by all ranks. Returns the rank that joined last. ``device`` is not needed.
    """
    work = ctypes.c_void_p()
    check(lib.ronde_join(0, ctypes.byref(work)))
    return Handle(work, None, None, lambda handle: c.number(lib.ronde_work_last_rank,
                                                            handle.work)).wait()


def barrier(process_set: ProcessSet = ALL) -> None:
    """Waits until all ranks of the set have called it."""
    options, work = c.OperationOptions(), ctypes.c_void_p()
    options.process_set, options.caller_orders = process_set.made(), 1
    check(lib.ronde_barrier(ctypes.byref(options), ctypes.byref(work)))
    Handle(work, None, None).wait()


class PreparedAllreduce:
    """An allreduce in place that is started for each step, on tensors of one shape and type."""

    def __init__(self, tensor: Tensor, name: str, op: int, factors: tuple[float, float],
                 wire_dtype: Optional[torch.dtype], process_set: ProcessSet) -> None:
        description, options = c.Tensor(), c.OperationOptions()
        self.dtype, self.device = tensor.dtype, tensor.device
        self._stream = _describe(description, tensor)
        options.name, options.op = f"allreduce.{name}".encode(), op
        options.prescale, options.postscale = factors
        options.process_set = process_set.made()
        if wire_dtype is not None and tensor.dtype in (torch.float32, torch.float64):
            options.wire_dtype = DTYPES[wire_dtype]
        self._prepared = ctypes.c_void_p()
        check(lib.ronde_allreduce_init(ctypes.byref(description), ctypes.byref(description),
                                       ctypes.byref(options), ctypes.byref(self._prepared)))

    def start(self, tensor: Tensor) -> Handle:
        """Starts it on a row-major tensor."""
        data, work = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p()
        code = lib.ronde_start(self._prepared, data, data, ctypes.byref(work))
        if code:
            raise failure(code)
        return Handle(work, tensor, tensor, None, self._stream)

    def __del__(self) -> None:
        lib.ronde_persistent_free(self._prepared)
