// SPDX-License-Identifier: Apache-2.0
#include "ronde/kernels.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <set>
#include <string_view>

#include "tests/core/kernels/placed.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/ranks/requests.h"

namespace {

using namespace ronde;
using ronde::test::add_case;
using ronde::test::Bytes;
using ronde::test::Placed;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kMost = 777;  // elements: more than one unrolled step of bytes, and odd
constexpr std::size_t kCounts[] = {0, 1, 2, 7, 16, 31, 33, 64, 100, 255, 257, kMost};

// The oracle: one element at a time, in rank order, as ronde/kernels.h says.

template <typename Number>
Number scaled(Number value, double factor, double divisor) {
  if (factor == 1.0 && divisor == 1.0) return value;
  if constexpr (std::is_floating_point_v<Number>) {
    // Volatile: no compiler may fuse this product with a sum.
    volatile Number product = value * static_cast<Number>(factor);
    return product / static_cast<Number>(divisor);
  } else {
    return value;  // never scaled
  }
}

template <typename Number>
Number neutral(ReduceOp op) {
  using Limits = std::numeric_limits<Number>;
  const bool infinite = std::is_floating_point_v<Number>;
  if (op == ReduceOp::Product) return 1;
  if (op == ReduceOp::Min) return infinite ? Limits::infinity() : Limits::max();
  if (op == ReduceOp::BitAnd) return static_cast<Number>(-1);
  if (op == ReduceOp::Max) return infinite ? static_cast<Number>(-kInfinity) : Limits::lowest();
  return 0;
}

template <typename Number>
Number combined(ReduceOp op, Number a, Number b) {
  if constexpr (std::is_integral_v<Number>) {  // of bools: "or" and "and"
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    if (op == ReduceOp::Sum || op == ReduceOp::Average) return static_cast<Number>(x + y);
    if (op == ReduceOp::Product) return static_cast<Number>(x * y);
    if (op == ReduceOp::BitAnd) return static_cast<Number>(x & y);
    if (op == ReduceOp::BitOr) return static_cast<Number>(x | y);
    if (op == ReduceOp::BitXor) return static_cast<Number>(x ^ y);
    return op == ReduceOp::Min ? std::min(a, b) : std::max(a, b);
  } else {
    if (op == ReduceOp::Sum || op == ReduceOp::Average) return a + b;
    if (op == ReduceOp::Product) return a * b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<Number>::quiet_NaN();
    if (a == b) return (op == ReduceOp::Min) == std::signbit(a) ? a : b;
    return op == ReduceOp::Min ? std::min(a, b) : std::max(a, b);
  }
}

/// One value of `dtype` at `from`, as the type that is computed with.
template <typename Number>
Number element(DataType dtype, const std::byte* from) {
  if constexpr (std::is_same_v<Number, float>) {
    if (is_half(dtype)) {
      std::uint16_t half = 0;
      std::memcpy(&half, from, sizeof half);
      return dtype == DataType::F16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
  }
  if constexpr (std::is_same_v<Number, bool>) return *from != std::byte{0};
  Number number{};
  std::memcpy(&number, from, sizeof number);
  return number;
}

template <typename Number>
void set_element(DataType dtype, std::byte* to, Number number) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (std::isnan(number)) number = std::numeric_limits<Number>::quiet_NaN();
  }
  if constexpr (std::is_same_v<Number, float>) {
    if (is_half(dtype)) {
      const std::uint16_t half = dtype == DataType::F16 ? f32_to_f16(number) : f32_to_bf16(number);
      std::memcpy(to, &half, sizeof half);
      return;
    }
  }
  std::memcpy(to, &number, sizeof number);
}

/// An input of `kMost` elements; empty for a missing one.
using Inputs = std::vector<Bytes>;

/// Calls `visit` with a value of the type in which elements of `dtype` are computed.
template <typename Visit>
void with_number(DataType dtype, Visit visit) {
  if (is_half(dtype)) return visit(float{});
  if (dtype == DataType::Bool) return visit(bool{});
  test::with_storage(dtype, visit);
}

