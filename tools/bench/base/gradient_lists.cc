// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/base/gradient_lists.h"

#include <array>
#include <initializer_list>
#include <numeric>

#include "ronde/error.h"

namespace ronde::tool {
namespace {

using Tensors = std::vector<std::size_t>;

void add(Tensors& tensors, std::initializer_list<std::size_t> sizes) {
  for (const std::size_t size : sizes) tensors.push_back(size);
}

/// A convolution without bias, and the batch normalisation behind it.
void add_normalised(Tensors& tensors, std::size_t in, std::size_t out, std::size_t kernel) {
  add(tensors, {in * out * kernel * kernel, out, out});
}

void add_convolution(Tensors& tensors, std::size_t in, std::size_t out) {
  add(tensors, {in * out * 9, out});
}

/// `bottleneck`: blocks of three convolutions that widen by four, else of two.
Tensors resnet(const std::array<int, 4>& stages, bool bottleneck) {
  Tensors tensors;
  add_normalised(tensors, 3, 64, 7);
  std::size_t in = 64;
  std::size_t width = 64;
  for (const int blocks : stages) {
    const std::size_t out = bottleneck ? 4 * width : width;
    for (int block = 0; block < blocks; ++block) {
      if (bottleneck) {
        add_normalised(tensors, in, width, 1);
        add_normalised(tensors, width, width, 3);
        add_normalised(tensors, width, out, 1);
      } else {
        add_normalised(tensors, in, width, 3);
        add_normalised(tensors, width, out, 3);
      }
      if (in != out) add_normalised(tensors, in, out, 1);  // the shortcut
      in = out;
    }
    width *= 2;
  }
  add(tensors, {in * 1000, 1000});
  return tensors;
}

Tensors edsr(std::size_t blocks, std::size_t features) {
  Tensors tensors;
  add_convolution(tensors, 3, features);
  for (std::size_t i = 0; i < 2 * blocks + 1; ++i) add_convolution(tensors, features, features);
  add_convolution(tensors, features, 4 * features);
  add_convolution(tensors, features, 3);
  return tensors;
}

}  // namespace

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
