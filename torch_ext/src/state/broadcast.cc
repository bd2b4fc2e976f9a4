// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/broadcast.h"

#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Waits for all, on whatever device, as a program begins with them in any stream, so that nothing
// is in flight afterwards, and throws the first error.
void wait_all(std::span<const TensorWork> works) {
  std::exception_ptr first;
  for (const TensorWork& work : works) {
    try {
      work.wait_host();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

detail::Statement state_tensors(const NamedTensors& tensors, int root_rank, ProcessSet set) {
  detail::Statement statement{.lines = {"root rank " + std::to_string(root_rank)},
                              .problem = detail::root_problem(root_rank, set)};
  for (const auto& [name, tensor] : tensors) {
    statement.lines.push_back(name + ": " + detail::describe(tensor));
    if (!tensor.defined() || !statement.problem.empty()) continue;
    try {
      detail::check_writable(name, tensor);
    } catch (const UsageError& error) {
      statement.problem = error.what();
    }
  }
  return statement;
}

void broadcast_tensors(const NamedTensors& tensors, int root_rank, ProcessSet set) {
  const std::string subject = "ronde::broadcast_parameters";
  detail::check_member(subject, set);
  detail::agree(subject, state_tensors(tensors, root_rank, set), set);
  std::vector<TensorWork> works;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    works.push_back(broadcast_async_(
        tensor, {.name = subject + "/" + name, .root = root_rank, .process_set = set}));
  }
  wait_all(works);
}

void append(NamedTensors& all, const std::string& prefix,
            const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  for (const auto& item : tensors) all.emplace_back(prefix + item.key(), item.value());
}

}  // namespace

void broadcast_parameters(const torch::nn::Module& module, int root_rank, ProcessSet process_set) {
  NamedTensors tensors;
  append(tensors, "parameter ", module.named_parameters());
  append(tensors, "buffer ", module.named_buffers());
  broadcast_tensors(tensors, root_rank, process_set);
}

void broadcast_parameters(const torch::OrderedDict<std::string, at::Tensor>& tensors, int root_rank,
                          ProcessSet process_set) {
  NamedTensors list;
  append(list, "", tensors);
  broadcast_tensors(list, root_rank, process_set);
}

}  // namespace ronde