Bytes expected(const Inputs& inputs, const Reduction& reduction) {
  const std::size_t size = size_of(reduction.dtype);
  Bytes output(kMost * size);
  with_number(reduction.dtype, [&]<typename Number>(Number) {
    for (std::size_t i = 0; i < kMost; ++i) {
      Number result = neutral<Number>(reduction.op);
      for (std::size_t k = 0; k < inputs.size(); ++k) {
        Number operand = neutral<Number>(reduction.op);
        if (!inputs[k].empty()) {
          operand = element<Number>(reduction.dtype, &inputs[k][i * size]);
          operand = scaled(operand, reduction.prescale, 1.0);
        }
        result = k == 0 ? operand : combined(reduction.op, result, operand);
      }
      result = scaled(result, reduction.final.factor, reduction.final.divisor);
      set_element(reduction.dtype, &output[i * size], result);
    }
  });
  return output;
}

// Data: random bits are all kinds of numbers, but few of them are special or near to each other.

template <typename Number>
std::vector<Number> special_numbers() {
  using Limits = std::numeric_limits<Number>;
  if constexpr (std::is_floating_point_v<Number>) {
    return {Number{0},           -Number{0},        Limits::infinity(), -Limits::infinity(),
            Limits::quiet_NaN(), Limits::max(),     Limits::lowest(),   Limits::denorm_min(),
            Limits::min(),       Number{1},         Number{-1.5},       Number{3},
            Number{65504},       -Limits::epsilon()};
  } else {
    return {Number{0}, Number{1}, static_cast<Number>(-1), Limits::max(), Limits::min(), Number{2}};
  }
}

void put_special(DataType dtype, Bytes& bytes, std::size_t index, std::mt19937& random) {
  const auto put = [&](auto zero) {
    const auto numbers = special_numbers<decltype(zero)>();
    set_element(dtype, &bytes[index * size_of(dtype)], numbers[random() % numbers.size()]);
  };
  is_half(dtype) ? put(float{}) : test::with_storage(dtype, put);
}

Bytes random_input(DataType dtype, std::mt19937& random) {
  Bytes bytes(kMost * size_of(dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t i = 0; i < kMost; ++i) {
    if (random() % 3 == 0) put_special(dtype, bytes, i, random);
  }
  return bytes;
}

struct Placement {
  std::size_t output;  ///< bytes past a boundary
  std::size_t input;   ///< of the first input
  std::size_t next;    ///< how much further each other input is
  int in_place;        ///< the input that is the output too; -1: none; 99: the last one
};

std::vector<Placement> placements(DataType dtype) {
  const std::size_t size = size_of(dtype);
  return {{0, 0, 0, -1},
          {size, 0, size, -1},
          {1, 3, 2, -1},
          {3 * size, 5 * size, size, 0},
          {0, size, size, 99}};
}

struct Run {
  const Kernels& kernels;
  const Reduction& reduction;
  Placement placement;
  Store store;
};

bool run_matches(const Run& run, const Inputs& inputs, const Bytes& result, std::size_t count) {
  const std::size_t bytes = count * size_of(run.reduction.dtype);
  Placed output(bytes, run.placement.output);
  std::vector<Placed> placed;
  std::vector<const void*> pointers;
  const std::size_t last = inputs.empty() ? 0 : inputs.size() - 1;
  const std::size_t shared = run.placement.in_place == 99 ? last : 0;
  placed.reserve(inputs.size());
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    placed.emplace_back(bytes, run.placement.input + k * run.placement.next);
    const bool in_place = run.placement.in_place >= 0 && k == shared;
    Placed& memory = in_place ? output : placed.back();
    if (!inputs[k].empty() && count > 0) memory.set(inputs[k].data(), bytes);
    pointers.push_back(inputs[k].empty() ? nullptr : memory.data());
  }
  run.kernels.reduce(output.data(), pointers, count, run.reduction, run.store);
  return output.holds(result.data(), bytes);
}

void check_reduction(const Inputs& inputs, const Reduction& reduction) {
  const Bytes result = expected(inputs, reduction);
  for (const Kernels* kernels : available_kernels()) {
    for (const Placement& placement : placements(reduction.dtype)) {
      for (const Store store : {Store::Regular, Store::Streaming}) {
        for (const std::size_t count : kCounts) {
          if (run_matches({*kernels, reduction, placement, store}, inputs, result, count)) continue;
          CAPTURE(kernels->name, to_string(reduction.dtype), to_string(reduction.op),
                  reduction.prescale, reduction.final.factor, reduction.final.divisor,
                  inputs.size(), count, placement.output, placement.in_place, store);
          FAIL("the result differs from the oracle's");
        }
      }
    }
  }
}

