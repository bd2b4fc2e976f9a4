// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "core/src/op/op_spec.h"

namespace ronde {

/// Tells models apart: by the names, kinds, types and shapes of what they submit again and again,
/// in whatever order. The same in every process and on every machine.
///
/// Thread-safety: none.
class ModelSignature {
 public:
  void add(const OpSpec& spec);

  /// 16 digits; empty if nothing was added.
  std::string text() const;

 private:
  std::set<std::uint64_t> operations_;
};

}  // namespace ronde
