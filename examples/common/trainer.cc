// SPDX-License-Identifier: Apache-2.0
#include "common/trainer.h"

#include <ronde/torch.h>

#include <chrono>
#include <utility>

namespace example {
namespace {

template <typename Optimizer>
void train_step(Optimizer& optimizer, const Task& task) {
  optimizer.zero_grad();
  task.loss().backward();
  optimizer.step();
}

}  // namespace

Trainer::Trainer(Task task, double learning_rate, Link link)
    : task_(std::move(task)),
      link_(link),
      sgd_(task_.module->parameters(),
           link == Link::connected ? learning_rate * ronde::size() : learning_rate) {
  task_.module->train();
  if (link != Link::connected) return;
  distributed_.emplace(sgd_, task_.module->named_parameters());
  ronde::broadcast_parameters(*task_.module, /*root_rank=*/0);
  ronde::broadcast_optimizer_state(sgd_, 0);
}

void Trainer::run(std::int64_t steps) {
  for (std::int64_t done = 0; done < steps; ++done) step();
}

double Trainer::time(std::int64_t steps) {
  finish_queue();
  const auto start = std::chrono::steady_clock::now();
  run(steps);
  finish_queue();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Trainer::step() {
  if (distributed_) {
    train_step(*distributed_, task_);
  } else {
    train_step(sgd_, task_);
  }
  if (link_ == Link::in_step) ronde::barrier();
}

void Trainer::finish_queue() const {
  const torch::Device device = task_.module->parameters().front().device();
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

}  // namespace example
