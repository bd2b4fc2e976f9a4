// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ronde/error.h"

namespace ronde::store {

/// A file of a checkpoint is damaged, or was never one.
class FormatError : public Error {
 public:
  using Error::Error;
};

/// It was written by a later version of Ronde: an older checkpoint must not silently replace it.
class NewerVersion : public FormatError {
 public:
  using FormatError::FormatError;
};

}  // namespace ronde::store
