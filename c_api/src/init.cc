// SPDX-License-Identifier: Apache-2.0
// Start and end, and functions that need no group.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "c_api/src/arguments.h"
#include "c_api/src/groups.h"
#include "ronde/build_info.h"
#include "ronde/reform.h"
#include "ronde/ronde.h"
#include "ronde/ronde_c.h"
#include "ronde/run.h"

namespace ronde::c {
namespace {

/// Looks a key up by the program's get().
std::optional<std::string> look_up(const ronde_init_options& options, const std::string& key) {
  constexpr std::size_t kMostlyEnough = 4096;
  constexpr std::size_t kLongest = std::size_t{1} << 26;
  std::string value(kMostlyEnough, '\0');
  for (;;) {
    std::size_t length = 0;
    const int code = options.get(options.context, key.c_str(), value.data(), value.size(), &length);
    if (code == RONDE_KEY_ABSENT) return std::nullopt;
    if (code != 0) throw std::runtime_error("it returned " + std::to_string(code));
    const bool fits = length <= value.size();
    if (!fits && length > kLongest) throw std::runtime_error("it says that the value is too long");
    value.resize(length);
    if (fits) return value;
  }
}

KeyValueStart key_value_start(const ronde_init_options& options) {
  KeyValueStart start;
  start.rank = options.rank;
  start.size = options.size;
  start.local_rank = options.local_rank;
  if (options.prefix != nullptr) start.prefix = options.prefix;
  if (options.put != nullptr) {
    start.put = [options](const std::string& key, const std::string& value) {
      const int code = options.put(options.context, key.c_str(), value.c_str());
      if (code != 0) throw std::runtime_error("it returned " + std::to_string(code));
    };
  }
  if (options.get != nullptr) {
    start.get = [options](const std::string& key) { return look_up(options, key); };
  }
  return start;
}

ronde_rank_list list_of(const std::vector<int>& ranks) {
  return {ranks.data(), static_cast<int>(ranks.size())};
}

void report(ronde_stall_fn fn, void* context, const std::vector<StalledOperation>& stalled) {
  const CallbackScope scope;
  const GroupOfCallback own_group;
  for (const StalledOperation& operation : stalled) {
    const std::vector<int> submitted = ranks_in(operation.submitted_ranks);
    const std::vector<int> missing = ranks_in(operation.missing_ranks);
    const ronde_stall stall = {
        sizeof(ronde_stall),    operation.name.c_str(),
        operation.text.c_str(), std::chrono::duration<double>(operation.waiting).count(),
        list_of(submitted),     list_of(missing)};
    try {
      fn(context, &stall);
    } catch (...) {
      log_thrown("the callback for stalls threw, which it must not", std::current_exception());
    }
  }
}

}  // namespace

InitOptions options_of(const ronde_init_options* given) {
  InitOptions options;
  if (given == nullptr) return options;
  const ronde_init_options known = known_part(*given, {}, "ronde_init_options");
  expect(known.process_set_count >= 0, "process_set_count is negative");
  expect(known.process_sets != nullptr || known.process_set_count == 0, "process_sets is NULL");
  for (int i = 0; i < known.process_set_count; ++i) {
    options.process_sets.push_back(
        list_of(known.process_sets[i].ranks, known.process_sets[i].count));
  }
  if (known.mpi_comm != nullptr) options.mpi_communicator = *known.mpi_comm;
  options.mpi_ranks = list_of(known.mpi_ranks.ranks, known.mpi_ranks.count);
  const bool chooses = options.mpi_communicator || !options.mpi_ranks.empty();
  if (chooses && !has_feature("mpi_communicator")) {
    throw Failure(RONDE_E_UNSUPPORTED, "this build of Ronde has no MPI");
  }
  expect(known.size >= 0, "size is negative");
  const bool is_placed = known.rank != 0 || known.local_rank > 0;
  expect(known.size > 0 || (known.put == nullptr && known.get == nullptr && !is_placed),
         "rank, local_rank, put or get is given, but no size");
  if (known.size > 0) options.key_value = key_value_start(known);
  return options;
}

}  // namespace ronde::c

using namespace ronde::c;

const char* ronde_version(void) {
  return ronde::build_info::kVersion.data();  // of a literal
}

