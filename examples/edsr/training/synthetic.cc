// SPDX-License-Identifier: Apache-2.0
#include "training/synthetic.h"

#include <ronde/torch.h>

#include "model.h"

namespace edsr {

example::Workload make_workload(const Options& options) {
  const EdsrOptions shape = options.network;
  const auto make_task = [shape, batch = options.benchmark.batch_size, side = options.patch,
                          seed = options.seed](torch::Device device) -> example::Task {
    torch::manual_seed(seed + static_cast<std::uint64_t>(ronde::rank()));
    Edsr network(shape);
    network->to(device);
    const std::int64_t high = side * shape.scale;
    const torch::Tensor patches = torch::rand({batch, 3, side, side}).to(device);
    const torch::Tensor target = torch::rand({batch, 3, high, high}).to(device);
    return {network.ptr(), [network, patches, target]() mutable {
              return torch::l1_loss(network->forward(patches), target);
            }};
  };
  return {.model = "edsr-" + std::to_string(shape.blocks) + "x" + std::to_string(shape.features),
          .make_task = make_task};
}

}  // namespace edsr
