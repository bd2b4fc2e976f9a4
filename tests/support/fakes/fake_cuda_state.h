// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fakes/fake_cuda.h"
#include "tests/support/fakes/fake_library.h"

// What FakeCuda's functions share.
namespace ronde::test {

using namespace ronde::cuda;

namespace fake {

/// Of the calling thread, the current one last.
std::vector<ContextHandle>& contexts();
/// That of the current context, which there must be.
int current_device();

/// Times an event was recorded, and the last recording that the stream came to.
struct EventState {
  std::uint64_t recorded = 0;
  std::uint64_t completed = 0;
};

struct Work {
  FakeCuda::Action action = {};
  std::shared_ptr<EventState> waits_for = {};
  std::uint64_t until = 0;

  bool is_ready() const {
    return (waits_for == nullptr || waits_for->completed >= until) &&
           (!action.is_over || action.is_over());
  }
};

struct Stream {
  std::deque<Work> queue;
  bool is_held = false;
  bool is_late = false;       ///< in disorder, for a while
  bool is_destroyed = false;  ///< gone once what is queued has run
};

/// Memory that a second mapping shows at another address.
struct Allocation {
  std::size_t bytes = 0;
  int descriptor = -1;
  std::uint64_t buffer_id = 0;
  bool is_ipc_capable = true;
};

/// What a context has opened by IPC, and how often.
struct Mapping {
  std::size_t bytes = 0;
  std::uint64_t buffer_id = 0;  ///< of this process; else 0
  std::array<char, sizeof(IpcMemHandle)> handle = {};
  int device = 0;  ///< of the context
  int openings = 1;
};

struct HostMemory {
  std::size_t bytes = 0;
};

/// The one of `items`, by their addresses, that holds `address`, or their end.
template <typename Items>
auto holder_of(Items& items, DevicePointer address) {
  const auto next = items.upper_bound(address);
  if (next == items.begin()) return items.end();
  const auto last = std::prev(next);
  return address < last->first + last->second.bytes ? last : items.end();
}

}  // namespace fake

struct FakeCuda::State {
  struct Failure {
    int device;  ///< of a context; negative: any
    Result result;
    int times;
    int skipped;
  };

  Options options;
  std::mutex mutex;
  std::condition_variable_any something_ran;
  Functions symbols;
  std::map<std::string, Failure> failures;
  std::map<std::string, int> calls;
  std::map<std::string, Kernel> kernels;
  std::vector<int> retained;
  std::map<StreamHandle, fake::Stream> streams;
  std::map<EventHandle, std::shared_ptr<fake::EventState>> events;
  std::map<DevicePointer, fake::Allocation> allocations;
  std::map<DevicePointer, fake::Mapping> mappings;
  std::map<DevicePointer, fake::HostMemory> host_allocations, host_registrations;
  std::set<ModuleHandle> modules;
  std::map<FunctionHandle, std::string> functions;
  std::set<StreamHandle> captured;
  bool default_is_unusable = false;  ///< by a capture
  std::uint64_t last_number = 0;
  std::map<int, int> held_devices;  ///< streams made there are held, after so many
  std::mt19937 random;              ///< of the disorder
  unsigned calls_to_come = 0;       ///< until other streams are late

  /// Opaque handles, never dereferenced.
  template <typename Handle>
  Handle new_handle() {
    return reinterpret_cast<Handle>(0x1000 + 16 * ++last_number);
  }

  /// Runs all that can run, or in disorder a little of it; what is behind a held stream or an
  /// unrecorded event stays.
  void run() {
    const bool is_in_order = options.disorder == 0;
    if (!is_in_order) choose_late_streams();
    for (unsigned left = random() % 4; (is_in_order || left-- > 0) && run_one(false);) continue;
    std::erase_if(streams, [](const auto& each) {
      return each.second.is_destroyed && each.second.queue.empty();
    });
    something_ran.notify_all();
  }

  static bool can_run(const fake::Stream& stream) {
    return !stream.is_held && !stream.queue.empty() && stream.queue.front().is_ready();
  }

  /// Some streams come to nothing during hundreds of calls, so that others get far ahead.
  void choose_late_streams() {
    if (calls_to_come-- > 0) return;
    calls_to_come = random() % 256;
    for (auto& [handle, stream] : streams) stream.is_late = random() % 2 == 0;
  }

