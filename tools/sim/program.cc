// SPDX-License-Identifier: Apache-2.0
#include "tools/sim/program.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "observe/report/text.h"
#include "ronde/error.h"
#include "ronde/plugin/events.h"
#include "tools/bench/base/gradient_lists.h"
#include "tools/prof/read/trace.h"

namespace ronde::tool {
namespace {

using prof::Json;

struct Slice {
  double begin_us = 0, end_us = 0;
  std::uint64_t number = 0;  ///< of a step the samples, of a wait the operation
};

struct Submission {
  double at_us = 0;
  std::uint64_t number = 0;
  Program::Operation operation;
};

/// The events of a rank's file, in the order of their begin.
struct Trace {
  std::vector<Slice> steps, waits;
  std::vector<Submission> submissions;
  std::vector<double> backward_ends_us;
  std::map<std::string, int> left_out;  ///< operations that are not simulated, by kind
  double wire_bytes = 0, bytes = 0;     ///< of all buckets

  void take(const Json& event);
};

std::optional<Collective> simulated_kind(const Json& args) {
  for (const Collective kind : {Collective::Allreduce, Collective::Broadcast}) {
    if (args.value("kind", "") == to_string(kind) && args.value("set", 0) == 0) return kind;
  }
  return std::nullopt;
}

void Trace::take(const Json& event) {
  const std::string phase = event.value("ph", ""), category = event.value("cat", "");
  const Json args = event.value("args", Json::object());
  const double at_us = event.value("ts", 0.0);
  const auto slice = [&](const char* number) {
    return Slice{at_us, at_us + event.value("dur", 0.0), args.value(number, std::uint64_t{0})};
  };
  if (prof::is_bucket(event)) {
    wire_bytes += args.value("bytes", 0.0);
    bytes += args.value("uncompressed_bytes", 0.0);
  } else if (phase == "X" && category == "step") {
    steps.push_back(slice("samples"));
  } else if (phase == "X" && category == "wait") {
    waits.push_back(slice("operation"));
  } else if (phase == "X" && category == "span" && event.value("name", "") == kBackwardSpan) {
    backward_ends_us.push_back(slice("").end_us);
  } else if (phase == "b" && category == "tensor") {
    if (const auto kind = simulated_kind(args)) {
      std::string name = event.value("name", "");
      if (name.starts_with('#')) name.clear();
      submissions.push_back({at_us,
                             event.value("id", std::uint64_t{0}),
                             {std::move(name), *kind, args.value("bytes", std::uint64_t{0})}});
    } else {
      ++left_out[args.value("kind", "") + (args.value("set", 0) == 0 ? "" : " of a process set")];
    }
  }
}

/// Returns the part of `all`, sorted by `time`, in [begin, end).
template <typename T, typename Time>
std::vector<T> within(const std::vector<T>& all, Time time, const Slice& step) {
  return {std::ranges::lower_bound(all, step.begin_us, {}, time),
          std::ranges::lower_bound(all, step.end_us, {}, time)};
}

/// One step of a trace.
class TracedStep {
 public:
  TracedStep(const Trace& trace, const Slice& step)
      : step_(step),
        submissions_(within(trace.submissions, &Submission::at_us, step)),
        waits_(within(trace.waits, &Slice::begin_us, step)) {
    const auto ends = within(trace.backward_ends_us, std::identity(), step);
    if (!ends.empty()) backward_end_us_ = ends.back();
  }

  std::size_t submissions() const { return submissions_.size(); }
  double compute_us() const { return computed_until(step_.end_us); }
  Program program() const;

 private:
  /// Returns the time from the step's begin but for waits, which may overlap.
  double computed_until(double us) const {
    double computed = us - step_.begin_us, waited_until = step_.begin_us;
    for (const Slice& wait : waits_) {
      const double begin = std::max(wait.begin_us, waited_until), end = std::min(wait.end_us, us);
      computed -= std::max(0.0, end - begin);
      waited_until = std::max(waited_until, wait.end_us);
    }
    return computed;
  }

