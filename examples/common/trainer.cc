// SPDX-License-Identifier: Apache-2.0
#include "common/trainer.h"

#include <ronde/torch.h>

#include <chrono>
#include <utility>

namespace example {

Trainer::Trainer(Task task, double learning_rate, Link link, Precision precision)
    : task_(std::move(task)),
      link_(link),
      precision_(precision),
      sgd_(task_.module->parameters(),
           link == Link::connected ? learning_rate * ronde::size() : learning_rate) {
  task_.module->train();
  if (link != Link::connected) return;
  ronde::DistributedOptimizerOptions options;
  if (precision_.fp16_allreduce) options.compression = ronde::Compression::fp16();
  distributed_.emplace(sgd_, task_.module->named_parameters(), std::move(options));
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

template <typename Optimizer>
void Trainer::step_with(Optimizer& optimizer) {
  optimizer.zero_grad();
  const auto loss = [this] {
    const ronde::Autocast autocast(task_.module->parameters().front().device().type(),
                                   torch::kBFloat16, precision_.amp);
    return task_.loss();
  };
  loss().backward();
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