int ronde_has(const char* feature) {
  return ronde_feature_version(feature) > 0 ? 1 : 0;
}

int ronde_feature_version(const char* feature) {
  int version = 0;
  guarded("ronde_feature_version", [&] {
    expect(feature != nullptr, "feature is NULL");
    // Features of this interface itself.
    constexpr std::string_view kOwn[] = {"process_sets", "send_recv", "groups",
                                         "join",         "timeline",  "worlds"};
    const bool is_own = std::find(std::begin(kOwn), std::end(kOwn), feature) != std::end(kOwn);
    version = is_own ? 1 : ronde::feature_version(feature);
  });
  return version;
}

int ronde_init(const ronde_init_options* options) {
  return guarded("ronde_init", [&] {
    expect_no_callback();
    ronde::init(options_of(options));
  });
}

int ronde_shutdown(void) {
  return guarded("ronde_shutdown", [] {
    expect_no_callback();
    end_of_world("ronde_shutdown", ronde::kGlobalSet, [] { ronde::shutdown(); });
  });
}

int ronde_shutdown_within(double seconds) {
  return guarded("ronde_shutdown_within", [&] {
    expect_no_callback();
    const std::chrono::nanoseconds limit = timeout_of(seconds, "seconds");
    end_of_world("ronde_shutdown_within", ronde::kGlobalSet, [&] { ronde::shutdown(limit); });
  });
}

int ronde_set_stall_callback(ronde_stall_fn fn, void* context) {
  return guarded("ronde_set_stall_callback", [&] {
    if (fn == nullptr) return ronde::set_stall_callback({});
    ronde::set_stall_callback([fn, context](const auto& stalled) { report(fn, context, stalled); });
  });
}

int ronde_is_initialized(void) {
  return ronde::is_initialized() ? 1 : 0;
}

int ronde_is_elastic(void) {
  return ronde::is_elastic() ? 1 : 0;
}

int ronde_reform(int min_ranks, int* number, int* slot, int* slots, int* count) {
  return guarded("ronde_reform", [&] {
    expect(min_ranks > 0, "min_ranks is less than 1");
    expect(number != nullptr && slot != nullptr, "number or slot is NULL");
    expect(count != nullptr, "count is NULL");
    expect(slots == nullptr || *count >= 0, "count is negative");
    expect_no_callback();
    if (!ronde::is_elastic()) ronde::reform();  // throws, and no group is dropped
    end_of_world("ronde_reform", ronde::kGlobalSet, [&] {
      const ronde::Members members = ronde::reform({.min_ranks = min_ranks});
      *number = members.number;
      *slot = members.own_slot;
      give_list<int, int>(members.slots, slots, count, [](int each) { return each; });
    });
  });
}

int ronde_job_goes_on(void) {
  return ronde::job_goes_on() ? 1 : 0;
}

int ronde_fail_job(const char* why) {
  return guarded("ronde_fail_job", [&] {
    expect(why != nullptr, "why is NULL");
    ronde::fail_job(why);
  });
}

int ronde_abort(const char* text) {
  return guarded("ronde_abort", [&] {
    expect(text != nullptr, "text is NULL");
    ronde::abort(text);
  });
}

int ronde_stats_json(char* buffer, size_t size) {
  return guarded("ronde_stats_json", [&] {
    expect(buffer != nullptr, "buffer is NULL");
    const std::string json = ronde::stats();
    if (json.size() >= size) {
      throw Failure(RONDE_E_TOO_SMALL, "the text takes " + std::to_string(json.size() + 1) +
                                           " bytes, size is " + std::to_string(size));
    }
    std::copy(json.begin(), json.end(), buffer);
    buffer[json.size()] = '\0';
  });
}

int ronde_timeline_start(const char* path, int) {
  return guarded("ronde_timeline_start", [&] {
    expect(path != nullptr, "path is NULL");
    ronde::start_timeline(path);
  });
}

int ronde_timeline_stop(void) {
  return guarded("ronde_timeline_stop", [] { ronde::stop_timeline(); });
}

int ronde_mark_step(uint64_t samples) {
  return guarded("ronde_mark_step", [&] { ronde::mark_step(samples); });
}

int ronde_record(const char* name, double value) {
  return guarded("ronde_record", [&] {
    expect(name != nullptr, "name is NULL");
    ronde::record(name, value);
  });
}
