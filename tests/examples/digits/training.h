// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tests that train the network of the digits share, in 32-bit floats.

#include "tests/torch/support.h"

#include <cstddef>

#include "digits/digits.h"

namespace digits_test {

constexpr int kBatch = 48;  // of all ranks together

inline const example::DigitSets& data() {
  static const example::DigitSets digits = example::read_digits();
  return digits;
}

inline torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(16, 32, 3).padding(1)), ReLU(), MaxPool2d(2), Flatten(),
                    Linear(32 * 2 * 2, 10));
}

inline auto make_loader(const ronde::DistributedSampler& sampler, int batch_size) {
  return torch::data::make_data_loader(data().train, sampler, static_cast<std::size_t>(batch_size));
}

/// The sum of the losses of this rank's images, and how many these are.
template <typename Optimizer, typename Loader>
at::Tensor train_epoch(torch::nn::Sequential& net, Optimizer& optimizer, Loader& loader) {
  at::Tensor sums = at::zeros({2}, at::kDouble);
  for (const auto& batch : loader) {
    optimizer.zero_grad();
    const auto scores = net->forward(batch.data.to(torch::kFloat));
    const torch::Tensor loss = torch::cross_entropy_loss(scores, batch.target);
    loss.backward();
    optimizer.step();
    const auto count = static_cast<double>(batch.target.size(0));
    sums += at::tensor({loss.item<double>() * count, count}, at::kDouble);
  }
  return sums;
}

/// The share of right answers about the digits that were held out.
inline double share_right(torch::nn::Sequential& net) {
  const torch::NoGradGuard no_grad;
  const auto test = data().test.part(0, 1);
  const auto answers = net->forward(test.data.to(torch::kFloat)).argmax(1);
  return (answers == test.target).to(torch::kDouble).mean().item<double>();
}

}  // namespace digits_test
