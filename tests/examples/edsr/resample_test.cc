// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "evaluation.h"
#include "images.h"
#include "tests/examples/edsr/support.h"

namespace edsr {
namespace {

/// Keys' cubic convolution kernel with a = -1/2.
double cubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1) return (kA + 2) * x * x * x - (kA + 3) * x * x + 1;
  if (x < 2) return kA * (x * x * x - 5 * x * x + 8 * x - 4);
  return 0;
}

/// One line resampled in double precision, the kernel widened by the factor of shrinking, weights
/// normalised over the pixels inside, and clamped to a byte.
std::vector<double> resample_line(const std::vector<double>& line, std::int64_t length) {
  const double step = static_cast<double>(line.size()) / static_cast<double>(length);
  const double width = std::max(step, 1.0);
  std::vector<double> result;
  for (std::int64_t i = 0; i < length; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * step;
    double sum = 0;
    double weights = 0;
    for (std::size_t j = 0; j < line.size(); ++j) {
      const double weight = cubic((static_cast<double>(j) + 0.5 - center) / width);
      sum += weight * line[j];
      weights += weight;
    }
    result.push_back(std::clamp(sum / weights, 0.0, 255.0));
  }
  return result;
}

}  // namespace

TEST_CASE("bicubic resampling follows Keys' kernel with a of one half, widened when shrinking") {
  const auto length = GENERATE(as<std::int64_t>{}, 12, 16, 24, 48, 96, 144);
  auto generator = at::detail::createCPUGenerator(5);
  const torch::Tensor random = torch::randint(0, 256, {48}, generator, torch::kFloat64);
  // At a step the kernel overshoots both ways.
  random.slice(0, 24, 36).fill_(0);
  random.slice(0, 36, 48).fill_(255);
  const std::vector<double> line(random.data_ptr<double>(), random.data_ptr<double>() + 48);
  const torch::Tensor expected = torch::tensor(resample_line(line, length));
  const auto error_of = [&](const torch::Tensor& lines) {
    return (lines.to(torch::kFloat64) - expected).abs().max().item<double>();
  };
  const torch::Tensor image = torch::tensor(line).to(torch::kUInt8).view({1, 1, 48});
  CHECK(error_of(bicubic_resize(image, 1, length)) < 0.51);
  const torch::Tensor columns = image.transpose(1, 2).expand({3, 48, 5});
  CHECK(error_of(bicubic_resize(columns, length, 5).transpose(1, 2)) < 0.51);
}

TEST_CASE("bytes survive the way to unit range and back") {
  const torch::Tensor bytes = torch::arange(256, torch::kInt64).to(torch::kUInt8).view({1, 16, 16});
  CHECK(torch::equal(to_bytes(to_unit(bytes)), bytes));
  CHECK(to_bytes(torch::tensor({-0.5f, 1.5f}))[0].item<int>() == 0);
  CHECK(to_bytes(torch::tensor({-0.5f, 1.5f}))[1].item<int>() == 255);
}

TEST_CASE("psnr is that of the mean square of the differences inside the border") {
  const torch::Tensor grey = torch::full({3, 14, 18}, 100, torch::kUInt8);
  for (const std::int64_t border : {0, 2, 4}) {
    torch::Tensor image = torch::zeros_like(grey);
    const torch::Tensor inner = image.slice(1, border, 14 - border).slice(2, border, 18 - border);
    inner.fill_(100);
    inner[0].fill_(200);
    const double expected = 10 * std::log10(255.0 * 255.0 * 3 / (100.0 * 100.0));  // of a third
    CHECK(psnr(image, grey, border) == Approx(expected).epsilon(1e-12));
    CHECK(psnr(grey, image, border) == Approx(expected).epsilon(1e-12));
  }
  CHECK(psnr(grey, grey + 1, 0) == Approx(48.1308).epsilon(1e-5));
  CHECK(psnr(grey, grey, 0) == std::numeric_limits<double>::infinity());
}

TEST_CASE(
    "the side-by-side picture has the low resolution, the network's output and the original") {
  torch::manual_seed(1);
  Edsr network(EdsrOptions{.blocks = 1, .features = 4, .scale = 2});
  const torch::Tensor low = testing::make_image(0, 64, 64);
  const torch::Tensor high = testing::make_image(1, 128, 128);
  const torch::Tensor picture = compare_side_by_side(network, {{"a", high, low}, {"b", high, low}});
  REQUIRE(picture.sizes() == torch::IntArrayRef({3, 2 * 390, 4 * 390}));
  for (const std::int64_t top : {0, 390}) {
    const auto panel = [&](std::int64_t column) {
      return picture.slice(1, top, top + 384).slice(2, column * 390, column * 390 + 384);
    };
    const auto zoomed = [](const torch::Tensor& image, std::int64_t by) {
      return image.repeat_interleave(by, 1).repeat_interleave(by, 2);
    };
    CHECK(torch::equal(panel(0), zoomed(low, 6)));
    CHECK(torch::equal(panel(1), zoomed(bicubic_resize(low, 128, 128), 3)));
    CHECK(torch::equal(panel(2), zoomed(enlarge(network, low), 3)));
    CHECK(torch::equal(panel(3), zoomed(high, 3)));
  }
}

}  // namespace edsr
