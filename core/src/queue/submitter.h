// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "core/src/queue/submission_queue.h"
#include "core/src/submit/set_info.h"
#include "core/src/submit/work_state.h"
#include "ronde/device.h"
#include "ronde/error.h"
#include "ronde/log.h"
#include "ronde/request.h"
#include "ronde/symmetric_heap.h"
#include "ronde/topology.h"
#include "ronde/work.h"

namespace ronde {

/// Takes the program's requests: checks what this rank alone can check before others learn of them,
/// and puts them into the queue. Its errors name this rank.
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

 private:
  struct Place {
    int rank, size;
  };

  [[noreturn]] void rethrow_as_of_this_rank(const UsageError& error) const;
  Place place_in(const Request& request) const;
  std::shared_ptr<const DeviceEvent> ready_point(const Request& request,
                                                 const RequestMeta& meta) const;
  Submission submission_of(Request request) const;

  const Topology& topology_;
  const SetTable& sets_;
  SubmissionQueue& queue_;
  const std::shared_ptr<SymmetricHeap> heap_;
  const std::shared_ptr<DeviceStreams> device_streams_;
  const std::weak_ptr<WaitHelper> engine_;
  const std::shared_ptr<Logger> log_;
};

}  // namespace ronde
