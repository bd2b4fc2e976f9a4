// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
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
#include "tests/support/fakes/stream_fiber.h"

// What FakeCuda's functions share.
namespace ronde::test {

using namespace ronde::cuda;

namespace fake {

/// Of the calling thread, the current one last.
inline thread_local std::vector<ContextHandle> contexts;
/// That of the current context, which there must be.
inline int current_device() {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(contexts.back())) - 1;
}

/// Whether a stream has come to a recording of an event.
using Recording = std::shared_ptr<std::atomic<bool>>;

/// Work that can always be done.
template <typename Run>
Work once(Run run) {
  return [run = std::move(run)] { return run(), true; };
}

/// All of Ronde's, whose threads run one after the other.
std::map<std::string, FakeCuda::Kernel> ronde_kernels();

struct Stream {
  /// Whether the next work could be done.
  bool run_next() {
    if (!fiber.run(queue.front())) return false;
    queue.pop_front();
    return true;
  }

  std::deque<Work> queue;
  Fiber fiber;
  bool is_held = false;
  bool is_late = false;       ///< in disorder, for a while
  bool is_destroyed = false;  ///< gone once what is queued has run
};

/// Mapped for as long as somebody holds it.
using Memory = std::shared_ptr<void>;

/// Memory that a second mapping shows at another address.
struct Allocation {
  Memory memory;
  std::size_t bytes = 0;
  int descriptor = -1;
  std::uint64_t buffer_id = 0;
  bool is_ipc_capable = true;
};

/// What a context has opened by IPC, and how often. Where streams are fibers it is at the address
/// of its owner, and the same for all contexts: else ThreadSanitizer would see other memory.
struct Mapping {
  Memory memory = {};
  std::size_t bytes = 0;
  std::uint64_t buffer_id = 0;  ///< of this process; else 0
  std::array<char, sizeof(IpcMemHandle)> handle = {};
  int device = 0;  ///< of the context
  int openings = 1;
};

struct HostMemory {
  std::size_t bytes = 0;
  Memory on_device = {};  ///< null: at the same address
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
  fake::HiddenMutex mutex;
  std::condition_variable_any something_ran;
  Functions symbols;
  std::map<std::string, Failure> failures;
  std::map<std::string, int> calls;
  std::map<std::string, Kernel> kernels = fake::ronde_kernels();
  std::vector<int> retained;
  std::map<StreamHandle, fake::Stream> streams;
  std::map<EventHandle, fake::Recording> events;  ///< the last one; null: none
  std::map<DevicePointer, fake::Allocation> allocations;
  std::map<DevicePointer, fake::Mapping> mappings;
  std::map<DevicePointer, fake::HostMemory> host_allocations, host_registrations;
  std::map<std::string, fake::Memory> files;  ///< registered ones, as devices see them
  std::set<ModuleHandle> modules;
  std::map<FunctionHandle, std::string> functions;
  std::set<StreamHandle> captured;
  bool default_is_unusable = false;  ///< by a capture
  std::uint64_t last_number = 0;
  std::set<int> held_devices;  ///< streams made there are held
  std::mt19937 random;         ///< of the disorder
  unsigned calls_to_come = 0;  ///< until other streams are late

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

  /// Some streams come to nothing during hundreds of calls, so that others get far ahead.
  void choose_late_streams() {
    if (calls_to_come-- > 0) return;
    calls_to_come = random() % 256;
    for (auto& [handle, stream] : streams) stream.is_late = random() % 2 == 0;
  }

  /// The next work of a stream that can run, in disorder of any; false if there is none.
  bool run_one(bool also_late) {
    std::vector<fake::Stream*> candidates;
    for (auto& [handle, stream] : streams) {
      const bool is_ready = !stream.is_held && !stream.queue.empty();
      if (is_ready && (also_late || !stream.is_late)) candidates.push_back(&stream);
    }
    if (options.disorder != 0) std::shuffle(candidates.begin(), candidates.end(), random);
    return std::ranges::any_of(candidates, &fake::Stream::run_next);
  }

  /// Blocks until `is_over`, while others run what there is.
  template <typename Condition>
  Result wait_until(Condition is_over) {
    while (!is_over()) {
      if (options.disorder != 0 && (run_one(false) || run_one(true))) continue;
      const fake::Hidden hidden;
      something_ran.wait(mutex);
    }
    something_ran.notify_all();
    return kSuccess;
  }

  /// Null unless it was made and not destroyed.
  fake::Stream* find_stream(StreamHandle handle) {
    const auto found = streams.find(handle);
    return found == streams.end() || found->second.is_destroyed ? nullptr : &found->second;
  }

  Result enqueue(StreamHandle handle, fake::Work work) {
    fake::Stream* const stream = find_stream(handle);
    if (stream == nullptr) return kInvalidHandle;
    fake::release(&stream->queue.emplace_back(std::move(work)));
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
    const bool is_elsewhere = fake::contexts.empty() || fake::current_device() != failure.device;
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
inline std::atomic<State*> current_state{nullptr};

/// Enters the driver: counts the call, and fails it if it is to fail.
struct Enter {
  template <typename Body>
  Result operator()(const char* symbol, Body body) const {
    State* const state = current_state;
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
    return Enter()(symbol, [&](State& s) { return contexts.empty() ? kInvalidContext : body(s); });
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

/// All of the driver's.
void add_driver(Functions& functions);

}  // namespace fake
}  // namespace ronde::test
