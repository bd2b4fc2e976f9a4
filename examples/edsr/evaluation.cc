// SPDX-License-Identifier: Apache-2.0
#include "evaluation.h"

#include <ronde/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "images.h"

namespace edsr {
namespace {

constexpr std::size_t kMaxRows = 4;
constexpr std::int64_t kPartLow = 64;  // side of the part shown, low-resolution pixels
constexpr std::int64_t kPanel = 384;   // its side in the picture
constexpr std::int64_t kPitch = kPanel + 6;

/// A square of the low-resolution image.
struct Part {
  std::int64_t top = 0;
  std::int64_t left = 0;
  std::int64_t side = 0;

  torch::Tensor of(const torch::Tensor& image, std::int64_t scale = 1) const {
    return image.slice(1, top * scale, (top + side) * scale)
        .slice(2, left * scale, (left + side) * scale);
  }
};

/// Returns the square whose brightness varies most.
Part most_detailed_part(const torch::Tensor& low) {
  const std::int64_t side = std::min({kPartLow, low.size(1), low.size(2)});
  const std::int64_t stride = std::max<std::int64_t>(1, side / 4);
  const torch::Tensor brightness = low.to(torch::kFloat32).mean(0, /*keepdim=*/true).unsqueeze(0);
  const auto pool = [&](const torch::Tensor& image) {
    return at::avg_pool2d(image, {side, side}, {stride, stride});
  };
  const torch::Tensor variance = pool(brightness.square()) - pool(brightness).square();
  const auto best = variance.argmax().item<std::int64_t>();
  const std::int64_t columns = variance.size(3);
  return {best / columns * stride, best % columns * stride, side};
}

torch::Tensor to_panel(const torch::Tensor& image) {
  const torch::Tensor enlarged =
      at::upsample_nearest2d(image.unsqueeze(0).to(torch::kFloat32), {kPanel, kPanel});
  return enlarged.squeeze(0).to(torch::kUInt8);
}

}  // namespace

double psnr(const torch::Tensor& image, const torch::Tensor& reference, std::int64_t border) {
  TORCH_CHECK(image.sizes() == reference.sizes() && image.dim() == 3, "psnr of ", image.sizes(),
              " and ", reference.sizes());
  TORCH_CHECK(image.size(1) > 2 * border && image.size(2) > 2 * border, "psnr: an image of ",
              image.sizes(), " is all border of ", border);
  const auto inner = [border](const torch::Tensor& whole) {
    return whole.slice(1, border, whole.size(1) - border)
        .slice(2, border, whole.size(2) - border)
        .to(torch::kInt64);
  };
  // Squares of byte differences summed as integers: exact.
  const torch::Tensor difference = inner(image) - inner(reference);
  const auto squares = static_cast<double>(difference.square().sum().item<std::int64_t>());
  if (squares == 0) return std::numeric_limits<double>::infinity();
  const double mean = squares / static_cast<double>(difference.numel());
  return 10 * std::log10(255.0 * 255.0 / mean);
}

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

torch::Tensor compare_side_by_side(Edsr& network, const std::vector<Photograph>& photographs) {
  const std::size_t rows = std::min(kMaxRows, photographs.size());
  const std::int64_t scale = network->options().scale;
  const std::int64_t height = static_cast<std::int64_t>(rows) * kPitch;
  torch::Tensor picture = torch::full({3, height, 4 * kPitch}, 32, torch::kUInt8);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto& [name, high, low] = photographs[row];
    const Part part = most_detailed_part(low);
    const torch::Tensor bicubic = bicubic_resize(low, high.size(1), high.size(2));
    const std::int64_t top = static_cast<std::int64_t>(row) * kPitch;
    std::int64_t left = 0;
    for (const torch::Tensor& image :
         {part.of(low), part.of(bicubic, scale), part.of(enlarge(network, low), scale),
          part.of(high, scale)}) {
      picture.slice(1, top, top + kPanel).slice(2, left, left + kPanel).copy_(to_panel(image));
      left += kPitch;
    }
  }
  return picture;
}

}  // namespace edsr
