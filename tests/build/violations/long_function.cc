// SPDX-License-Identifier: Apache-2.0
// Breaks two rules on purpose: the checks are run on this folder and must fail.
#include <mpi.h>

namespace violations {

int four_lines(int x) {
  const char* text = "a brace in a literal: {";
  return x + static_cast<int>(text[0]);
}

}  // namespace violations
