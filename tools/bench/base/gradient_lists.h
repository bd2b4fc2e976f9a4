// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ronde::tool {

/// A linear layer or a convolution. Sizes are numbers of elements.
struct Layer {
  std::uint64_t inputs = 1, outputs = 1;        ///< features or channels
  std::uint64_t kernel = 1;                     ///< weights between an input and an output
  std::uint64_t places_in = 1, places_out = 1;  ///< pixels that are read and written
  std::uint64_t vectors = 1;                    ///< an output's other parameters: a bias
  bool beside = false;  ///< reads and writes in the layout of the layer before: a shortcut
};

/// A model, and the elements of each of its parameters in the order of registration. Backward makes
/// the gradients in about the opposite order.
struct GradientList {
  GradientList(std::string_view name, std::vector<Layer> of_model);

  std::size_t elements() const;

  std::string_view model;  ///< as --model takes it
  std::vector<Layer> layers;
  std::vector<std::size_t> tensors;
};

/// ResNet-18 and -50 (He et al. 2016, arXiv:1512.03385, table 1, with batch normalisation and a
/// classifier of 1,000 classes, for images of 224 x 224), and EDSR for a scale of 2 (Lim et al.
/// 2017, arXiv:1707.02921, patches of 48 x 48) with 16 blocks of 64 features ("edsr") and 32 of 256
/// ("edsr-full").
std::span<const GradientList> gradient_lists();

/// Throws UsageError, which lists the models, if there is none of that name.
const GradientList& gradient_list(std::string_view model);

}  // namespace ronde::tool
