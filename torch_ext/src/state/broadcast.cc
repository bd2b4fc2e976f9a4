// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/broadcast.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "ronde/ronde.h"
#include "ronde/torch/replicas.h"
#include "ronde/torch/script.h"
#include "torch_ext/src/autograd/autograd.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde {
namespace {

using detail::NamedTensors;

/// Describes elements that share memory, which must be alike on the root.
std::string repeats_of(const at::Tensor& tensor) {
  const bool is_dense = tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested();
  if (!is_dense || !detail::may_overlap_itself(tensor)) return {};
  return ", elements of which share memory (strides " + detail::describe_shape(tensor.strides()) +
         ")";
}

/// Prepares all operations, so that failures of one rank occur before any rank's tensors change.
std::vector<detail::Prepared> prepare(const NamedTensors& tensors, const std::string& subject,
                                      int root_rank, ProcessSet set) {
  std::vector<detail::Prepared> prepared;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    detail::check_tensor(name, tensor);
    detail::refuse_recorded(name, "broadcast_", tensor);
    const at::Tensor places = detail::without_repeats(tensor.detach());
    const BroadcastOptions options{
        .name = subject + "/" + name, .root = root_rank, .process_set = set};
    prepared.push_back(
        detail::prepare_in_place(detail::request_for(Collective::Broadcast, places, options),
                                 places, rank_in(set) == root_rank));
  }
  return prepared;
}

/// The addresses of a tensor's first element and behind its last one.
struct Extent {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

Extent extent_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + static_cast<std::uintptr_t>(last + 1) * tensor.itemsize()};
}

void broadcast_tensors(const NamedTensors& tensors, int root_rank, ProcessSet set) {
  const std::string subject = "ronde::broadcast_parameters";
  detail::check_member(subject, set);
  detail::Statement mine{.lines = {"root rank " + std::to_string(root_rank)},
                         .problem = detail::root_problem(root_rank, set)};
  for (const auto& [name, tensor] : tensors) {
    mine.lines.push_back(name + ": " + detail::describe(tensor) + repeats_of(tensor));
  }
  std::vector<detail::Prepared> prepared;
  if (mine.problem.empty()) {
    mine.problem =
        detail::problem_of([&] { prepared = prepare(tensors, subject, root_rank, set); });
  }
  detail::agree(subject, mine, set);
  std::vector<TensorWork> works;
  std::vector<Extent> in_flight;
  // Waits on the host, as a program may use the tensors in any stream next, and for all works even
  // after an error, so that nothing is in flight afterwards.
  detail::FirstError first_error;
  const auto wait_for_all = [&] {
    for (const TensorWork& work : works) first_error.attempt([&] { work.wait_host(); });
    works.clear();
    in_flight.clear();
  };
  std::size_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    // Two operations in flight must not write the same memory, as those of tied weights would.
    const Extent extent = extent_of(tensor);
    const bool is_in_use = std::ranges::any_of(in_flight, [&](const Extent& other) {
      return extent.begin < other.end && other.begin < extent.end;
    });
    if (is_in_use) wait_for_all();
    in_flight.push_back(extent);
    works.push_back(detail::start(std::move(prepared[next++])));
    detail::mark_written(tensor);
  }
  wait_for_all();
  first_error.rethrow();
}

}  // namespace

void broadcast_parameters(const torch::nn::Module& module, int root_rank, ProcessSet process_set) {
  broadcast_tensors(detail::tensors_in(module), root_rank, process_set);
}

void broadcast_parameters(const torch::OrderedDict<std::string, at::Tensor>& tensors, int root_rank,
                          ProcessSet process_set) {
  NamedTensors list;
  for (const auto& item : tensors) list.emplace_back(item.key(), item.value());
  broadcast_tensors(list, root_rank, process_set);
}

torch::OrderedDict<std::string, at::Tensor> named_parameters(const torch::jit::Module& module) {
  torch::OrderedDict<std::string, at::Tensor> parameters("Parameter");
  std::set<const at::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!seen.insert(item.value.unsafeGetTensorImpl()).second) continue;
    parameters.insert(item.name, item.value);
  }
  return parameters;
}

void broadcast_parameters(const torch::jit::Module& module, int root_rank, ProcessSet process_set) {
  torch::OrderedDict<std::string, at::Tensor> tensors("Tensor");
  for (const auto& [name, tensor] : detail::tensors_in(module)) tensors.insert(name, tensor);
  broadcast_parameters(tensors, root_rank, process_set);
}

void check_replicas(const torch::jit::Module& module, ProcessSet process_set) {
  check_replicas(named_parameters(module), process_set);
}

}  // namespace ronde
