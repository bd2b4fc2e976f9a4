// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ronde/options.h"
#include "ronde/torch/work.h"

/// Collectives on tensors. Every rank of the process set calls them with equal names, shapes and
/// dtypes (see each), in any order as long as names are given.
///
/// Tensors: dense ones on the CPU, of any strides: elements are matched by index, so ranks may hold
/// different memory formats. New results are contiguous. Reductions take integers (on GPUs
/// u16, u32 and u64 are moved alone), f16, bf16, f32, f64 and bool, and complex numbers by their
/// real and imaginary parts (sum, average, Adasum). Collectives that only move data, and messages,
/// also take every other dtype (float8) as bytes: of these the ranks compare the elements' size
/// alone.
///
/// Autograd (docs/collectives.md): the forms that wait are differentiable. The gradient of a rank's
/// tensor is that of the sum of all ranks' losses; a collective in backward computes it, so all
/// ranks record the operation and run backward through it, or none. With min and max, equal
/// elements share the gradient evenly. UsageError if autograd records Adasum, or min, max or
/// product of a reducescatter, scaled, in place or with a wire_dtype. A leaf that requires grad, or
/// a view of one, is written in place as under NoGradGuard. The async forms are not recorded: their
/// new results never require grad, and in place they refuse tensors that autograd has computed
/// (UsageError). All in-place forms bump the tensor's version.
///
/// The async forms return at once. Until the work is done an input must not be written, and a
/// tensor that is changed in place must be neither read nor written.
///
/// Errors: UsageError before anything is sent if this rank's tensor is invalid (undefined, meta,
/// sparse, quantised, of a dtype that cannot be reduced, on a device without a backend, in place
/// also if it overlaps itself). UsageError from the wait if the ranks disagree. GroupError if the
/// group is dead. Thread-safe.
namespace ronde {

/// Returns the elementwise combination of all ranks' tensors, by default their average.
at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options = {});
/// Reduces in place, and returns `tensor`.
at::Tensor allreduce_(const at::Tensor& tensor, const AllreduceOptions& options = {});
/// As above, without waiting.
/// @{
TensorWork allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options = {});
TensorWork allreduce_async_(const at::Tensor& tensor, const AllreduceOptions& options = {});
/// @}

/// Returns the sum or average of sparse tensors (layout COO), coalesced, by gathering the indices
/// and values of all ranks. Shapes, dtypes and the number of sparse dimensions are equal
/// on all ranks, the number of entries is not. Values travel in `wire_dtype`, rounded once, and are
/// added in their own type (f16 and bf16 in f32). Not recorded by autograd. UsageError for
/// another layout or op.
at::Tensor sparse_allreduce(const at::Tensor& tensor, const AllreduceOptions& options = {});

/// Returns a copy of the root's tensor; on other ranks only shape and dtype of `tensor` count.
at::Tensor broadcast(const at::Tensor& tensor, const BroadcastOptions& options = {});
/// Overwrites `tensor` with the root's, and returns it.
at::Tensor broadcast_(const at::Tensor& tensor, const BroadcastOptions& options = {});
/// As above, without waiting.
/// @{
TensorWork broadcast_async(const at::Tensor& tensor, const BroadcastOptions& options = {});
TensorWork broadcast_async_(const at::Tensor& tensor, const BroadcastOptions& options = {});
/// @}

/// Returns the tensors of all ranks joined along their first dimension, in rank order. Only that
/// dimension may differ between ranks; 0-dim tensors give a vector of one element a rank.
at::Tensor allgather(const at::Tensor& tensor, const AllgatherOptions& options = {});
/// As above, without waiting.
TensorWork allgather_async(const at::Tensor& tensor, const AllgatherOptions& options = {});

/// Combines the tensors of all ranks elementwise, by default to their average, and returns this
/// rank's rows of the result: the first dimension is divided in rank order, as evenly as
/// possible, the first ranks having one row more. 0-dim tensors are refused.
at::Tensor reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options = {});
/// As above, without waiting.
TensorWork reducescatter_async(const at::Tensor& tensor, const ReducescatterOptions& options = {});

/// Sends rows of the first dimension to every rank: the first `splits[0]` to rank 0, the next
/// `splits[1]` to rank 1, and so on; their sum is the first dimension. Without splits the rows must
/// divide evenly. Returns the rows received, joined in rank order; TensorWork::received_splits()
/// returns how many came from each rank. All dimensions but the
/// first are equal on all ranks; 0-dim tensors are refused.
at::Tensor alltoall(const at::Tensor& tensor, at::IntArrayRef splits = {},
                    const AlltoallOptions& options = {});
/// As above, without waiting.
TensorWork alltoall_async(const at::Tensor& tensor, at::IntArrayRef splits = {},
                          const AlltoallOptions& options = {});

/// Operations on several tensors, all or none: they begin together once every rank has called with
/// all of them; if one is refused all are, and no tensor is changed. The names are the group's with
/// ".0", ".1" and so on; groups without a name are matched by the order of calls. A list must not
/// be empty; in place, its tensors must not overlap each other.
///
/// Autograd: the gradients are a group as well. If one tensor is recorded, all
/// floating-point and complex ones are; results that a rank's loss does not use count as zeros in
/// backward. Recording in place costs a copy.
///
/// The forms that end in `_` work in place; grouped_allreduce_ returns `tensors`.
/// @{
std::vector<at::Tensor> grouped_allreduce(const std::vector<at::Tensor>& tensors,
                                          const AllreduceOptions& options = {});
std::vector<at::Tensor> grouped_allreduce_(const std::vector<at::Tensor>& tensors,
                                           const AllreduceOptions& options = {});
GroupWork grouped_allreduce_async(const std::vector<at::Tensor>& tensors,
                                  const AllreduceOptions& options = {});
GroupWork grouped_allreduce_async_(const std::vector<at::Tensor>& tensors,
                                   const AllreduceOptions& options = {});

std::vector<at::Tensor> grouped_allgather(const std::vector<at::Tensor>& tensors,
                                          const AllgatherOptions& options = {});
GroupWork grouped_allgather_async(const std::vector<at::Tensor>& tensors,
                                  const AllgatherOptions& options = {});

std::vector<at::Tensor> grouped_reducescatter(const std::vector<at::Tensor>& tensors,
                                              const ReducescatterOptions& options = {});
GroupWork grouped_reducescatter_async(const std::vector<at::Tensor>& tensors,
                                      const ReducescatterOptions& options = {});
/// @}

// Messages from one rank to another, matched as in MPI: those of one tag between two ranks arrive
// in the order in which they were sent. Both sides give as many elements of one dtype; shapes and
// strides may differ. Autograd records neither side, and recv_ refuses a tensor that autograd has
// computed (UsageError).

/// Returns once the tensor may be changed again, which is once the other rank has received it.
void send(const at::Tensor& tensor, const SendOptions& options);
/// The work's result is an undefined tensor.
TensorWork send_async(const at::Tensor& tensor, const SendOptions& options);

/// Overwrites `tensor`. Returns the rank, within the process set, that the message came from.
int recv_(const at::Tensor& tensor, const RecvOptions& options = {});
/// Work::source() returns the sender's rank.
TensorWork recv_async_(const at::Tensor& tensor, const RecvOptions& options = {});

}  // namespace ronde
