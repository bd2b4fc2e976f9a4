// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/base/gradient_lists.h"

#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "ronde/error.h"

namespace ronde::tool {
namespace {

using Layers = std::vector<Layer>;

/// `bottleneck`: blocks of three convolutions that widen by four, else of two. Behind each
/// convolution, which has no bias, is a batch normalisation, which has two vectors.
Layers resnet(const std::array<int, 4>& stages, bool bottleneck) {
  Layers layers = {{3, 64, 49, 224UL * 224, 112UL * 112, 2}};
  std::uint64_t in = 64, places = 56UL * 56, width = 64;
  for (const int blocks : stages) {
    const std::uint64_t out = bottleneck ? 4 * width : width;
    for (int block = 0; block < blocks; ++block) {
      const std::uint64_t before = places;
      if (block == 0 && width > 64) places /= 4;
      if (bottleneck) {
        layers.push_back({in, width, 1, before, before, 2});
        layers.push_back({width, width, 9, before, places, 2});
        layers.push_back({width, out, 1, places, places, 2});
      } else {
        layers.push_back({in, width, 9, before, places, 2});
        layers.push_back({width, out, 9, places, places, 2});
      }
      if (in != out) layers.push_back({in, out, 1, before, places, 2, true});
      in = out;
    }
    width *= 2;
  }
  layers.push_back({.inputs = in, .outputs = 1000});
  return layers;
}

Layers edsr(std::size_t blocks, std::uint64_t features) {
  constexpr std::uint64_t kPlaces = 48UL * 48;
  Layers layers(2 * blocks + 3, {features, features, 9, kPlaces, kPlaces});
  layers.front().inputs = 3;
  layers.back().outputs = 4 * features;
  layers.push_back({features, 3, 9, 4 * kPlaces, 4 * kPlaces});
  return layers;
}

}  // namespace

GradientList::GradientList(std::string_view name, std::vector<Layer> of_model)
    : model(name), layers(std::move(of_model)) {
  for (const Layer& layer : layers) {
    tensors.push_back(layer.inputs * layer.outputs * layer.kernel);
    tensors.insert(tensors.end(), layer.vectors, layer.outputs);
  }
}

std::size_t GradientList::elements() const {
  return std::accumulate(tensors.begin(), tensors.end(), std::size_t{0});
}

std::span<const GradientList> gradient_lists() {
  static const std::array lists{
      GradientList{"resnet18", resnet({2, 2, 2, 2}, false)},
      GradientList{"resnet50", resnet({3, 4, 6, 3}, true)},
      GradientList{"edsr", edsr(16, 64)},
      GradientList{"edsr-full", edsr(32, 256)},
  };
  return lists;
}

const GradientList& gradient_list(std::string_view model) {
  std::string names;
  for (const GradientList& list : gradient_lists()) {
    if (list.model == model) return list;
    names += (names.empty() ? "" : ", ") + std::string(list.model);
  }
  throw UsageError("--model: there is no list \"" + std::string(model) +
                   "\"; use one of: " + names);
}

}  // namespace ronde::tool
