// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

namespace ronde::vendor {

/// Makes a call of a library's, once, with what it needs on this thread around it.
using AroundCall = std::function<void(const std::function<void()>& call)>;

/// While it lives, the calls of a library are surrounded.
class Surrounded {
 public:
  virtual ~Surrounded() = default;
  Surrounded() = default;
  Surrounded(const Surrounded&) = delete;
  Surrounded& operator=(const Surrounded&) = delete;
};

/// Has `around` make all calls of a library from now on, of any thread, until what it returns is
/// destroyed, which waits for calls that are being made. What `around` throws the call throws.
using SurroundCalls = std::function<std::unique_ptr<Surrounded>(AroundCall around)>;

}  // namespace ronde::vendor
