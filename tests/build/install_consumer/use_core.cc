// SPDX-License-Identifier: Apache-2.0
// The engine alone: a program that brings its own transport and backend links no more than this.
#include <ronde/build_info.h>
#include <ronde/dtype.h>

#include <iostream>

int main() {
  std::cout << "ronde " << ronde::build_info::kVersion << ", "
            << ronde::to_string(ronde::DataType::BF16) << '\n';
  return ronde::size_of(ronde::DataType::BF16) == 2 ? 0 : 1;
}
