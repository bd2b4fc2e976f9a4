// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/autograd/gradient_names.h"

namespace ronde::detail {

std::string GradientNames::next(ProcessSet set, const std::string& operation) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t use = ++uses_[{set.id, operation}];
  const std::string name = "gradient of " + operation;
  return use == 1 ? name : name + ", use " + std::to_string(use);
}

void GradientNames::restart(ProcessSet set, const std::string& operation) {
  const std::lock_guard lock(mutex_);
  uses_.erase({set.id, operation});
}

GradientNames& gradient_names() {
  // Never destroyed: a graph may outlive main.
  static auto* const names = new GradientNames();
  return *names;
}

}  // namespace ronde::detail
