// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/own_operators.h"

#include <cstdint>

namespace ronde::mpi {
namespace {

template <typename T, T (*combine)(T, T)>
void reduce(void* input, void* in_out, int* count, MPI_Datatype*) {
  const auto* const from = static_cast<const T*>(input);
  auto* const to = static_cast<T*>(in_out);
  for (int i = 0; i < *count; ++i) to[i] = combine(from[i], to[i]);
}

template <typename T>
constexpr MPI_User_function* kMin = reduce<T, propagating_min<T>>;
template <typename T>
constexpr MPI_User_function* kMax = reduce<T, propagating_max<T>>;
template <typename T>
constexpr MPI_User_function* kSum = reduce<T, wrapping_sum<T>>;

}  // namespace

const std::array<OwnOperator, kOwnOperatorCount>& own_operators() {
  static constexpr std::array<OwnOperator, kOwnOperatorCount> operators = {{
      {DataType::U8, ReduceOp::Min, kMin<std::uint8_t>},
      {DataType::U8, ReduceOp::Max, kMax<std::uint8_t>},
      {DataType::F32, ReduceOp::Min, kMin<float>},
      {DataType::F32, ReduceOp::Max, kMax<float>},
      {DataType::F64, ReduceOp::Min, kMin<double>},
      {DataType::F64, ReduceOp::Max, kMax<double>},
      {DataType::U8, ReduceOp::Sum, kSum<std::uint8_t>},
      {DataType::I8, ReduceOp::Sum, kSum<std::int8_t>},
      {DataType::I16, ReduceOp::Sum, kSum<std::int16_t>},
  }};
  return operators;
}

}  // namespace ronde::mpi
