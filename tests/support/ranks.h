// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backends/inproc/inproc.h"
#include "ronde/error.h"
#include "ronde/runtime.h"

namespace ronde::test {

/// Settings of a test group: quiet, and without the gather time that tests would only wait for.
inline Config test_config() {
  Config config;
  config.cycle_time_ms = 0.0;
  config.log_level = "off";
  config.init_timeout_s = 20.0;
  config.shutdown_timeout_s = 20.0;
  return config;
}

/// Options of one rank of an inproc group.
inline RuntimeOptions options_of(const inproc::Group& group, int rank,
                                 Config config = test_config()) {
  RuntimeOptions options;
  options.config = std::move(config);
  options.make_transport = group.transport(rank);
  options.make_board = group.board();
  options.backends["inproc"] = group.backend_factory();
  return options;
}

/// Runs `body(rank)` on a thread for each rank and joins them. The first exception by rank is
/// thrown on. Catch2's assertions are not for these threads: check() below throws instead.
inline void run_ranks(int size, const std::function<void(int rank)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// A failed check of a rank's thread.
class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void check(bool holds, const std::string& what) {
  if (!holds) throw CheckFailed("does not hold: " + what);
}

/// The text of the `Expected` that `action` must throw.
template <typename Expected>
std::string text_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  }
  throw CheckFailed("nothing was thrown");
}

/// A group of ranks as threads, as if on these hosts (any numbers, one a rank): `body(rank,
/// runtime)` between start and shutdown.
inline void run_on(const std::vector<int>& host_of,
                   const std::function<void(int rank, Runtime& runtime)>& body,
                   const Config& config = test_config()) {
  const inproc::Group group(host_of);
  run_ranks(static_cast<int>(host_of.size()), [&](int rank) {
    Runtime runtime(options_of(group, rank, config));
    body(rank, runtime);
    runtime.shutdown();
  });
}

/// The same on one host.
inline void run_group(int size, const std::function<void(int rank, Runtime& runtime)>& body,
                      const Config& config = test_config()) {
  run_on(std::vector<int>(static_cast<std::size_t>(size), 0), body, config);
}

/// How a group died, as one rank saw it.
struct Death {
  int rank = -2;
  std::string text;

  friend bool operator==(const Death&, const Death&) = default;
};

/// The GroupError that `action` must throw.
inline Death death_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const GroupError& error) {
    return {error.failed_rank(), error.what()};
  }
  throw CheckFailed("no GroupError was thrown");
}

/// The text of the UsageError with which `work` ends. The handle outlives the error's text:
/// ThreadSanitizer does not see what orders the two ends of an exception_ptr, but it sees the
/// handle's.
inline std::string usage_error_of(const Work& work) {
  return text_of<UsageError>([&] { work.wait(); });
}

/// `text` contains `part`; both are shown if not.
inline void check_contains(const std::string& text, const std::string& part) {
  check(text.find(part) != std::string::npos, "'" + part + "' in '" + text + "'");
}

/// The value of a counter of stats(); 0 if there is none.
inline std::uint64_t counter_of(const Runtime& runtime, const std::string& part,
                                const std::string& name) {
  for (const StatsGroup& group : runtime.stats()) {
    for (const auto& [key, value] : group.counters) {
      if (group.part == part && key == name) return value;
    }
  }
  throw CheckFailed("no counter " + part + "." + name);
}

}  // namespace ronde::test
