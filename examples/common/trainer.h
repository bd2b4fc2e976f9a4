// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ronde/torch/checkpoint.h>
#include <ronde/torch/distributed_optimizer.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

namespace example {

/// Returns the device for --device: "cpu", or "cuda", a GPU of its own for each rank of a host.
/// Must be called after Ronde's init and before any call of ATen that asks for CUDA, such as
/// torch::manual_seed(): it loads libtorch_cuda, which LibTorch does not notice later. Throws
/// InputError, with what to do, where Ronde has no GPU.
torch::Device choose_device(const std::string& name);

/// Copies a tensor of the CPU to `device`; for a GPU the copy is queued and not waited for.
torch::Tensor send_to(const torch::Tensor& tensor, torch::Device device);

/// A module to train, and its loss on a batch that never changes.
struct Task {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor()> loss;
};

/// Connected ranks train as one through Ronde; unconnected ones exchange nothing.
enum class Link { connected, unconnected };

/// The types in which numbers are computed and sent.
struct Precision {
  bool amp = false;             ///< forward in bf16, by autocast
  bool fp16_allreduce = false;  ///< gradients are sent as fp16
};

/// Steps of SGD on a task. Both links run the same code but for the optimizer that is called.
class Trainer {
 public:
  /// `learning_rate` is for one rank: connected ranks, whose batch is so many times as large,
  /// multiply it by their number. Connecting is collective.
  Trainer(Task task, double learning_rate, Link link, Precision precision = {});
  Trainer(const Trainer&) = delete;  // distributed_ refers to sgd_
  Trainer& operator=(const Trainer&) = delete;

  void run(std::int64_t steps);

  /// Runs, and returns the seconds that it took, those of a GPU's queue included.
  double time(std::int64_t steps);

  const torch::nn::Module& module() const { return *task_.module; }

  /// Adds all that training changes, to be saved and resumed.
  void add_to(ronde::Checkpoint& checkpoint) {
    checkpoint.add("model", task_.module).add("sgd", sgd_);
  }

 private:
  template <typename Optimizer>
  void step_with(Optimizer& optimizer);
  void finish_queue() const;

  Task task_;
  Precision precision_;
  torch::Device device_;
  torch::optim::SGD sgd_;
  std::optional<ronde::DistributedOptimizer> distributed_;
};

}  // namespace example