  /// The next work of a stream that can run, in disorder of any; false if there is none.
  bool run_one(bool also_late) {
    std::vector<fake::Stream*> ready;
    for (auto& [handle, stream] : streams) {
      if (can_run(stream) && (also_late || !stream.is_late)) ready.push_back(&stream);
      if (options.disorder == 0 && !ready.empty()) break;
    }
    if (ready.empty()) return false;
    fake::Stream& stream = *ready[random() % ready.size()];
    const fake::Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    if (work.action.run) work.action.run();
    return true;
  }

  /// Blocks until `is_over`, while others run what there is.
  template <typename Condition>
  Result wait_until(Condition is_over) {
    while (!is_over()) {
      if (options.disorder == 0 || !(run_one(false) || run_one(true))) something_ran.wait(mutex);
    }
    something_ran.notify_all();
    return kSuccess;
  }

  /// Null unless it was made and not destroyed.
  fake::Stream* find_stream(StreamHandle handle) {
    const auto found = streams.find(handle);
    return found == streams.end() || found->second.is_destroyed ? nullptr : &found->second;
  }

  Result enqueue(StreamHandle handle, FakeCuda::Action action) {
    return enqueue(handle, fake::Work{.action = std::move(action)});
  }
  Result enqueue(StreamHandle handle, fake::Work work) {
    fake::Stream* const stream = find_stream(handle);
    if (stream == nullptr) return kInvalidHandle;
    stream->queue.push_back(std::move(work));
    run();
    return kSuccess;
  }

  /// Whether the GPU reaches it by itself: all but pageable host memory.
  bool is_device_accessible(DevicePointer address) const {
    const auto is_in = [&](const auto& items) {
      return fake::holder_of(items, address) != items.end();
    };
    return is_in(allocations) || is_in(mappings) || is_in(host_allocations) ||
           is_in(host_registrations);
  }

  /// Counts a call. kSuccess, or with what it is to fail.
  Result begin(const std::string& symbol) {
    ++calls[symbol];
    const auto found = failures.find(symbol);
    if (found == failures.end()) return kSuccess;
    Failure& failure = found->second;
    const bool is_elsewhere = fake::contexts().empty() || fake::current_device() != failure.device;
    if (failure.device >= 0 && is_elsewhere) return kSuccess;
    if (failure.skipped > 0) return --failure.skipped, kSuccess;
    return failure.times-- > 0 ? failure.result : kSuccess;
  }
};

namespace fake {

using State = FakeCuda::State;

constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kNotFound = 500;
constexpr Result kNotRegistered = 713;

/// The one that there is; null: what is left of it is as a driver at the end of a process.
State* current_state();

/// Enters the driver: counts the call, and fails it if it is to fail.
struct Enter {
  template <typename Body>
  Result operator()(const char* symbol, Body body) const {
    State* const state = current_state();
    if (state == nullptr) return kDeinitialized;
    const std::lock_guard lock(state->mutex);
    const Result result = state->begin(symbol);
    return result == kSuccess ? body(*state) : result;
  }
};

/// The same of most functions, which need a current context.
struct EnterContext {
  template <typename Body>
  Result operator()(const char* symbol, Body body) const {
    return Enter()(symbol,
                   [&](State& s) { return contexts().empty() ? kInvalidContext : body(s); });
  }
};

/// A function's name as an argument of a template.
template <std::size_t kBytes>
struct Symbol {
  constexpr Symbol(const char (&name)[kBytes]) { std::copy_n(name, kBytes, text); }
  char text[kBytes] = {};
};

template <Symbol kSymbol, typename How, typename Body, typename Library, typename... Arguments>
void* exported(Result (Body::*)(Library&, Arguments...) const) {
  return address(+[](Arguments... arguments) {
    return How()(kSymbol.text, [&](Library& library) { return Body()(library, arguments...); });
  });
}

/// Adds the function `kSymbol` of a library: entered by `How`, it does what Body does, a closure
/// that captures nothing and takes the library's state before the arguments.
template <Symbol kSymbol, typename How = EnterContext, typename Body>
void define(Functions& functions, Body) {
  functions[kSymbol.text] = exported<kSymbol, How, Body>(&Body::operator());
}

inline char* pointer_to(DevicePointer address) {
  return reinterpret_cast<char*>(address);
}

/// All of the driver's.
void add_driver(Functions& functions);

}  // namespace fake
}  // namespace ronde::test
