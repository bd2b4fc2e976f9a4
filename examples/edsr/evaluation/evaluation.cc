// SPDX-License-Identifier: Apache-2.0
#include "evaluation/evaluation.h"

#include <torch/utils.h>

#include <ronde/torch.h>

#include "evaluation/metrics.h"
#include "images/resample.h"

namespace edsr {

torch::Tensor enlarge(Edsr& network, const torch::Tensor& low) {
  const torch::NoGradGuard no_grad;
  const torch::Device device = network->parameters().front().device();
  const torch::Tensor output = network->forward(to_unit(low).unsqueeze(0).to(device));
  return to_bytes(output).squeeze(0).cpu();
}

Evaluation evaluate(Edsr& network, const std::vector<Photograph>& photographs) {
  const auto count = static_cast<std::int64_t>(photographs.size());
  const std::int64_t scale = network->options().scale;
  torch::Tensor scores = torch::zeros({count, 2}, torch::kFloat64);
  for (std::int64_t i = ronde::rank(); i < count; i += ronde::size()) {
    const Photograph& photograph = photographs[static_cast<std::size_t>(i)];
    const torch::Tensor& high = photograph.high;
    const torch::Tensor bicubic = bicubic_resize(photograph.low, high.size(1), high.size(2));
    scores[i][0] = psnr(bicubic, high, scale);
    scores[i][1] = psnr(enlarge(network, photograph.low), high, scale);
  }
  scores = ronde::allreduce(scores, {.name = "psnr", .op = ronde::ReduceOp::Sum});

  Evaluation evaluation;
  for (std::int64_t i = 0; i < count; ++i) {
    evaluation.photographs.push_back({photographs[static_cast<std::size_t>(i)].name,
                                      scores[i][0].item<double>(), scores[i][1].item<double>()});
  }
  const torch::Tensor mean = scores.mean(0);
  evaluation.psnr_bicubic = mean[0].item<double>();
  evaluation.psnr_network = mean[1].item<double>();
  return evaluation;
}

}  // namespace edsr
