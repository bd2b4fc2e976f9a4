// SPDX-License-Identifier: Apache-2.0
// Loops that every processor of the architecture runs: see Note [One instruction set a file].
#include "core/src/kernels/loops.h"

namespace ronde::kernels {
namespace {

struct Baseline {
  static constexpr std::size_t kBytes = 16;
};

}  // namespace

const InstructionSet kBaseline = kInstructionSet<Baseline>;

}  // namespace ronde::kernels
