// SPDX-License-Identifier: Apache-2.0
#include "workload.h"

#include <ronde/torch.h>

#include "model.h"

namespace resnet {

example::Workload make_workload(const Options& options) {
  const auto make_task = [model = options.model, batch = options.benchmark.batch_size,
                          side = options.image_size](torch::Device device) -> example::Task {
    torch::manual_seed(static_cast<std::uint64_t>(ronde::rank()) + 1);
    ResNet network(model);
    network->to(device);
    const torch::Tensor images = torch::randn({batch, 3, side, side}).to(device);
    const torch::Tensor classes = torch::randint(kClasses, {batch}, torch::kInt64).to(device);
    return {network.ptr(), [network, images, classes]() mutable {
              return torch::cross_entropy_loss(network->forward(images), classes);
            }};
  };
  return {.model = options.model, .make_task = make_task};
}

}  // namespace resnet
