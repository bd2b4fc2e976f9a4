// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "common/program.h"

namespace ronde::test {

/// The text of the examples' InputError that `action` throws; empty when it throws none.
template <typename Action>
std::string input_error(Action action) {
  try {
    action();
  } catch (const example::InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace ronde::test
