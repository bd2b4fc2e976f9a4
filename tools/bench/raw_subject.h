// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

#include "ronde/plugin/factory.h"
#include "ronde/topology.h"
#include "tools/bench/subject.h"

namespace ronde::tool {

/// A backend without the engine around it, as the engine would choose and make it: the ranks meet
/// over the built-in transport, and every operation is started and polled by the caller.
class RawSubject : public Subject {
 public:
  virtual const Topology& topology() const = 0;
  /// The backend itself.
  virtual Backend& host() = 0;
  /// Makes one for a device beside it, built on it; lives as long. Collective.
  virtual Backend& add(const BackendFactory& factory) = 0;
  /// Polls `condition` until it holds. Throws GroupError if a peer is gone, and Error with `what`
  /// once that has taken too long, as where another rank has failed and does not take part.
  virtual void wait_until(const std::function<bool()>& condition, std::string_view what) = 0;
  /// Polls until the operation is over; on a device, until its result is there.
  virtual void finish(Operation& operation, std::string_view what) = 0;
  /// The device backends release the other ranks' memory, and the ranks synchronise: then each can
  /// free what it has shared. Nothing may run on those backends afterwards. Collective.
  virtual void let_go() = 0;
  /// Ends backend and transport, after let_go(); every rank calls it.
  virtual void close() = 0;
};

/// How long one operation may take before it is given up: far longer than any does.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(2);

/// Reads RONDE_* as ronde::init() does. Collective. Throws UsageError for nonsense, GroupError if a
/// rank is missing.
std::unique_ptr<RawSubject> make_raw(std::chrono::milliseconds patience = kPatience);

}  // namespace ronde::tool
