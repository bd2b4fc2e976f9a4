// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

// What the tests of alltoall and reducescatter share: tensors of some rows of three.
namespace ronde::test {

inline constexpr std::int64_t kColumns = 3;
using Rows = std::vector<std::int64_t>;

inline std::size_t index(std::int64_t number) {
  return static_cast<std::size_t>(number);
}

/// A result of f32 whose memory is allocated once its shape is known.
struct Allocated {
  std::function<void*(const Rows&)> allocator() {
    return [this](const Rows& result_shape) {
      check(!elements, "the output is allocated once");
      shape = result_shape;
      elements.emplace(index(shape[0] * kColumns));
      return elements->data();
    };
  }

  Rows shape;
  std::optional<std::vector<float>> elements;
};

/// `rows` that tell the ranks apart.
inline std::vector<float> input_of(int rank, std::int64_t rows) {
  std::vector<float> input(index(rows * kColumns));
  for (std::size_t i = 0; i < input.size(); ++i) {
    input[i] = static_cast<float>(10'000 * (rank + 1) + static_cast<int>(i));
  }
  return input;
}

/// An alltoall named "x" whose result goes to `output`.
inline Request alltoall_request(std::vector<float>& values, const Rows& shape, const Rows& splits,
                                Allocated& output) {
  Request request;
  request.kind = Collective::Alltoall;
  request.name = "x";
  request.shape = shape;
  request.splits = splits;
  request.input = values.data();
  request.allocate_output = output.allocator();
  return request;
}

}  // namespace ronde::test
