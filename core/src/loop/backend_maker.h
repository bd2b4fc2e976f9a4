// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "core/src/group/bootstrap.h"
#include "core/src/group/control_tree.h"
#include "core/src/loop/set_engines.h"
#include "ronde/device.h"
#include "ronde/log.h"
#include "ronde/plugin/board.h"
#include "ronde/plugin/factory.h"
#include "ronde/runtime.h"
#include "ronde/symmetric_heap.h"

namespace ronde {

/// Chooses and makes the backends of all ranks, and later those of process sets. Outlives them.
///
/// Thread-safety: make_for_all() is called by the coordinator thread before the loop begins;
/// hanging_start() by any thread; the rest by any thread once make_for_all() has returned.
class BackendMaker {
 public:
  /// Exchanges blobs among the ranks of a process set, as BackendContext::exchange.
  using Exchange = decltype(BackendContext::exchange);

  BackendMaker(const RuntimeOptions& options, const ControlTree& tree, const Logger& log)
      : options_(options), tree_(tree), log_(log) {}

  /// Makes the backends of all ranks, which meet by `bootstrap`, and completes `global.info`.
  /// `board`: null where the ranks share no memory; outlives the backends.
  void make_for_all(SetEngine& global, Board* board, Bootstrap& bootstrap);

  /// Makes the backends of a process set of which this rank is a member. `info` outlives the
  /// backends; the functions, as in BackendContext, outlive the call.
  Backends make_for_set(const SetInfo& info, const Exchange& exchange,
                        const std::function<bool()>& has_failed);

  /// Returns why a set has no backend for devices; empty if it has one or none is needed.
  std::string device_problem_of(const SetInfo& set) const;

  /// Returns the step in which this rank's start hangs; nothing if it waits for others.
  std::optional<GroupError> hanging_start() const;

  /// Returns the name of the backend of all ranks for buffers of `device`, or an empty string.
  std::string name_of(DeviceKind device) const;
  /// Null where there is no backend for devices.
  const std::shared_ptr<DeviceStreams>& device_streams() const noexcept { return device_streams_; }
  const std::shared_ptr<SymmetricHeap>& symmetric_heap() const noexcept { return heap_; }

 private:
  void find_device_backends(Bootstrap& bootstrap);
  void make_on_all(DeviceKind device, Backends& made, BackendContext& context,
                   Bootstrap& bootstrap);
  void make(DeviceKind device, Backends& made, BackendContext& context);
  void set_making(const std::string& name);
  /// `bootstrap`: null after the start.
  BackendContext context_of(const SetInfo& info, Bootstrap* bootstrap = nullptr);

  const RuntimeOptions& options_;
  const ControlTree& tree_;
  const Logger& log_;

  // Written by make_for_all(), constant from then on.
  Board* board_ = nullptr;
  std::map<DeviceKind, std::string> names_;
  BackendRegistry device_backends_;  ///< available on every rank
  std::string device_problem_;       ///< why other backends are not available
  std::shared_ptr<DeviceStreams> device_streams_;
  std::shared_ptr<SymmetricHeap> heap_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::string making_;  ///< the backend that this rank is making for its start, or empty
  std::set<std::string> warnings_;  ///< that this rank has seen
};

}  // namespace ronde
