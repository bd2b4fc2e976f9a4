// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/submitter.h"

#include <algorithm>
#include <utility>

#include "core/src/base/monotonic_clock.h"
#include "core/src/base/rank_list.h"
#include "core/src/op/op_spec.h"
#include "core/src/op/request_validation.h"

namespace ronde {
namespace {

/// Sorts the members in the same order on every rank: by name, and those without one by their
/// calls.
void sort_members(std::vector<Submission>& members) {
  std::ranges::stable_sort(members, [](const Submission& a, const Submission& b) {
    const std::string& first = a.spec().name;
    const std::string& second = b.spec().name;
    return second.empty() ? !first.empty() : !first.empty() && first < second;
  });
}

/// Makes the spec of the group, which then owns those of its sorted members.
void share_spec(Submission& group) {
  OpSpec spec;
  const OpSpec& first = group.members.front().spec();
  spec.kind = Collective::Barrier;
  spec.set = first.set;
  spec.device = first.device;
  spec.name = first.name;
  for (const Submission& member : group.members) spec.members.push_back(member.spec());
  group.key.spec = share(std::move(spec));
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    group.members[i].key.spec = member_of(group.key.spec, i);
  }
}

Work push(SubmissionQueue& queue, Submission submission) {
  Work work(submission.work);
  queue.push(std::move(submission));
  return work;
}

}  // namespace

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

/// Returns the set of the request; null: the global one. Throws UsageError if this rank is not in
/// it.
std::shared_ptr<const SetInfo> Submitter::set_of(const Request& request) const {
  if (sets_.is_everybody(request.set)) return nullptr;
  std::shared_ptr<const SetInfo> info = sets_.at(request.set);
  if (info->is_member()) return info;
  throw UsageError(shown(request) + ": " + rank_name(topology_.rank) + " is not in process set " +
                       std::to_string(request.set.id) + ", which has the ranks " +
                       list_ranks(info->ranks),
                   UsageError::Kind::NotAMember);
}

/// Rethrows an error that this rank alone throws, with the rank in its text.
void Submitter::rethrow_as_of_this_rank(const UsageError& error) const {
  throw UsageError(rank_name(topology_.rank) + ": " + error.what(), error.kind());
}

Work Submitter::submit(Request request) try {
  const Preparation preparation = described(request);
  return push(queue_, submission_of(take_start(request), preparation));
} catch (const UsageError& error) {
  rethrow_as_of_this_rank(error);
}

std::vector<Work> Submitter::submit_group(std::vector<Request> requests) try {
  check_group(requests);
  Submission group;
  group.start.caller_waits = true;
  group.start.contributes = false;
  group.submitted = MonotonicClock::now();
  std::vector<Work> works;
  for (Request& request : requests) {
    group.start.caller_waits = group.start.caller_waits && request.caller_waits;
    group.start.contributes = group.start.contributes || request.contributes;
    group.start.digest += request.digest;
    const Preparation preparation = described(request);
    Submission& member =
        group.members.emplace_back(submission_of(take_start(request), preparation));
    group.input_bytes += member.input_bytes;
    group.caller_orders = group.caller_orders || member.caller_orders;
    if (member.deadline && (!group.deadline || *member.deadline < *group.deadline)) {
      group.deadline = member.deadline;
    }
    works.emplace_back(member.work);
  }
  sort_members(group.members);
  share_spec(group);
  queue_.push(std::move(group));
  return works;
} catch (const UsageError& error) {
  rethrow_as_of_this_rank(error);
}

/// Returns the event after which the buffers of the operation may be touched.
std::shared_ptr<const DeviceEvent> Submitter::ready_point(const Submission& submission) const try {
  return device_streams_->mark(submission.device_index, submission.start.stream);
} catch (const UsageError& error) {
  const OpSpec& spec = submission.spec();
  throw UsageError(display_name(spec, spec.name) + ": " + error.what());
}

