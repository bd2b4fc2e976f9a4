// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/broadcast.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <typeinfo>
#include <utility>
#include <vector>

#include "agreement.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "tensor_request.h"

namespace ronde {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Waits for all, so that nothing is in flight afterwards, and throws the first error.
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

std::string root_problem(int root_rank, ProcessSet set) {
  const int size = static_cast<int>(ranks_of(set).size());
  if (root_rank >= 0 && root_rank < size) return {};
  return "root_rank is " + std::to_string(root_rank) + ", but there are only the ranks 0 to " +
         std::to_string(size - 1) +
         (set == kGlobalSet ? "" : " in process set " + std::to_string(set.id));
}

detail::Statement state_tensors(const NamedTensors& tensors, int root_rank, ProcessSet set) {
  detail::Statement statement{.lines = {"root rank " + std::to_string(root_rank)},
                              .problem = root_problem(root_rank, set)};
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

// LibTorch fails to save an LBFGS that is past its second iteration: `al` has undefined elements
// then. It is scratch memory that every iteration fills before it reads it, and makes anew if
// absent.
void drop_scratch(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) == nullptr) return;
  for (auto& item : optimizer.state()) {
    static_cast<torch::optim::LBFGSParamState&>(*item.second).al(std::nullopt);
  }
}

std::string save_to_bytes(torch::optim::Optimizer& optimizer) {
  drop_scratch(optimizer);
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::string bytes;
  archive.save_to([&bytes](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
    return count;
  });
  return bytes;
}

// The tensor owns the bytes: after a group error the backend may outlive the caller's interest.
at::Tensor as_tensor(std::shared_ptr<std::string> bytes) {
  char* data = bytes->data();
  const auto count = static_cast<std::int64_t>(bytes->size());
  return at::from_blob(
      data, {count}, [owner = std::move(bytes)](void*) {}, at::kByte);
}

std::optional<c10::Device> device_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params().front().device();
  }
  return std::nullopt;
}

// LibTorch's load only adds: state of parameters that have none in `bytes` would survive it.
void load_from_bytes(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), device_of(optimizer));
  if (archive.keys().empty()) {
    throw UsageError("the optimiser saves nothing: its class must implement save() and load()");
  }
  auto previous = std::move(optimizer.state());
  optimizer.state().clear();
  try {
    optimizer.load(archive);
  } catch (...) {
    optimizer.state() = std::move(previous);
    throw;
  }
}

// What a failing save or load says, without LibTorch's stack trace.
template <typename Function>
std::string problem_of(const Function& function) {
  try {
    function();
    return {};
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

detail::Statement state_optimizer(const torch::optim::Optimizer& optimizer, int root_rank,
                                  ProcessSet set) {
  detail::Statement statement{.lines = {"root rank " + std::to_string(root_rank)},
                              .problem = root_problem(root_rank, set)};
  statement.lines.push_back(c10::demangle(typeid(optimizer).name()));
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const auto& parameters = optimizer.param_groups()[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      statement.lines.push_back("group " + std::to_string(group) + " parameter " +
                                std::to_string(i) + ": " + detail::describe(parameters[i]));
    }
  }
  return statement;
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

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root_rank,
                               ProcessSet process_set) {
  const std::string subject = "ronde::broadcast_optimizer_state";
  detail::check_member(subject, process_set);
  const bool is_root = rank_in(process_set) == root_rank;
  detail::Statement mine = state_optimizer(optimizer, root_rank, process_set);
  const auto bytes = std::make_shared<std::string>();
  if (is_root && mine.problem.empty()) {
    mine.problem = problem_of([&] { *bytes = save_to_bytes(optimizer); });
  }
  detail::agree(subject, mine, process_set);

  const at::Tensor count = at::full({}, static_cast<std::int64_t>(bytes->size()), at::kLong);
  broadcast_(count, {.name = subject + "/size", .root = root_rank, .process_set = process_set});
  bytes->resize(static_cast<std::size_t>(count.item<std::int64_t>()));
  broadcast_(as_tensor(bytes),
             {.name = subject + "/bytes", .root = root_rank, .process_set = process_set});

  detail::Statement loaded;
  if (!is_root) loaded.problem = problem_of([&] { load_from_bytes(optimizer, *bytes); });
  detail::agree(subject, loaded, process_set);
}

}  // namespace ronde
