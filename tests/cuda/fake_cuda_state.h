// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fake_cuda.h"

// What FakeCuda's functions share.
namespace ronde::test {

using namespace ronde::cuda;

namespace fake {

/// What of an event its handles, also those of other processes, share. Times it was recorded, and
/// the last recording that the stream came to.
struct EventState {
  std::uint64_t recorded = 0;
  std::uint64_t completed = 0;
  std::uint64_t number = 0;
};

struct Work {
  std::function<void()> run;
  std::shared_ptr<EventState> waits_for;
  std::uint64_t until = 0;
  std::function<bool()> is_over = {};  ///< of another library; asked again and again

  bool is_ready() const {
    return (waits_for == nullptr || waits_for->completed >= until) && (!is_over || is_over());
  }
};

struct Stream {
  std::deque<Work> queue;
  bool is_held = false;
  bool is_destroyed = false;  ///< gone once what is queued has run
};

/// Memory that a second mapping shows at another address.
struct Allocation {
  int descriptor = -1;
  std::size_t bytes = 0;
  std::uint64_t buffer_id = 0;
  int device = 0;
  bool is_ipc_capable = true;
};

}  // namespace fake

struct FakeCuda::State {
  struct Failure {
    int device;  ///< of a context; negative: any
    Result result;
    int times;
    int skipped;
  };

  /// Whether the current context is on that GPU.
  static bool is_meant(int device);

  Options options;
  std::mutex mutex;
  std::condition_variable something_ran;
  std::map<std::string, void*> symbols;
  std::map<std::string, Failure> failures;
  std::map<std::string, int> calls;
  std::map<std::string, Kernel> kernels;
  std::map<std::string, WaitingKernel> waiting_kernels;
  std::vector<int> retained;
  std::map<StreamHandle, fake::Stream> streams;
  std::map<EventHandle, std::shared_ptr<fake::EventState>> events;
  std::map<std::uint64_t, std::weak_ptr<fake::EventState>> shared_events;
  std::map<DevicePointer, fake::Allocation> allocations;
  std::map<DevicePointer, std::size_t> mappings;
  std::map<DevicePointer, std::uint64_t> mapped_buffers;  ///< the buffer_id of each of these
  std::map<char*, std::size_t> host_allocations;
  std::map<char*, std::size_t> host_registrations;
  std::set<ModuleHandle> modules;
  std::map<FunctionHandle, std::string> functions;
  std::set<StreamHandle> captured;
  bool default_is_unusable = false;  ///< by a capture
  std::uint64_t last_number = 0;
  std::map<int, int> held_devices;  ///< streams made there are held, after so many
  std::mt19937 random;              ///< of the disorder

  /// Opaque handles, never dereferenced.
  template <typename Handle>
  Handle new_handle() {
    return reinterpret_cast<Handle>(0x1000 + 16 * ++last_number);
  }

  /// Runs all that can run, or in disorder a little of it; what is behind a held stream or an
  /// unrecorded event stays.
  void run() {
    if (options.disorder != 0) {
      for (unsigned left = random() % 4; left > 0 && run_one();) --left;
    } else {
      run_all();
    }
    std::erase_if(streams, [](const auto& each) {
      return each.second.is_destroyed && each.second.queue.empty();
    });
    something_ran.notify_all();
  }

  void run_all() {
    for (bool progress = true; progress;) {
      progress = false;
      for (auto& [handle, stream] : streams) {
        while (can_run(stream)) {
          run_front(stream);
          progress = true;
        }
      }
    }
  }

  static bool can_run(const fake::Stream& stream) {
    return !stream.is_held && !stream.queue.empty() && stream.queue.front().is_ready();
  }

  static void run_front(fake::Stream& stream) {
    const fake::Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    if (work.run) work.run();
  }

  /// The next work of any stream that can run; false if there is none.
  bool run_one() {
    std::vector<fake::Stream*> ready;
    for (auto& [handle, stream] : streams) {
      if (can_run(stream)) ready.push_back(&stream);
    }
    if (ready.empty()) return false;
    run_front(*ready[random() % ready.size()]);
    return true;
  }

