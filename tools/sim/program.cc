// SPDX-License-Identifier: Apache-2.0
#include "tools/sim/program.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "observe/report/text.h"
#include "ronde/error.h"
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

/// The events of a rank's file, or of one of its steps, in the order of their begin.
struct Trace {
  std::vector<Slice> steps = {}, waits = {};
  std::vector<Submission> submissions = {};
  double left_out = 0;               ///< operations that are not simulated
  double wire_bytes = 0, bytes = 0;  ///< of all buckets

  void take(const Json& event);
  Trace step(const Slice& step) const;
  double computed_until(double us) const;
  /// These and program() are of a step.
  double compute_us() const { return computed_until(steps.front().end_us); }
  Program program() const;
};

void Trace::take(const Json& event) {
  const std::string category = event.value("cat", "");
  const bool is_slice = event.value("ph", "") == "X";
  const Json args = event.value("args", Json::object());
  const double at_us = event.value("ts", 0.0);
  const auto slice = [&](const char* number) {
    return Slice{at_us, at_us + event.value("dur", 0.0), args.value(number, std::uint64_t{0})};
  };
  if (prof::is_bucket(event)) {
    wire_bytes += args.value("bytes", 0.0);
    bytes += args.value("uncompressed_bytes", 0.0);
  } else if (is_slice && category == "step") {
    steps.push_back(slice("samples"));
  } else if (is_slice && category == "wait") {
    waits.push_back(slice("operation"));
  } else if (event.value("ph", "") == "b" && category == "tensor") {
    const std::string kind = args.value("kind", "");
    const bool is_broadcast = kind == to_string(Collective::Broadcast);
    if (args.value("set", 0) != 0 || (!is_broadcast && kind != to_string(Collective::Allreduce))) {
      ++left_out;
      return;
    }
    std::string name = event.value("name", "");
    if (name.starts_with('#')) name.clear();
    submissions.push_back(
        {at_us,
         event.value("id", std::uint64_t{0}),
         {std::move(name), is_broadcast ? Collective::Broadcast : Collective::Allreduce,
          args.value("bytes", std::uint64_t{0})}});
  }
}

Trace Trace::step(const Slice& step) const {
  const auto part = [&](const auto& all, auto time) {
    return std::decay_t<decltype(all)>(std::ranges::lower_bound(all, step.begin_us, {}, time),
                                       std::ranges::lower_bound(all, step.end_us, {}, time));
  };
  return {{step}, part(waits, &Slice::begin_us), part(submissions, &Submission::at_us)};
}

/// Returns the time from the step's begin but for waits, which may overlap.
double Trace::computed_until(double us) const {
  double computed = us - steps.front().begin_us, waited_until = steps.front().begin_us;
  for (const Slice& wait : waits) {
    const double begin = std::max(wait.begin_us, waited_until), end = std::min(wait.end_us, us);
    computed -= std::max(0.0, end - begin);
    waited_until = std::max(waited_until, wait.end_us);
  }
  return computed;
}

Program Trace::program() const {
  Program program;
  program.samples = steps.front().number;
  double done_us = 0;
  const auto add = [&](double us, Program::Act act, std::size_t operation) {
    const double computed = std::max(done_us, computed_until(us));
    program.actions.push_back({computed - std::exchange(done_us, computed), act, operation});
  };
  std::map<std::uint64_t, std::size_t> known;
  auto wait = waits.begin();
  for (const Submission& next : submissions) {
    for (; wait != waits.end() && wait->begin_us < next.at_us; ++wait) {
      const auto found = known.find(wait->number);
      if (found != known.end()) add(wait->begin_us, Program::Act::Wait, found->second);
    }
    known[next.number] = program.operations.size();
    add(next.at_us, Program::Act::Submit, program.operations.size());
    program.operations.push_back(next.operation);
  }
  const bool has_waited = wait != waits.end();
  add(has_waited ? wait->begin_us : submissions.back().at_us, Program::Act::WaitForAll, 0);
  program.rest_us = std::max(0.0, compute_us() - done_us);
  return program;
}

