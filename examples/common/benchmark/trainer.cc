// SPDX-License-Identifier: Apache-2.0
#include "common/benchmark/trainer.h"

#include <c10/core/StreamGuard.h>
#include <ronde/torch.h>

#include <chrono>
#include <stdexcept>
#include <utility>

namespace example {

// Note [Steps as a graph]
// A replay runs no code of the program, of autograd's or of Ronde's: it writes the gradients anew,
// into the memory that they had when they were captured. So
// - they are undefined before the capture, in which autograd makes them: one that was there would
//   be added to in each replay;
// - from then on nobody clears or replaces them: no zero_grad(). Ronde reduces them where they are;
// - the capture is within no_sync(): what hooks submit of it would have no values, and tensors of a
//   stream that is being captured are refused. A replay calls no hooks, so step() finds that
//   backward has submitted nothing, and submits all gradients itself. For Ronde each step is then
//   one whose only backward was within no_sync();
// - the optimizer is made in the graph's stream: its hooks keep autograd's accumulators, and these
//   the stream that was the current one.
Trainer::Trainer(Task task, double learning_rate, Link link, Precision precision,
                 std::unique_ptr<StepGraph> graph)
    : task_(std::move(task)),
      link_(link),
      precision_(precision),
      graph_(std::move(graph)),
      sgd_(task_.module->parameters(),
           link == Link::connected ? learning_rate * ronde::size() : learning_rate) {
  task_.module->train();
  // What the task has queued in the caller's stream.
  if (graph_) finish_queue();
  const c10::OptionalStreamGuard guard(stream());
  if (link != Link::connected) return;
  ronde::DistributedOptimizerOptions options;
  if (precision_.fp16_allreduce) options.compression = ronde::Compression::fp16();
  distributed_.emplace(sgd_, task_.module->named_parameters(), std::move(options));
  ronde::broadcast_parameters(*task_.module, /*root_rank=*/0);
  ronde::broadcast_optimizer_state(sgd_, 0);
}

std::optional<c10::Stream> Trainer::stream() const {
  return graph_ ? graph_->stream() : std::nullopt;
}

void Trainer::run(std::int64_t steps) {
  const c10::OptionalStreamGuard guard(stream());
  for (std::int64_t done = 0; done < steps; ++done) step();
  // Others look at the parameters in their own stream.
  if (graph_) finish_queue();
}

/// Note [Steps as a graph].
void Trainer::capture() {
  if (!graph_ || replays_) {
    throw std::logic_error("Trainer::capture() takes a graph in which nothing is captured yet");
  }
  const c10::OptionalStreamGuard guard(stream());
  if (distributed_) {
    distributed_->zero_grad();
    const ronde::DistributedOptimizer::NoSync submits_nothing = distributed_->no_sync();
    graph_->capture([this] { backward(); });
  } else {
    sgd_.zero_grad();
    graph_->capture([this] { backward(); });
  }
  replays_ = true;
}

double Trainer::time(std::int64_t steps) {
  finish_queue();
  const auto start = std::chrono::steady_clock::now();
  run(steps);
  finish_queue();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Trainer::backward() {
  const auto loss = [this] {
    const ronde::Autocast autocast(task_.module->parameters().front().device().type(),
                                   torch::kBFloat16, precision_.amp);
    return task_.loss();
  };
  loss().backward();
}

template <typename Optimizer>
void Trainer::step_with(Optimizer& optimizer) {
  if (replays_) {
    graph_->replay();
  } else {
    optimizer.zero_grad();
    backward();
  }
  optimizer.step();
}

void Trainer::step() {
  if (distributed_) {
    step_with(*distributed_);
  } else {
    step_with(sgd_);
  }
  if (link_ == Link::in_step) ronde::barrier();
}

void Trainer::finish_queue() const {
  const torch::Device device = task_.module->parameters().front().device();
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

}  // namespace example
