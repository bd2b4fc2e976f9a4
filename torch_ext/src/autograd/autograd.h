// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ronde/options.h"

// The collectives whose results have a gradient: what the forms that wait do for a tensor that
// autograd records.
namespace ronde::detail {

/// Whether autograd records what is done with `tensor` here and now.
bool is_recorded(const at::Tensor& tensor);

/// Whether it records what is done with a group: with one of the tensors.
bool is_recorded(const std::vector<at::Tensor>& tensors);

/// The same for changing it in place. A leaf, or a view of one, is changed without a record, as
/// under NoGradGuard: so are parameters given their first values.
bool is_recorded_in_place(const at::Tensor& tensor);

/// Throws UsageError for a tensor that autograd has computed and would have to be told of: nothing
/// records what changes after the call has returned. `function`: "allreduce", whose waiting form
/// is named.
void refuse_recorded(const std::string& function, const std::string& name,
                     const at::Tensor& tensor);

// Each throws what the plain form throws, and UsageError for an operation that has no gradient.
// Their operations in backward are named after that of forward.
at::Tensor recorded_allreduce(const at::Tensor& tensor, const AllreduceOptions& options);
at::Tensor recorded_allreduce_(const at::Tensor& tensor, const AllreduceOptions& options);
at::Tensor recorded_broadcast(const at::Tensor& tensor, const BroadcastOptions& options);
at::Tensor recorded_broadcast_(const at::Tensor& tensor, const BroadcastOptions& options);
at::Tensor recorded_allgather(const at::Tensor& tensor, const AllgatherOptions& options);
at::Tensor recorded_reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options);
at::Tensor recorded_alltoall(const at::Tensor& tensor, at::IntArrayRef splits,
                             const AlltoallOptions& options);
std::vector<at::Tensor> recorded_grouped_allreduce(const std::vector<at::Tensor>& tensors,
                                                   const AllreduceOptions& options);
std::vector<at::Tensor> recorded_grouped_allreduce_(const std::vector<at::Tensor>& tensors,
                                                    const AllreduceOptions& options);
std::vector<at::Tensor> recorded_grouped_allgather(const std::vector<at::Tensor>& tensors,
                                                   const AllgatherOptions& options);
std::vector<at::Tensor> recorded_grouped_reducescatter(const std::vector<at::Tensor>& tensors,
                                                       const ReducescatterOptions& options);

}  // namespace ronde::detail