Trace read_events(const prof::fs::path& path) {
  Trace trace;
  const prof::TraceHead head =
      prof::read_trace(path, [&](const Json& event) { trace.take(event); });
  std::string problem;
  if (!head.damaged_lines.empty()) {
    problem = "is damaged in line " + std::to_string(head.damaged_lines.front());
  } else if (head.cut) {
    problem = "is cut after " + count_text(head.events, "complete event");
  } else if (head.events_lost > 0) {
    problem = "lacks " + count_text(head.events_lost, "event") +
              " that came faster than they were written (RONDE_EVENTS)";
  }
  if (!problem.empty()) {
    throw UsageError("--timeline: " + path.string() + " " + problem + ": record it anew");
  }
  std::ranges::stable_sort(trace.steps, {}, &Slice::begin_us);
  std::ranges::stable_sort(trace.waits, {}, &Slice::begin_us);
  std::ranges::stable_sort(trace.submissions, {}, &Submission::at_us);
  return trace;
}

/// Returns the steps with as many submissions as most steps have, the fastest first. The first
/// quarter is left out: slow first steps would else be drawn for one of many ranks in every step.
std::vector<Trace> equal_steps(const Trace& trace) {
  std::map<std::size_t, std::vector<Trace>> by_submissions;
  for (std::size_t i = trace.steps.size() / 4; i < trace.steps.size(); ++i) {
    Trace step = trace.step(trace.steps[i]);
    if (!step.submissions.empty()) by_submissions[step.submissions.size()].push_back(step);
  }
  std::vector<Trace> most;
  for (const auto& [submissions, steps] : by_submissions) {
    if (steps.size() >= most.size()) most = steps;
  }
  std::ranges::stable_sort(most, {}, [](const Trace& step) { return step.compute_us(); });
  return most;
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
  const std::vector<Trace> steps = equal_steps(trace);
  if (steps.empty()) {
    throw UsageError("--timeline: " + file.string() +
                     " has no step with an allreduce or a broadcast: an optimizer's step() or "
                     "ronde::mark_step() ends each, and the first is not written");
  }
  Program program = steps[steps.size() / 2].program();
  const double median_us = program.compute_us();
  constexpr double kLongest = 86'400e6;
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 40;
  const bool is_large = std::ranges::any_of(
      program.operations, [](const auto& operation) { return operation.bytes > kLargest; });
  if (!(median_us <= kLongest) || is_large) {
    throw UsageError("--timeline: " + file.string() +
                     " is damaged: its median step has more than a day or 1 TiB");
  }
  program.factors.clear();
  for (const Trace& step : steps) {
    program.factors.push_back(median_us > 0 ? step.compute_us() / median_us : 1);
  }
  constexpr double kHalf = 0.75;  // between half of the bytes and all of them
  if (trace.wire_bytes < kHalf * trace.bytes) program.wire_dtype = DataType::F16;
  if (trace.left_out > 0) {
    program.remark = count_text(trace.left_out, "operation") +
                     " of the trace are left out, as only allreduces and broadcasts of all ranks "
                     "are simulated";
  }
  return program;
}

Program model_program(const std::string& model, double compute_ms) {
  const GradientList& list = gradient_list(model);
  const double backward_us = compute_ms * 1e3 * 2 / 3;
  const double each_us = backward_us / static_cast<double>(list.tensors.size());
  Program program;
  for (auto size = list.tensors.rbegin(); size != list.tensors.rend(); ++size) {
    const std::size_t index = program.operations.size();
    program.operations.push_back(
        {model + " " + std::to_string(index), Collective::Allreduce, *size * sizeof(float)});
    program.actions.push_back({each_us, Program::Act::Submit, index});
  }
  program.actions.front().after_us += compute_ms * 1e3 - backward_us;
  program.actions.push_back({0, Program::Act::WaitForAll, 0});
  return program;
}

}  // namespace ronde::tool
