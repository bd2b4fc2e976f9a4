// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/own_operators.h"

#include "ronde/kernels.h"

namespace ronde::mpi {
namespace {

template <DataType dtype, ReduceOp op>
constexpr OwnOperator kOperator = {
    dtype, op, [](void* input, void* in_out, int* count, MPI_Datatype*) {
      const std::array<const void*, 2> operands = {input, in_out};
      best_kernels().reduce(in_out, operands, static_cast<std::size_t>(*count),
                            {.dtype = dtype, .op = op}, Store::Regular);
    }};

}  // namespace

const std::array<OwnOperator, kOwnOperatorCount>& own_operators() {
  static constexpr std::array<OwnOperator, kOwnOperatorCount> operators = {
      kOperator<DataType::U8, ReduceOp::Min>,  kOperator<DataType::U8, ReduceOp::Max>,
      kOperator<DataType::F32, ReduceOp::Min>, kOperator<DataType::F32, ReduceOp::Max>,
      kOperator<DataType::F64, ReduceOp::Min>, kOperator<DataType::F64, ReduceOp::Max>,
      kOperator<DataType::U8, ReduceOp::Sum>,  kOperator<DataType::I8, ReduceOp::Sum>,
      kOperator<DataType::I16, ReduceOp::Sum>,
  };
  return operators;
}

}  // namespace ronde::mpi