  /// Blocks until `is_over`, while others run what there is.
  template <typename Condition>
  void wait_until(std::unique_lock<std::mutex>& lock, Condition is_over) {
    while (!is_over()) {
      if (options.disorder == 0 || !run_one()) something_ran.wait(lock);
    }
    something_ran.notify_all();
  }

  /// Null unless it was made and not destroyed.
  fake::Stream* find_stream(StreamHandle handle) {
    const auto found = streams.find(handle);
    return found == streams.end() || found->second.is_destroyed ? nullptr : &found->second;
  }

  Result enqueue(StreamHandle handle, fake::Work work) {
    fake::Stream* const stream = find_stream(handle);
    if (stream == nullptr) return kInvalidHandle;
    stream->queue.push_back(std::move(work));
    run();
    return kSuccess;
  }

  std::map<DevicePointer, fake::Allocation>::iterator allocation_at(DevicePointer address) {
    auto found = allocations.upper_bound(address);
    if (found == allocations.begin()) return allocations.end();
    --found;
    return address < found->first + found->second.bytes ? found : allocations.end();
  }

  /// Whether the GPU reaches it by itself: all but pageable host memory.
  bool is_device_accessible(DevicePointer address) const {
    const auto holds = [&](const auto& items, auto bytes_of) {
      auto next = items.upper_bound(
          reinterpret_cast<typename std::decay_t<decltype(items)>::key_type>(address));
      if (next == items.begin()) return false;
      --next;
      return address < reinterpret_cast<DevicePointer>(next->first) + bytes_of(next->second);
    };
    const auto itself = [](std::size_t bytes) { return bytes; };
    return holds(allocations, [](const fake::Allocation& each) { return each.bytes; }) ||
           holds(mappings, itself) || holds(host_allocations, itself) ||
           holds(host_registrations, itself);
  }

  template <typename Body>
  Result entered(const char* symbol, Body body) {
    std::unique_lock lock(mutex);
    ++calls[symbol];
    const auto failure = failures.find(symbol);
    if (failure != failures.end() && is_meant(failure->second.device)) {
      if (failure->second.skipped > 0) {
        --failure->second.skipped;
      } else if (failure->second.times-- > 0) {
        return failure->second.result;
      }
    }
    return body(*this, lock);
  }
};

namespace fake {

using State = FakeCuda::State;
using Lock = std::unique_lock<std::mutex>;
using Symbols = std::map<std::string, void*>;

constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kNotFound = 500;
constexpr Result kNotRegistered = 713;

/// The one that there is; null: what is left of it is as a driver at the end of a process.
State* current_state();
/// Of the calling thread, the current one last.
std::vector<ContextHandle>& contexts();
/// That of the current context, which there must be.
int current_device();

/// Counts the call, and fails it if it is to fail.
template <typename Body>
Result call(const char* symbol, Body body) {
  State* const state = current_state();
  return state == nullptr ? kDeinitialized : state->entered(symbol, body);
}

/// Most functions need a current context.
template <typename Body>
Result call_in_context(const char* symbol, Body body) {
  return call(symbol, [&](State& s, Lock& lock) {
    return contexts().empty() ? kInvalidContext : Result{body(s, lock)};
  });
}

template <typename Function>
void* at(Function* function) {
  return reinterpret_cast<void*>(function);
}

inline char* pointer_to(DevicePointer address) {
  return reinterpret_cast<char*>(address);
}

void add_queries(Symbols& symbols);
void add_contexts(Symbols& symbols);
void add_memory(Symbols& symbols);
void add_host_memory(Symbols& symbols);
void add_ipc(Symbols& symbols);
void add_streams(Symbols& symbols);
void add_events(Symbols& symbols);
void add_kernels(Symbols& symbols);

}  // namespace fake
}  // namespace ronde::test
