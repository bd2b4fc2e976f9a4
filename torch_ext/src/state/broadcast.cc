// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/broadcast.h"

#include <utility>
#include <vector>

#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/first_error.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde {
namespace {

using detail::NamedTensors;

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
  // In memory, as a program begins with them in any stream, and all of them also after an error, so
  // that nothing is in flight afterwards.
  detail::FirstError first_error;
  for (const TensorWork& work : works) first_error.attempt([&] { work.wait_host(); });
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

}  // namespace ronde
