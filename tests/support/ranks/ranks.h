// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <mutex>
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "ronde/error.h"
#include "ronde/runtime.h"
#include "tests/support/inproc/inproc.h"

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

/// A failed check of a rank's thread.
class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What threads throw: a failed check is kept before anything else, as the others mostly throw what
/// follows from it, and of several the first in time.
///
/// Thread-safety: both members may be called from any thread.
class ThreadErrors {
 public:
  /// Runs `action` and keeps what it throws.
  void catch_from(const std::function<void()>& action) {
    try {
      action();
    } catch (const CheckFailed&) {
      keep(failed_check_);
    } catch (...) {
      keep(other_);
    }
  }

  void rethrow() const {
    const std::lock_guard lock(mutex_);
    if (failed_check_) std::rethrow_exception(failed_check_);
    if (other_) std::rethrow_exception(other_);
  }

 private:
  void keep(std::exception_ptr& kept) {
    const std::lock_guard lock(mutex_);
    if (!kept) kept = std::current_exception();
  }

  mutable std::mutex mutex_;
  std::exception_ptr failed_check_, other_;  // guarded by mutex_
};

/// Runs `body(rank)` on a thread for each rank, joins them and throws what they threw, as
/// ThreadErrors says. Catch2's assertions are not for these threads: check() below throws instead.
inline void run_ranks(int size, const std::function<void(int rank)>& body) {
  ThreadErrors errors;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { errors.catch_from([&] { body(rank); }); });
  }
  for (std::thread& thread : threads) thread.join();
  errors.rethrow();
}

using Where = std::source_location;

[[noreturn]] inline void fail_check(const std::string& text, const Where& where) {
  throw CheckFailed(std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " +
                    text);
}

inline void check(bool holds, const std::string& what, const Where& where = Where::current()) {
  if (!holds) fail_check("does not hold: " + what, where);
}

/// The text of a failed check_equal(): numbers and strings as they are, the elements of a range.
template <typename Value>
std::string shown(const Value& value) {
  if constexpr (requires { std::declval<std::ostream&>() << value; }) {
    std::ostringstream out;
    out << value;
    return out.str();
  } else if constexpr (requires { value.begin(); }) {
    std::string text;
    for (const auto& element : value) text += (text.empty() ? "" : ", ") + shown(element);
    return "[" + text + "]";
  } else {
    return "?";
  }
}

/// `got == expected`; both are shown if not.
template <typename Got, typename Expected>
void check_equal(const Got& got, const Expected& expected, const std::string& what,
                 const Where& where = Where::current()) {
  if (got == expected) return;
  fail_check(what + " is " + shown(got) + " and should be " + shown(expected), where);
}

/// The text of the `Expected` that `action` must throw.
template <typename Expected>
std::string text_of(const std::function<void()>& action, const Where& where = Where::current()) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  }
  fail_check("nothing was thrown", where);
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
inline Death death_of(const std::function<void()>& action, const Where& where = Where::current()) {
  try {
    action();
  } catch (const GroupError& error) {
    return {error.failed_rank(), error.what()};
  }
  fail_check("no GroupError was thrown", where);
}

/// The text of the UsageError with which `work` ends. The handle outlives the error's text:
/// ThreadSanitizer does not see what orders the two ends of an exception_ptr, but it sees the
/// handle's.
inline std::string usage_error_of(const Work& work, const Where& where = Where::current()) {
  return text_of<UsageError>([&] { work.wait(); }, where);
}

/// The ranks for which an operation waited in vain, which failed with a TimeoutError.
inline std::vector<int> missing_ranks_of(const Work& work) {
  try {
    work.wait();
  } catch (const TimeoutError& error) {
    return error.missing_ranks();
  }
  throw CheckFailed("no timeout has passed");
}

/// `text` contains `part`; both are shown if not.
inline void check_contains(const std::string& text, const std::string& part,
                           const Where& where = Where::current()) {
  check(text.find(part) != std::string::npos, "'" + part + "' in '" + text + "'", where);
}

/// The value of a counter, which must be there.
inline std::uint64_t counter_of(const StatsGroup& group, const std::string& name,
                                const Where& where = Where::current()) {
  for (const auto& [key, value] : group.counters) {
    if (key == name) return value;
  }
  fail_check("no counter " + group.part + "." + name, where);
}

/// That of a part of stats().
inline std::uint64_t counter_of(const Runtime& runtime, const std::string& part,
                                const std::string& name, const Where& where = Where::current()) {
  for (const StatsGroup& group : runtime.stats()) {
    if (group.part == part) return counter_of(group, name, where);
  }
  fail_check("no counter " + part + "." + name, where);
}

}  // namespace ronde::test
