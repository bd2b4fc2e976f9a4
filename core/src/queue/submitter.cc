// SPDX-License-Identifier: Apache-2.0
#include "core/src/queue/submitter.h"

#include <chrono>

#include "core/src/base/rank_list.h"
#include "core/src/submit/request_validation.h"
#include "core/src/submit/rows.h"
#include "ronde/error.h"

namespace ronde {

Submitter::Submitter(const Topology& topology, const SetTable& sets, SubmissionQueue& queue,
                     std::shared_ptr<SymmetricHeap> heap,
                     std::shared_ptr<DeviceStreams> device_streams,
                     std::weak_ptr<WaitHelper> engine, std::shared_ptr<Logger> log)
    : topology_(topology),
      sets_(sets),
      queue_(queue),
      heap_(std::move(heap)),
      device_streams_(std::move(device_streams)),
      engine_(std::move(engine)),
      log_(std::move(log)) {}

/// This rank's place in the set of the request. Throws UsageError if it has none.
Submitter::Place Submitter::place_in(const Request& request) const {
  if (request.set == kGlobalSet) return {topology_.rank, topology_.size};
  const std::shared_ptr<const SetInfo> info = sets_.at(request.set);
  if (!info->is_member()) {
    throw UsageError(shown(request) + ": " + rank_name(topology_.rank) + " is not in process set " +
                         std::to_string(request.set.id) + ", which has the ranks " +
                         list_ranks(info->ranks),
                     UsageError::Kind::NotAMember);
  }
  const Problem error = backend_error(*info, meta_of(request));
  if (!error) return {info->topology.rank, info->topology.size};
  throw UsageError(shown(request) + ": " + *error);
}

/// Names this rank in an error that it alone throws.
void Submitter::rethrow_as_of_this_rank(const UsageError& error) const {
  throw UsageError(rank_name(topology_.rank) + ": " + error.what(), error.kind());
}

Work Submitter::submit(Request request) try {
  Submission submission = submission_of(std::move(request));
  Work work(submission.work);
  queue_.push(std::move(submission));
  return work;
} catch (const UsageError& error) {
  rethrow_as_of_this_rank(error);
}

std::vector<Work> Submitter::submit_group(std::vector<Request> requests) try {
  check_group(requests);
  Submission group;
  group.meta.kind = Collective::Barrier;
  group.meta.set = requests[0].set.id;
  group.meta.device = requests[0].device.kind;
  group.request.caller_waits = true;
  group.request.contributes = false;
  group.submitted = std::chrono::steady_clock::now();
  std::vector<Work> works;
  for (Request& request : requests) {
    group.request.caller_waits = group.request.caller_waits && request.caller_waits;
    group.request.contributes = group.request.contributes || request.contributes;
    Submission& member = group.members.emplace_back(submission_of(std::move(request)));
    if (member.deadline && (!group.deadline || *member.deadline < *group.deadline)) {
      group.deadline = member.deadline;
    }
    works.emplace_back(member.work);
  }
  queue_.push(std::move(group));
  return works;
} catch (const UsageError& error) {
  rethrow_as_of_this_rank(error);
}

/// The work that has to run before the buffers of the operation are touched.
std::shared_ptr<const DeviceEvent> Submitter::ready_point(const Request& request,
                                                          const RequestMeta& meta) const try {
  return device_streams_->mark(request.device.index, request.stream);
} catch (const UsageError& error) {
  throw UsageError(display_name(meta, request.name) + ": " + error.what());
}

Submission Submitter::submission_of(Request request) const {
  const Place place = place_in(request);
  check_request(request, place.rank, place.size);
  Submission submission;
  submission.meta = meta_of(request);
  leave_out_rows(submission.meta, place.size);
  submission.meta.symmetric_place = symmetric_place(request, heap_.get());
  if (request.symmetric && !request.contributes) request.input = request.output;
  if (request.kind == Collective::Broadcast && request.root == place.rank &&
      request.input == nullptr) {
    request.input = request.output;
  }
  // A timeout that the clock cannot hold is none.
  const auto now = std::chrono::steady_clock::now();
  submission.submitted = now;
  if (request.timeout.count() > 0 &&
      request.timeout < std::chrono::steady_clock::time_point::max() - now) {
    submission.deadline = now + request.timeout;
  }
  // If there is no such backend, the ranks report that together.
  if (request.device.kind != DeviceKind::Cpu && !moves_no_data(request.kind) && device_streams_) {
    submission.ready = ready_point(request, submission.meta);
  }
  submission.work = std::make_shared<WorkState>(submission.meta, request.name, engine_, log_);
  submission.request = std::move(request);
  return submission;
}

}  // namespace ronde