constexpr struct {
  double prescale;
  Scaling final;
} kScalings[] = {{1, {}},          {1, {0.5, 1}},  {1, {1, 3}},         {0.3, {}},
                 {-1.5, {0.7, 5}}, {1, {-0.0, 1}}, {1, {kInfinity, 1}}, {1, {-3, 1}}};

/// Which inputs are there.
constexpr std::string_view kPresences[] = {"",   "1",   "0",   "11",    "01",   "10",
                                           "00", "111", "011", "11011", "11111"};

void check_dtype(DataType dtype) {
  std::mt19937 random(20261121U + static_cast<unsigned>(dtype));
  for (const std::string_view presence : kPresences) {
    Inputs inputs;
    for (const char is_there : presence) {
      inputs.push_back(is_there == '1' ? random_input(dtype, random) : Bytes{});
    }
    for (const ReduceOp op : test::ops_of(dtype)) {
      if (op == ReduceOp::Average) continue;
      for (const auto& [prescale, final] : kScalings) {
        check_reduction(inputs, {dtype, op, prescale, final});
      }
    }
  }
}

const bool registered = [] {
  for (const DataType dtype : test::kRealDataTypes) {
    add_case("every set of kernels reduces " + std::string(to_string(dtype)) + " as the oracle", "",
             [dtype] { check_dtype(dtype); });
  }
  return true;
}();

}  // namespace

TEST_CASE("the sets of kernels end with the baseline, the best one is the first") {
  const auto sets = available_kernels();
  REQUIRE_FALSE(sets.empty());
  CHECK(sets.back()->name == "baseline");
  CHECK(&best_kernels() == sets.front());
  std::set<std::string_view> names;
  for (const Kernels* kernels : sets) names.insert(kernels->name);
  CHECK(names.size() == sets.size());
#if defined(__x86_64__)
  // scripts/test.sh reads these lines.
  for (const char* const name : {"avx2", "avx512"}) {
    if (!names.contains(name)) std::printf("left out: the %s kernels: not this processor\n", name);
  }
#endif
}

TEST_CASE("every set of kernels sums and averages the inputs of 64 ranks in their order") {
  std::mt19937 random(64);
  for (const DataType dtype : {DataType::F32, DataType::F16, DataType::I64, DataType::Bool}) {
    Inputs inputs;
    for (int rank = 0; rank < 64; ++rank) inputs.push_back(random_input(dtype, random));
    // Numbers of like size: the order of additions shows, and no overflow hides it.
    if (dtype == DataType::F32) {
      for (Bytes& input : inputs) {
        for (std::size_t i = 0; i < kMost; ++i) {
          set_element(dtype, &input[i * sizeof(float)], static_cast<float>(random()));
        }
      }
    }
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
      check_reduction(inputs, {dtype, op, 1.0, {1.0, 64.0}});
    }
  }
}

TEST_CASE("every set of kernels copies bytes, wherever they lie") {
  std::mt19937 random(3);
  Bytes bytes(100'001);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (const Kernels* kernels : available_kernels()) {
    for (const Store store : {Store::Regular, Store::Streaming}) {
      kernels->copy(nullptr, nullptr, 0, store);
      for (const std::size_t count : {0, 1, 15, 63, 64, 65, 200, 255, 256, 1023, 100'001}) {
        for (const std::size_t offset : {0, 1, 8, 33, 63}) {
          CAPTURE(kernels->name, store, count, offset);
          Placed input(count, 63 - offset);
          Placed output(count, offset);
          if (count > 0) input.set(bytes.data(), count);
          kernels->copy(output.data(), input.data(), count, store);
          CHECK(output.holds(bytes.data(), count));
        }
      }
    }
  }
}

TEST_CASE("no elements need no memory in any set of kernels") {
  for (const Kernels* kernels : available_kernels()) {
    for (const Store store : {Store::Regular, Store::Streaming}) {
      const std::vector<const void*> inputs = {nullptr, nullptr};
      kernels->reduce(nullptr, inputs, 0, {}, store);
      kernels->reduce(nullptr, {}, 0, {}, store);
      for (const DataType full : {DataType::F32, DataType::F64}) {
        kernels->widen(nullptr, nullptr, 0, {.full = full}, store);
        kernels->narrow(nullptr, nullptr, 0, {.full = full}, store);
      }
    }
    SUCCEED(kernels->name);
  }
}
