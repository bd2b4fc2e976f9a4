// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/_neg_view.h>

#include "support.h"

namespace ronde_test {

/// All that Ronde moves.
inline const std::vector<at::ScalarType> kDtypes = {
    at::kByte, at::kChar,  at::kShort,  at::kInt,  at::kLong,
    at::kHalf, at::kFloat, at::kDouble, at::kBool, at::kBFloat16};

/// Small whole numbers of a rank, other ones for each `seed`: exact in every dtype, also summed.
inline at::Tensor whole_numbers(at::IntArrayRef sizes, int rank, std::int64_t seed,
                                at::ScalarType dtype = at::kFloat) {
  at::Generator generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * seed + rank));
  return at::randint(0, 4, sizes, generator, at::kDouble).to(dtype);
}

/// A tensor of the values of a row-major one, laid out otherwise.
struct Layout {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> make;
};

/// Of four dimensions; each may be written in place.
inline const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"row-major", [](const at::Tensor& t) { return t.clone(); }},
      {"channels-last",
       [](const at::Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast); }},
      {"transposed",
       [](const at::Tensor& t) { return t.transpose(1, 3).contiguous().transpose(1, 3); }},
      {"every second element",
       [](const at::Tensor& t) {
         at::Tensor wide = at::zeros({t.size(0), t.size(1), t.size(2), 2 * t.size(3)}, t.options());
         return wide.slice(3, 0, 2 * t.size(3), 2).copy_(t);
       }},
      {"negated view",
       [](const at::Tensor& t) { return t.is_floating_point() ? at::_neg_view(-t) : t.clone(); }},
  };
  return all;
}

/// A layout for each rank and number, other ones on neighbouring ranks.
inline at::Tensor laid_out(const at::Tensor& tensor, int rank, std::int64_t number) {
  return layouts()[static_cast<std::size_t>(rank + number) % layouts().size()].make(tensor);
}

}  // namespace ronde_test
