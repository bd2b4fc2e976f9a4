// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "ronde/dtype.h"
#include "ronde/request.h"
#include "tests/support/half.h"

namespace ronde::test {

/// Calls `visit` with a value of the C++ type that stores `dtype` (halves: std::uint16_t).
template <typename Visit>
void with_storage(DataType dtype, Visit visit) {
  switch (dtype) {
    case DataType::U8:
    case DataType::Bool:
      return visit(std::uint8_t{});
    case DataType::I8:
      return visit(std::int8_t{});
    case DataType::I16:
      return visit(std::int16_t{});
    case DataType::I32:
      return visit(std::int32_t{});
    case DataType::I64:
      return visit(std::int64_t{});
    case DataType::F16:
    case DataType::BF16:
      return visit(std::uint16_t{});
    case DataType::F32:
      return visit(float{});
    case DataType::F64:
      return visit(double{});
    case DataType::U16:
      return visit(std::uint16_t{});
    case DataType::U32:
      return visit(std::uint32_t{});
    case DataType::U64:
      return visit(std::uint64_t{});
    case DataType::C64:
    case DataType::C128:
      throw std::logic_error("a complex number is stored as two");
  }
}

/// All types but the complex ones, and those of them that GPUs compute with.
inline const std::vector<DataType> kRealDataTypes(kAllDataTypes.begin(), kAllDataTypes.end() - 2);
inline const std::vector<DataType> kGpuDataTypes(kAllDataTypes.begin(), kAllDataTypes.end() - 5);

/// The element of `dtype` at an address, as a double.
inline double read_number(DataType dtype, const std::byte* from) {
  double result = 0;
  with_storage(dtype, [&](auto value) {
    std::memcpy(&value, from, sizeof value);
    result = static_cast<double>(value);
    if constexpr (std::is_same_v<decltype(value), std::uint16_t>) {
      if (is_half(dtype)) result = dtype == DataType::F16 ? f16_to_f32(value) : bf16_to_f32(value);
    }
  });
  return result;
}

inline void write_number(DataType dtype, std::byte* to, double number) {
  with_storage(dtype, [&](auto value) {
    value = static_cast<decltype(value)>(number);
    if constexpr (std::is_same_v<decltype(value), std::uint16_t>) {
      const auto single = static_cast<float>(number);
      if (is_half(dtype)) value = dtype == DataType::F16 ? f32_to_f16(single) : f32_to_bf16(single);
    }
    std::memcpy(to, &value, sizeof value);
  });
}

/// The elements of a tensor of any dtype, read and written as doubles.
class TensorValues {
 public:
  TensorValues(DataType dtype, std::size_t count)
      : dtype_(dtype), count_(count), bytes_(count * size_of(dtype) + 1) {}
  TensorValues(DataType dtype, const std::vector<double>& numbers)
      : TensorValues(dtype, numbers.size()) {
    for (std::size_t i = 0; i < count_; ++i) set(i, numbers[i]);
  }

  DataType dtype() const noexcept { return dtype_; }
  std::size_t count() const noexcept { return count_; }
  std::size_t bytes() const noexcept { return count_ * size_of(dtype_); }
  /// Never null, so that a tensor without elements has an address too.
  void* data() noexcept { return bytes_.data(); }
  const void* data() const noexcept { return bytes_.data(); }

  double get(std::size_t index) const {
    return read_number(dtype_, bytes_.data() + index * size_of(dtype_));
  }
  void set(std::size_t index, double number) {
    write_number(dtype_, bytes_.data() + index * size_of(dtype_), number);
  }
  void fill(double number) {
    for (std::size_t i = 0; i < count_; ++i) set(i, number);
  }

  friend bool operator==(const TensorValues& a, const TensorValues& b) {
    return a.dtype_ == b.dtype_ && a.count_ == b.count_ &&
           std::memcmp(a.data(), b.data(), a.bytes()) == 0;
  }

 private:
  DataType dtype_;
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

/// A sum of `values` in place.
inline Request sum_request(std::vector<float>& values, const std::string& name) {
  Request request;
  request.name = name;
  request.shape = {static_cast<std::int64_t>(values.size())};
  request.input = request.output = values.data();
  return request;
}

/// Of all of `values`.
inline Request send_request(const std::vector<float>& values, int peer, std::int64_t tag = 0) {
  Request request;
  request.kind = Collective::Send;
  request.shape = {static_cast<std::int64_t>(values.size())};
  request.input = values.data();
  request.peer = peer;
  request.tag = tag;
  return request;
}

inline Request recv_request(std::vector<float>& values, int peer, std::int64_t tag = 0) {
  Request request = send_request(values, peer, tag);
  request.kind = Collective::Recv;
  request.input = nullptr;
  request.output = values.data();
  return request;
}

inline Request barrier_request(const std::string& name = {}) {
  Request request;
  request.kind = Collective::Barrier;
  request.name = name;
  return request;
}

inline Request join_request(ProcessSet set = kGlobalSet) {
  Request request;
  request.kind = Collective::Join;
  request.set = set;
  return request;
}

}  // namespace ronde::test
