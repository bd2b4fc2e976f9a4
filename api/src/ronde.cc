// SPDX-License-Identifier: Apache-2.0
#include "ronde/ronde.h"

#include <cerrno>  // program_invocation_short_name
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "api/src/process.h"
#include "backends/compose.h"
#include "core/src/base/json.h"
#include "core/src/base/text.h"
#include "observe/base/figures_json.h"
#include "ronde/run.h"

namespace ronde {
namespace {

/// The world that `set` belongs to.
HostedRuntime::Use use(std::string_view function, ProcessSet set = kGlobalSet) {
  return Process::instance().use(function, set);
}

}  // namespace

void init(const InitOptions& options) {
  Process::instance().init(options);
}
void shutdown(std::optional<std::chrono::nanoseconds> limit) {
  Process::instance().default_world().shutdown(limit);
}
int feature_version(std::string_view feature) {
  return feature_version(feature, vendor::dynamic_symbols());
}
bool has_feature(std::string_view feature) {
  return feature_version(feature) > 0;
}
bool is_initialized() noexcept {
  return Process::instance().default_world().is_there();
}

bool is_guest() noexcept {
  return Process::instance().is_guest();
}

int rank() {
  return use("ronde::rank()")->topology().rank;
}
int size() {
  return use("ronde::size()")->topology().size;
}
int local_rank() {
  return use("ronde::local_rank()")->topology().local_rank;
}
int local_size() {
  return use("ronde::local_size()")->topology().local_size;
}
int cross_rank() {
  return use("ronde::cross_rank()")->topology().cross_rank;
}
int cross_size() {
  return use("ronde::cross_size()")->topology().cross_size;
}
bool is_homogeneous() {
  return use("ronde::is_homogeneous()")->topology().is_homogeneous();
}
const Topology& topology() {
  return use("ronde::topology()")->topology();
}

// The waits of the next functions end if another thread shuts down or leaves meanwhile.
ProcessSet add_process_set(const std::vector<int>& ranks) {
  return use("ronde::add_process_set()")->add_process_set(ranks);
}
ProcessSet create_process_set(const std::vector<int>& ranks, const std::string& tag) {
  return use("ronde::create_process_set()")->create_process_set(ranks, tag);
}
void remove_process_set(ProcessSet set) {
  use("ronde::remove_process_set()", set)->remove_process_set(set);
}
std::vector<ProcessSet> process_sets() {
  return use("ronde::process_sets()")->process_sets();
}
std::vector<int> ranks_of(ProcessSet set) {
  return use("ronde::ranks_of()", set)->ranks_of(set);
}
std::optional<int> rank_in(ProcessSet set) {
  return use("ronde::rank_in()", set)->rank_in(set);
}

Grid::Grid(std::vector<int> dimensions, const std::string& tag)
    : Grid(*use("ronde::Grid()"), std::move(dimensions), tag) {
  remove_set_ = remove_process_set;
}

Runtime& default_runtime() {
  return *use("ronde::default_runtime()");
}

Runtime& runtime_of(ProcessSet set) {
  return *use("ronde::runtime_of()", set);
}

Work submit(Request request) {
  return use("ronde::submit()", request.set)->submit(std::move(request));
}

PersistentOp prepare(Request request) {
  return use("ronde::prepare()", request.set)->prepare(std::move(request));
}

std::vector<Work> submit_group(std::vector<Request> requests) {
  const ProcessSet set = requests.empty() ? kGlobalSet : requests.front().set;
  return use("ronde::submit_group()", set)->submit_group(std::move(requests));
}

namespace {

Work start(std::string_view function, Request request, bool caller_waits) {
  request.caller_waits = caller_waits;
  return use(function, request.set)->submit(std::move(request));
}

Work start_barrier(const BarrierOptions& options, bool caller_waits) {
  Request request;
  request.kind = Collective::Barrier;
  request.name = options.name;
  request.set = options.process_set;
  request.timeout = options.timeout;
  return start("ronde::barrier()", std::move(request), caller_waits);
}

Work start_join(const JoinOptions& options, bool caller_waits) {
  Request request;
  request.kind = Collective::Join;
  request.set = options.process_set;
  return start("ronde::join()", std::move(request), caller_waits);
}

}  // namespace

// The next functions wait on the handle alone, so that the Runtime can shut down meanwhile.
void run(Request request) {
  start("ronde::run()", std::move(request), true).wait();
}

void barrier(const BarrierOptions& options) {
  start_barrier(options, true).wait();
}

Work barrier_async(const BarrierOptions& options) {
  return start_barrier(options, false);
}

int join(const JoinOptions& options) {
  const Work work = start_join(options, true);
  work.wait();
  return work.last_rank();
}

Work join_async(const JoinOptions& options) {
  return start_join(options, false);
}

void abort(const std::string& text, ProcessSet set) {
  use("ronde::abort()", set)->abort(text);
}

std::exception_ptr failure(ProcessSet set) {
  return use("ronde::failure()", set)->failure();
}

std::string stats(ProcessSet set) {
  const auto runtime = use("ronde::stats()", set);
  Figures figures = runtime->figures();
  const int rank = runtime->topology().rank;
  auto json = nlohmann::ordered_json::object({{"layout_version", kStatsLayoutVersion}});
  json.update(counters_json(figures.counters));
  figures.counters.clear();
  json["figures"] = to_json(figures, rank, Histograms::Without);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Figures figures(ProcessSet set) {
  return use("ronde::figures()", set)->figures();
}

std::uint64_t add_shutdown_hook(std::function<void()> hook, ProcessSet set) {
  return Process::instance().add_shutdown_hook(std::move(hook), set);
}
void remove_shutdown_hook(std::uint64_t number, ProcessSet set) {
  Process::instance().remove_shutdown_hook(number, set);
}
void note_checkpoint(std::int64_t step, ProcessSet set) {
  if (set.world != kGlobalSet.world) return;
  Process::instance().note_checkpoint(step);
}

std::string rank_text(ProcessSet set) try {
  const auto runtime = use("ronde::rank_text()", set);
  const std::string& world = runtime->world_name();
  return "rank " + std::to_string(runtime->topology().rank) +
         (world.empty() ? "" : " of world '" + world + "'");
} catch (const UsageError&) {
  return "";  // the world does not live, or this is a child of fork()
}

void mark_step(std::uint64_t samples, ProcessSet set) {
  use("ronde::mark_step()", set)->mark_step(samples);
}

void record(std::string_view name, double value, ProcessSet set) {
  use("ronde::record()", set)->record(name, value);
}

namespace {

RuntimeSpan span_of(std::string_view name, ProcessSet set) try {
  if (set.world == kGlobalSet.world && !is_initialized()) return {};
  return {*use("ronde::Span()", set), name};
} catch (const UsageError&) {
  return {};  // another thread has shut it down, or this is a child of fork()
}

}  // namespace

Span::Span(std::string_view name, ProcessSet set) : span_(span_of(name, set)) {}

void start_timeline(const std::string& path, ProcessSet set) {
  use("ronde::start_timeline()", set).observer().start_timeline(path);
}

void stop_timeline(ProcessSet set) {
  use("ronde::stop_timeline()", set).observer().stop_timeline();
}

void dump(ProcessSet set) {
  use("ronde::dump()", set).observer().dump();
}

void register_backend(const std::string& name, BackendFactory factory) {
  Process::instance().register_backend(name, std::move(factory));
}

void set_stall_callback(StallCallback callback) {
  Process::instance().set_stall_callback(std::move(callback));
}

void add_init_hook(std::function<void(Runtime&)> hook) {
  Process::instance().add_init_hook(std::move(hook));
}

namespace {

void print_error(const std::string& text) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, text.c_str());
}

/// Leaves the group, and fails it before that if there is a `reason`. Returns why it failed,
/// perhaps for the reason of another rank; null if it did not, or if there is no group.
std::exception_ptr leave_group(const std::optional<std::string>& reason = {}) {
  try {
    if (reason && is_initialized()) abort(*reason);
    return Process::instance().default_world().shutdown();
  } catch (...) {
    return std::current_exception();
  }
}

/// Returns the text of `error`, without the stack at the end of LibTorch's errors.
std::string text_of(const std::exception_ptr& error) {
  const std::string text = exception_text(error);
  return text.substr(0, text.find("\nException raised from "));
}

}  // namespace

int main(const std::function<int()>& program, const InitOptions& options) {
  try {
    init(options);
    const int status = program();
    if (const auto failure = leave_group()) std::rethrow_exception(failure);
    return status;
  } catch (...) {
    const std::string reason = text_of(std::current_exception());
    print_error(reason);
    const std::exception_ptr failure = leave_group(reason);
    const std::string cause = failure ? text_of(failure) : reason;
    const bool is_new = reason.find(cause) == std::string::npos;
    if (is_new && cause.find(reason) == std::string::npos) print_error(cause);
  }
  return EXIT_FAILURE;
}

}  // namespace ronde
