// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/float_ops.h"

namespace ronde::mpi {
namespace {

template <typename Float, Float (*combine)(Float, Float)>
void reduce(void* input, void* in_out, int* count, MPI_Datatype*) {
  const auto* const from = static_cast<const Float*>(input);
  auto* const to = static_cast<Float*>(in_out);
  for (int i = 0; i < *count; ++i) to[i] = combine(from[i], to[i]);
}

}  // namespace

MPI_User_function* min_function(bool is_double) {
  return is_double ? reduce<double, propagating_min<double>>
                   : reduce<float, propagating_min<float>>;
}

MPI_User_function* max_function(bool is_double) {
  return is_double ? reduce<double, propagating_max<double>>
                   : reduce<float, propagating_max<float>>;
}

}  // namespace ronde::mpi
