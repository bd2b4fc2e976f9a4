// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <map>

#include "tests/support/processes/beside.h"

namespace ronde::test {

/// The environment of a program that finds the libtorch_cuda of tests/torch/late, which has a GPU,
/// and no GPU for Ronde: it gets as far as that if it opens the library before any call of LibTorch
/// that asks for CUDA.
inline std::map<std::string, std::string> with_late_cuda() {
  std::string folders = LATE_CUDA_FOLDER;
  if (const char* const others = std::getenv("LD_LIBRARY_PATH"))
    folders += ":" + std::string(others);
  return {{"LD_LIBRARY_PATH", folders}, {"CUDA_VISIBLE_DEVICES", ""}};
}

}  // namespace ronde::test
