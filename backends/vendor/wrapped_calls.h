// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

namespace ronde::vendor {

/// Makes a call of a library once, with what it needs on this thread.
using CallWrapper = std::function<void(const std::function<void()>& call)>;

/// While it lives, the calls of a library are wrapped.
class WrappedCalls {
 public:
  virtual ~WrappedCalls() = default;
  WrappedCalls() = default;
  WrappedCalls(const WrappedCalls&) = delete;
  WrappedCalls& operator=(const WrappedCalls&) = delete;
};

/// Has `around` make all calls of a library, on any thread, until the returned object is destroyed,
/// which waits for calls in progress. A call throws what `around` throws.
using WrapCalls = std::function<std::unique_ptr<WrappedCalls>(CallWrapper around)>;

}  // namespace ronde::vendor