  Slice step_;
  std::vector<Submission> submissions_;
  std::vector<Slice> waits_;
  double backward_end_us_ = 0;  ///< 0: not known
};

Program TracedStep::program() const {
  Program program;
  program.samples = step_.number;
  const double last_us = submissions_.back().at_us;
  double done_us = 0;
  const auto add = [&](double us, Program::Act act, std::size_t operation) {
    const double computed = computed_until(us);
    program.actions.push_back({std::max(0.0, computed - done_us), act, operation});
    done_us = std::max(done_us, computed);
  };
  std::map<std::uint64_t, std::size_t> known;
  auto wait = waits_.begin();
  for (const Submission& next : submissions_) {
    for (; wait != waits_.end() && wait->begin_us < next.at_us; ++wait) {
      const auto found = known.find(wait->number);
      if (found != known.end()) add(wait->begin_us, Program::Act::Wait, found->second);
    }
    known[next.number] = program.operations.size();
    add(next.at_us, Program::Act::Submit, program.operations.size());
    program.operations.push_back(next.operation);
  }
  const double wait_us =
      wait != waits_.end() ? wait->begin_us : std::max(last_us, backward_end_us_);
  add(wait_us, Program::Act::WaitForAll, 0);
  program.rest_us = std::max(0.0, compute_us() - done_us);
  return program;
}

/// Returns the steps with as many submissions as most steps have, the fastest first.
std::vector<TracedStep> equal_steps(const Trace& trace, const std::string& path) {
  std::map<std::size_t, std::vector<TracedStep>> by_submissions;
  for (const Slice& slice : trace.steps) {
    const TracedStep step(trace, slice);
    if (step.submissions() > 0) by_submissions[step.submissions()].push_back(step);
  }
  if (by_submissions.empty()) {
    throw UsageError(
        "--timeline: " + path +
        (trace.steps.empty()
             ? " has no step: the program ends each with step() of its optimizer or with "
               "ronde::mark_step(), and the timeline holds those after the first"
             : " has no step with an allreduce or a broadcast"));
  }
  std::vector<TracedStep> steps =
      std::ranges::max_element(by_submissions, {}, [](const auto& each) {
        return each.second.size();
      })->second;
  std::ranges::stable_sort(steps, {}, &TracedStep::compute_us);
  return steps;
}

Trace read_events(const prof::fs::path& path) {
  Trace trace;
  const prof::TraceHead head =
      prof::read_trace(path, [&](const Json& event) { trace.take(event); });
  if (head.cut || !head.damaged_lines.empty()) {
    throw UsageError("--timeline: " + path.string() +
                     (head.cut
                          ? " is cut after " + count_text(head.events, "complete event")
                          : " is damaged in line " + std::to_string(head.damaged_lines.front())) +
                     ": copy it again, or record it anew");
  }
  if (head.events_lost > 0) {
    throw UsageError("--timeline: " + path.string() + " lacks " +
                     count_text(head.events_lost, "event") +
                     " that came faster than they were written: record it with a larger "
                     "RONDE_EVENTS");
  }
  std::ranges::stable_sort(trace.steps, {}, &Slice::begin_us);
  std::ranges::stable_sort(trace.waits, {}, &Slice::begin_us);
  std::ranges::stable_sort(trace.submissions, {}, &Submission::at_us);
  std::ranges::sort(trace.backward_ends_us);
  return trace;
}

}  // namespace

double Program::compute_us() const {
  double us = rest_us;
  for (const Action& action : actions) us += action.after_us;
  return us;
}

Program read_program(const std::string& path) {
  std::error_code error;
  const bool is_folder = prof::fs::is_directory(path, error);
  const prof::fs::path file =
      is_folder ? prof::read_heads(path).front().path : prof::fs::path(path);
  const Trace trace = read_events(file);
  const std::vector<TracedStep> steps = equal_steps(trace, file.string());
  Program program = steps[steps.size() / 2].program();
  const double median_us = program.compute_us();
  constexpr double kLongest = 86'400e6;
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 40;
  const bool is_large = std::ranges::any_of(
      program.operations, [](const auto& operation) { return operation.bytes > kLargest; });
  if (!(median_us <= kLongest) || is_large) {
    throw UsageError("--timeline: " + file.string() +
                     " has a step of over a day, or an operation of over 1 TiB: it is damaged");
  }
  program.factors.clear();
  for (const TracedStep& step : steps) {
    program.factors.push_back(median_us > 0 ? step.compute_us() / median_us : 1);
  }
  constexpr double kHalf = 0.75;  // between half of the bytes and all of them
  if (trace.wire_bytes < kHalf * trace.bytes) program.wire_dtype = DataType::F16;
  for (const auto& [kind, count] : trace.left_out) {
    program.remarks.push_back(count_text(count, "operation") +
                              " of the trace are left out: " + kind);
  }
  return program;
}

Program model_program(const std::string& model, double compute_ms) {
  const GradientList& list = gradient_list(model);
  constexpr double kBackwardShare = 2.0 / 3;
  const double backward_us = kBackwardShare * compute_ms * 1e3;
  Program program;
  for (auto size = list.tensors.rbegin(); size != list.tensors.rend(); ++size) {
    const std::size_t index = program.operations.size();
    program.operations.push_back(
        {model + " " + std::to_string(index), Collective::Allreduce, *size * sizeof(float)});
    program.actions.push_back(
        {backward_us / static_cast<double>(list.tensors.size()), Program::Act::Submit, index});
  }
  program.actions.front().after_us += compute_ms * 1e3 - backward_us;
  program.actions.push_back({0, Program::Act::WaitForAll, 0});
  return program;
}

}  // namespace ronde::tool