/// Checks and describes the request.
Preparation Submitter::described(const Request& request) const {
  const std::shared_ptr<const SetInfo> set = set_of(request);
  const Topology& place = set ? set->topology : topology_;
  check_request(request, place.rank, place.size);
  OpSpec spec = spec_of(request);
  const bool needs_backend = set && request.refusal.empty();
  if (const Problem error = needs_backend ? backend_error(*set, spec) : std::nullopt) {
    throw UsageError(shown(request) + ": " + *error);
  }
  leave_out_rows(spec, place.size);
  const bool has_buffers =
      request.output != nullptr && (request.input != nullptr || !request.contributes);
  if (request.symmetric && has_buffers) {
    const Start start{.input = request.input,
                      .output = request.output,
                      .contributes = request.contributes,
                      .refusal = request.refusal};
    spec.symmetric_place = symmetric_place(start, spec, heap_.get());
  }
  return {{.input_bytes = input_bytes(request),
           .output_bytes = written_bytes(request, place.rank, place.size),
           .splits = request.splits,
           .device_index = request.device.index,
           .is_lazy = request.lazy,
           .caller_orders = request.caller_orders},
          share(std::move(spec)),
          place.rank,
          request.symmetric,
          request.timeout};
}

/// Returns the spec of one start, which may refuse, or be at another place of the symmetric heap
/// than the last one.
SpecPtr Submitter::spec_of_start(const Start& start, const Preparation& preparation) const {
  const SpecPtr& spec = preparation.spec;
  const std::uint64_t place =
      preparation.is_symmetric ? symmetric_place(start, *spec, heap_.get()) : 0;
  if (place == spec->symmetric_place && start.refusal == spec->refusal) return spec;
  OpSpec other = *spec;
  other.symmetric_place = place;
  other.refusal = start.refusal;
  return share(std::move(other));
}

Preparation Submitter::prepare(Request request) try {
  if (request.kind == Collective::Join) throw UsageError("a join cannot be prepared");
  static_cast<void>(take_start(request));
  request.contributes = true;
  request.input = request.output;
  Preparation preparation = described(request);
  preparation.name_use = queue_.prepare(preparation.spec);
  return preparation;
} catch (const UsageError& error) {
  rethrow_as_of_this_rank(error);
}

Work Submitter::start(const Preparation& preparation, Start start) try {
  return push(queue_, submission_of(std::move(start), preparation));
} catch (const UsageError& error) {
  rethrow_as_of_this_rank(error);
}

Submission Submitter::submission_of(Start start, const Preparation& preparation) const {
  check_start(start, *preparation.spec, preparation.input_bytes, preparation.rank);
  Submission submission;
  static_cast<Description&>(submission) = preparation;
  submission.key.spec = spec_of_start(start, preparation);
  const OpSpec& spec = submission.spec();
  const bool refuses = !spec.refusal.empty();
  if (refuses) {
    start.input = start.output = nullptr;
    start.written = {};
  }
  if (spec.symmetric() && !start.contributes) start.input = start.output;
  if (spec.kind == Collective::Reduce && spec.root != preparation.rank) start.output = nullptr;
  if (spec.kind == Collective::Broadcast) {
    if (spec.root != preparation.rank) start.input = nullptr;
    if (spec.root == preparation.rank && start.input == nullptr) start.input = start.output;
    if (start.input == start.output) submission.output_bytes = 0;  // the root's memory is only read
  }
  submission.start = std::move(start);
  // A timeout that the clock cannot hold is none.
  const auto now = MonotonicClock::now();
  submission.submitted = now;
  if (preparation.timeout.count() > 0 && preparation.timeout < TimePoint::max() - now) {
    submission.deadline = now + preparation.timeout;
  }
  // If there is no such backend, the ranks report that together.
  const bool has_data = !moves_no_data(spec.kind) && !refuses;
  if (spec.device != DeviceKind::Cpu && has_data && device_streams_) {
    submission.ready = ready_point(submission);
  }
  submission.work = std::make_shared<WorkState>(submission.key.spec, engine_, log_);
  return submission;
}

}  // namespace ronde
