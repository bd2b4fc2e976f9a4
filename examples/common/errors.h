// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace example {

/// Something the user gave is wrong: an option, an image, a checkpoint, a folder. The text names
/// it, says why, and what to do where that is not obvious.
class InputError : public std::runtime_error {
 public:
  explicit InputError(const std::string& text) : std::runtime_error(text) {}
};

}  // namespace example
