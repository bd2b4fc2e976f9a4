// SPDX-License-Identifier: Apache-2.0
#include "common/trainer.h"

#include <dlfcn.h>
#include <ronde/torch.h>

#include <chrono>
#include <utility>

#include "common/program.h"

namespace example {

torch::Device choose_device(const std::string& name) {
  if (name == "cpu") return torch::kCPU;
  // Not linked, so that the same program runs with a LibTorch that has no CUDA.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw InputError(std::string("--device cuda: this LibTorch has no CUDA (") + dlerror() +
                     "); build with one that has, or leave --device out");
  }
  const torch::Device device = ronde::local_device();
  if (device.is_cuda()) return device;
  if (!torch::cuda::is_available()) {
    throw InputError(
        "--device cuda: LibTorch finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES, or leave "
        "--device out");
  }
  throw InputError(
      "--device cuda: Ronde has no backend for GPUs here; `ronde info` lists what it finds");
}

torch::Tensor send_to(const torch::Tensor& tensor, torch::Device device) {
  // A copy runs beside the program only from page-locked memory.
  return device.is_cuda() ? tensor.pin_memory().to(device, /*non_blocking=*/true) : tensor;
}

Trainer::Trainer(Task task, double learning_rate, Link link, Precision precision)
    : task_(std::move(task)),
      precision_(precision),
      device_(task_.module->parameters().front().device()),
      sgd_(task_.module->parameters(),
           link == Link::connected ? learning_rate * ronde::size() : learning_rate) {
  task_.module->train();
  if (link == Link::unconnected) return;
  ronde::DistributedOptimizerOptions options;
  if (precision_.fp16_allreduce) options.compression = ronde::Compression::fp16();
  distributed_.emplace(sgd_, task_.module->named_parameters(), std::move(options));
  ronde::broadcast_parameters(*task_.module, /*root_rank=*/0);
  ronde::broadcast_optimizer_state(sgd_, 0);
}

void Trainer::run(std::int64_t steps) {
  for (std::int64_t done = 0; done < steps; ++done) {
    if (distributed_) {
      step_with(*distributed_);
    } else {
      step_with(sgd_);
    }
  }
}

template <typename Optimizer>
void Trainer::step_with(Optimizer& optimizer) {
  optimizer.zero_grad();
  const auto loss = [this] {
    const ronde::Autocast autocast(device_.type(), torch::kBFloat16, precision_.amp);
    return task_.loss();
  };
  loss().backward();
  optimizer.step();
}

double Trainer::time(std::int64_t steps) {
  finish_queue();
  const auto start = std::chrono::steady_clock::now();
  run(steps);
  finish_queue();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Trainer::finish_queue() const {
  if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
}

}  // namespace example
