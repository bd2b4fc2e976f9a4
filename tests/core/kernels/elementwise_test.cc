// SPDX-License-Identifier: Apache-2.0
#include "core/src/kernels/elementwise.h"

#include <catch2/catch.hpp>
#include <limits>
#include <utility>

#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using ronde::test::TensorValues;

TensorValues unpacked(const TensorValues& wire, DataType dtype, Scaling scaling, bool widen) {
  TensorValues output(dtype, 1);
  unpack_elements(output.data(), wire.data(), 1, dtype, scaling, widen);
  return output;
}

}  // namespace

TEST_CASE("any NaN is unpacked as the one quiet NaN, scaled or not, widened or not") {
  const std::pair<DataType, std::uint64_t> rows[] = {{DataType::F16, 0xfd01},
                                                     {DataType::BF16, 0xff85},
                                                     {DataType::F32, 0x7f812345},
                                                     {DataType::F32, 0xff812345},
                                                     {DataType::F64, 0x7ff0123456789abc},
                                                     {DataType::F64, 0xfff0123456789abc}};
  for (const auto& [dtype, bits] : rows) {
    TensorValues odd(dtype, 1), widened(packed_dtype(dtype, true), 1), quiet(dtype, 1);
    std::memcpy(odd.data(), &bits, size_of(dtype));
    pack_elements(widened.data(), odd.data(), 1, dtype, {}, true);
    quiet.fill(std::numeric_limits<double>::quiet_NaN());
    for (const Scaling scaling : {Scaling{}, Scaling{2.0, 3.0}}) {
      CHECK(unpacked(odd, dtype, scaling, false) == quiet);
      CHECK(unpacked(widened, dtype, scaling, true) == quiet);
    }
  }
}
