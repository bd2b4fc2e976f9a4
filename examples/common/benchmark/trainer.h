// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ronde/torch/checkpoint.h>
#include <ronde/torch/distributed_optimizer.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "common/benchmark/step_graph.h"

namespace example {

/// What one rank trains: a module, and its loss on a batch that never changes.
struct Task {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor()> loss;
};

/// Connected ranks train as one through Ronde; unconnected ones exchange nothing. Ranks in step
/// exchange nothing either, but wait for each other after every step, as connected ones do.
enum class Link { connected, unconnected, in_step };

/// In which types numbers are computed and sent.
struct Precision {
  bool amp = false;             ///< forward in bf16, by autocast
  bool fp16_allreduce = false;  ///< gradients are sent as fp16
};

/// Steps of SGD on a task. All links run the same code but for the optimizer that is called.
class Trainer {
 public:
  /// `learning_rate` is for one rank: connected ranks, whose batch is so many times as large,
  /// multiply it by their number. Connecting is collective. `graph` is for capture(): all steps run
  /// in its stream; null: in the caller's.
  Trainer(Task task, double learning_rate, Link link, Precision precision = {},
          std::unique_ptr<StepGraph> graph = nullptr);
  Trainer(const Trainer&) = delete;  // distributed_ refers to sgd_
  Trainer& operator=(const Trainer&) = delete;

  void run(std::int64_t steps);

  /// Captures forward and backward: in later steps they are replayed, and what is left to the
  /// program is the optimizer's step with the exchange in it, which no longer runs beside backward.
  /// Takes no step itself. After some steps, in which libraries make what they cannot make while
  /// captured; once, and with a graph.
  void capture();

  /// As run(), and returns the seconds that it took, those of a GPU's queue included.
  double time(std::int64_t steps);

  const torch::nn::Module& module() const { return *task_.module; }

  /// Adds all that training changes, to be saved and resumed.
  void add_to(ronde::Checkpoint& checkpoint) {
    checkpoint.add("model", task_.module).add("sgd", sgd_);
  }

 private:
  std::optional<c10::Stream> stream() const;
  void backward();
  template <typename Optimizer>
  void step_with(Optimizer& optimizer);
  void step();
  void finish_queue() const;

  Task task_;
  Link link_;
  Precision precision_;
  std::unique_ptr<StepGraph> graph_;
  bool replays_ = false;  // forward and backward are captured
  torch::optim::SGD sgd_;
  std::optional<ronde::DistributedOptimizer> distributed_;
};

}  // namespace example
