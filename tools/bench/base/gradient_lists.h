// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace ronde::tool {

/// Elements of every parameter of a model, in the order of registration. Backward makes the
/// gradients in about the opposite order.
struct GradientList {
  std::string_view model;  ///< as --model takes it
  std::vector<std::size_t> tensors;

  std::size_t elements() const;
};

/// ResNet-18 and -50 (He et al. 2016, arXiv:1512.03385, table 1, with batch normalisation and a
/// classifier of 1,000 classes), and EDSR for a scale of 2 (Lim et al. 2017, arXiv:1707.02921) with
/// 16 blocks of 64 features ("edsr") and 32 of 256 ("edsr-full").
std::span<const GradientList> gradient_lists();

/// Throws UsageError, which lists the models, if there is none of that name.
const GradientList& gradient_list(std::string_view model);

}  // namespace ronde::tool
