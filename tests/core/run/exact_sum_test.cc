// SPDX-License-Identifier: Apache-2.0
// Averages of integers end to end. All types, ops, factors and extremes: tests/sweeps/oracle.
#include <catch2/catch.hpp>
#include <limits>

#include "tests/support/fakes/fake_device.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// An average in place, without a name.
template <typename Integer>
Request average_of(std::vector<Integer>& values, DataType dtype) {
  Request request;
  request.dtype = dtype;
  request.shape = {static_cast<std::int64_t>(values.size())};
  request.op = ReduceOp::Average;
  request.input = request.output = values.data();
  return request;
}

}  // namespace

TEST_CASE("an average of integers is truncated toward zero, whatever halves of words add up to") {
  run_group(3, [](int rank, Runtime& runtime) {
    using Limits = std::numeric_limits<std::int64_t>;
    constexpr std::int64_t kHalf = 1LL << 32, kNotInF64 = (1LL << 53) + 1;
    std::vector<std::int64_t> values[] = {{1, -1, -kHalf, kHalf, -1, Limits::min(), kNotInF64},
                                          {1, -1, 1, -1, 0, Limits::max(), kNotInF64},
                                          {0, 0, 1, -1, 0, -1, kNotInF64}};
    runtime.run(average_of(values[rank], DataType::I64));
    // (2 - 2^32) / 3 = -1431655764.67
    check_equal(values[rank],
                std::vector<std::int64_t>{0, 0, -1431655764, 1431655764, 0, 0, kNotInF64},
                "truncated");
  });
}

TEST_CASE("averages of cuda buffers wait for the device, and go by way of the host") {
  DeviceGroup(2).run([](int rank, Runtime& runtime, FakeDevice& device) {
    const std::vector<std::int64_t> numbers(70'000, (1LL << 62) + 512);
    std::vector<std::int64_t> values = numbers;
    runtime.submit(on_device(average_of(values, DataType::I64), device)).wait();
    check_equal(values, numbers, "by way of the host");
    if (rank == 1) device.hold_marks();
    std::vector<std::int32_t> held = {std::numeric_limits<std::int32_t>::max()};
    const Work work = runtime.submit(on_device(average_of(held, DataType::I32), device));
    if (rank == 1) {
      device.wait_asked(20);
      check(!work.done(), "the program still writes its buffer");
      held[0] = 5;
      device.pass();
    }
    work.wait();
    check_equal(held[0], 1'073'741'826, "of what was there when the mark was passed");
  });
}
