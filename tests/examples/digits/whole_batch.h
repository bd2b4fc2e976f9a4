// SPDX-License-Identifier: Apache-2.0
#pragma once

// The losses of a network of linear layers that reads digits, in one process and without Ronde.

#include <ronde/torch/distributed_sampler.h>
#include <torch/torch.h>
// LibTorch defines a CHECK of its own; in the tests it is Catch2's.
#undef CHECK
#include <catch2/catch.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "digits/digits.h"
#include "tests/support/processes/launch.h"
#include "tests/support/processes/temporary_folder.h"

namespace digits_test {

/// The loss of each step of training `net`, which has layers() and loss(images, digits), on batches
/// of so many images, in the order that --seed 1 gives.
template <typename Net>
std::vector<double> whole_batch_losses(Net& net, int epochs, int batch_size) {
  at::set_num_threads(1);  // tensors are small: threads would wait for each other
  std::vector<torch::Tensor> parameters;
  for (torch::nn::Linear layer : net.layers()) {
    layer->to(torch::kFloat64);
    for (const torch::Tensor& parameter : layer->parameters()) parameters.push_back(parameter);
  }
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  const ronde::DistributedSampler order(1440, {.seed = 1, .rank = 0, .size = 1});
  const auto loader = torch::data::make_data_loader(example::read_digits().train, order,
                                                    static_cast<std::size_t>(batch_size));
  std::vector<double> losses;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (const auto& batch : *loader) {
      sgd.zero_grad();
      const torch::Tensor loss = net.loss(batch.data, batch.target);
      loss.backward();
      sgd.step();
      losses.push_back(loss.item<double>());
    }
  }
  return losses;
}

}  // namespace digits_test
