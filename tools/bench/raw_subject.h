// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "ronde/backend.h"
#include "ronde/topology.h"
#include "subject.h"

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
  /// Polls `condition` until it holds. Throws GroupError if a peer is gone.
  virtual void wait_until(const std::function<bool()>& condition) = 0;
  /// Polls until the operation is over; on a device, until its result is there.
  virtual void finish(Operation& operation) = 0;
  /// Ends backend and transport; every rank calls it.
  virtual void close() = 0;
};

/// Reads RONDE_* as ronde::init() does. Collective. Throws UsageError for nonsense, GroupError if a
/// rank is missing.
std::unique_ptr<RawSubject> make_raw();

}  // namespace ronde::tool
