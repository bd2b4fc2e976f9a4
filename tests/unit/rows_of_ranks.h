// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/requests.h"
#include "tests/unit/reduction_oracle.h"

// What the tests of alltoall and reducescatter share: tensors of some rows of three.
namespace ronde::test {

inline constexpr std::int64_t kColumns = 3;
using Rows = std::vector<std::int64_t>;

inline std::size_t index(std::int64_t number) {
  return static_cast<std::size_t>(number);
}

/// A result whose memory is allocated once its shape is known.
struct Allocated {
  explicit Allocated(DataType type) : dtype(type) {}

  std::function<void*(const Rows&)> allocator() {
    return [this](const Rows& result_shape) {
      check(!elements, "the output is allocated once");
      shape = result_shape;
      elements.emplace(dtype, index(shape[0] * kColumns));
      return elements->data();
    };
  }

  DataType dtype;
  Rows shape;
  std::optional<TensorValues> elements;
};

inline TensorValues input_of(const Case& test, int rank, std::int64_t rows) {
  TensorValues input(test.dtype, index(rows * kColumns));
  for (std::size_t i = 0; i < input.count(); ++i) input.set(i, brought(test, rank, i));
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
