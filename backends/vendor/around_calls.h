// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

namespace ronde::vendor {

/// Makes a call of a library once, with what it needs on this thread.
using AroundCall = std::function<void(const std::function<void()>& call)>;

/// While it lives, the calls of a library are surrounded.
class Surrounded {
 public:
  virtual ~Surrounded() = default;
  Surrounded() = default;
  Surrounded(const Surrounded&) = delete;
  Surrounded& operator=(const Surrounded&) = delete;
};

/// Has `around` make all calls of a library, on any thread, until the returned object is destroyed,
/// which waits for calls in progress. A call throws what `around` throws.
using SurroundCalls = std::function<std::unique_ptr<Surrounded>(AroundCall around)>;

}  // namespace ronde::vendor
