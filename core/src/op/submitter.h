// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/src/op/set_info.h"
#include "core/src/op/submission_queue.h"
#include "core/src/op/work_state.h"
#include "ronde/device.h"
#include "ronde/error.h"
#include "ronde/log.h"
#include "ronde/persistent.h"
#include "ronde/request.h"
#include "ronde/symmetric_heap.h"
#include "ronde/topology.h"
#include "ronde/work.h"

namespace ronde {

/// An operation that can be started, once or many times.
struct Preparation : Description {
  SpecPtr spec;               ///< with the symmetric place of the output that it was prepared with
  int rank = 0;               ///< within the set
  bool is_symmetric = false;  ///< Request::symmetric
  std::chrono::nanoseconds timeout{0};
};

/// Checks the program's requests for errors that this rank alone can see, and puts them into the
/// queue. Its errors name this rank.
///
/// Thread-safety: every member may be called from any thread.
class Submitter {
 public:
  /// `heap`, `device_streams`: null where there are none. The references outlive this.
  Submitter(const Topology& topology, const SetTable& sets, SubmissionQueue& queue,
            std::shared_ptr<SymmetricHeap> heap, std::shared_ptr<DeviceStreams> device_streams,
            std::weak_ptr<WaitHelper> engine, std::shared_ptr<Logger> log);

  Work submit(Request request);
  std::vector<Work> submit_group(std::vector<Request> requests);

  /// Prepares an operation. The caller passes the Preparation to unprepare() once it has ended.
  Preparation prepare(Request request);
  Work start(const Preparation& preparation, Start start);
  void unprepare(const Preparation& preparation) { queue_.names()->unprepare(preparation.spec); }

 private:
  [[noreturn]] void rethrow_as_of_this_rank(const UsageError& error) const;
  std::shared_ptr<const SetInfo> set_of(const Request& request) const;
  std::shared_ptr<const DeviceEvent> ready_point(const Submission& submission) const;
  Preparation described(const Request& request) const;
  SpecPtr spec_of_start(const Start& start, const Preparation& preparation) const;
  Submission submission_of(Start start, const Preparation& preparation) const;

  const Topology& topology_;
  const SetTable& sets_;
  SubmissionQueue& queue_;
  const std::shared_ptr<SymmetricHeap> heap_;
  const std::shared_ptr<DeviceStreams> device_streams_;
  const std::weak_ptr<WaitHelper> engine_;
  const std::shared_ptr<Logger> log_;
};

}  // namespace ronde
