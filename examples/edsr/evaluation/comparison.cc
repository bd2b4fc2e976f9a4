// SPDX-License-Identifier: Apache-2.0
#include "evaluation/comparison.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <ATen/Functions.h>

#include "evaluation/label.h"
#include "images/resample.h"

namespace edsr {
namespace {

constexpr std::size_t kMaxRows = 4;
constexpr std::int64_t kPartLow = 64;  // side of the part shown, low-resolution pixels
constexpr std::int64_t kPanel = 384;   // its side in the picture
constexpr std::int64_t kMargin = 6;
constexpr std::int64_t kRowHeight = kMargin + kLabelHeight + kMargin + kPanel;
constexpr std::int64_t kPitch = kPanel + kMargin;

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

/// The square whose brightness varies most.
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

std::string with_psnr(const char* name, double decibel) {
  std::vector<char> text(64);
  std::snprintf(text.data(), text.size(), "%s %.2f DB", name, decibel);
  return text.data();
}

void draw_row(torch::Tensor& picture, std::size_t row, Edsr& network, const Photograph& photograph,
              const PhotographScore& score) {
  const Part part = most_detailed_part(photograph.low);
  const std::int64_t scale = network->options().scale;
  const torch::Tensor& high = photograph.high;
  const torch::Tensor bicubic = bicubic_resize(photograph.low, high.size(1), high.size(2));
  const std::vector<std::pair<std::string, torch::Tensor>> panels{
      {"LOW RESOLUTION", part.of(photograph.low)},
      {with_psnr("BICUBIC", score.bicubic), part.of(bicubic, scale)},
      {with_psnr("EDSR", score.network), part.of(enlarge(network, photograph.low), scale)},
      {"ORIGINAL", part.of(high, scale)},
  };
  const std::int64_t top = static_cast<std::int64_t>(row) * kRowHeight + kMargin;
  std::int64_t left = kMargin;
  for (const auto& [label, image] : panels) {
    draw_label(picture, label, top, left);
    const std::int64_t below = top + kLabelHeight + kMargin;
    picture.slice(1, below, below + kPanel).slice(2, left, left + kPanel).copy_(to_panel(image));
    left += kPitch;
  }
}

}  // namespace

torch::Tensor compare_side_by_side(Edsr& network, const std::vector<Photograph>& photographs,
                                   const Evaluation& evaluation) {
  const std::size_t rows = std::min(kMaxRows, photographs.size());
  const std::int64_t height = static_cast<std::int64_t>(rows) * kRowHeight + kMargin;
  torch::Tensor picture = torch::full({3, height, 4 * kPitch + kMargin}, 32, torch::kUInt8);
  for (std::size_t row = 0; row < rows; ++row) {
    draw_row(picture, row, network, photographs[row], evaluation.photographs[row]);
  }
  return picture;
}

}  // namespace edsr
