// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>

#include "backends/gpu/driver/driver_api.h"

namespace ronde::cuda {

/// CUresult, those that Ronde treats as any other error.
constexpr Result kInvalidValue = 1;
constexpr Result kMapFailed = 205;
constexpr Result kInvalidHandle = 400;
constexpr Result kHostMemoryAlreadyRegistered = 712;
constexpr Result kNotSupported = 801;

}  // namespace ronde::cuda

namespace ronde::test {

/// A CUDA driver without GPUs, for tests of the logic around it: memory is that of the host,
/// streams are queues, and what was opened from an IPC handle has another address than its owner's.
/// Streams can be held, calls can be made to fail, and whatever is acquired is counted.
///
/// Under ThreadSanitizer each stream is a fiber (stream_fiber.h), which nothing orders with threads
/// and other streams but what orders them on a GPU: queueing work, events, words, and asking
/// whether something has passed. So ThreadSanitizer reports a wait that is missing, in whatever
/// order things have run. It knows one process only: ranks that are processes have streams that it
/// does not see together.
///
/// Ranks may be threads: contexts are current for a thread, as in the driver. There is one at a
/// time, for the driver's functions are not members.
///
/// Thread-safety: full.
class FakeCuda {
 public:
  struct Options {
    int devices = 1;
    /// CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE of all memory.
    bool memory_is_ipc_capable = true;
    /// IPC opens the memory of other processes, over fakes of their own, and none of its own; else
    /// the reverse.
    bool processes_share_memory = false;
    /// What IPC opens shows the owner's memory, and not some other.
    bool mappings_show_memory = true;
    /// What others have mapped cannot be freed: the driver does not say what happens then.
    bool freeing_mapped_fails = false;
    /// What streams write to words shows; else it gets lost.
    bool written_words_show = true;
    /// Not 0: work runs late and in any order that streams and events leave, drawn with this seed,
    /// whenever the driver is called, some streams much later than others; else at once.
    unsigned disorder = 0;
  };
  FakeCuda() : FakeCuda(Options{}) {}
  explicit FakeCuda(const Options& options);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  vendor::SymbolLookup lookup() const;
  /// Of a driver that was loaded from it.
  std::shared_ptr<const cuda::DriverApi> api() const;

  /// The calls of `symbol` after the next `skipped` ones fail with `result`, `times` of them.
  void fail(const std::string& symbol, cuda::Result result, int times = 1, int skipped = 0) {
    fail_on(-1, symbol, result, times, skipped);
  }
  /// The same, of calls in a context on this GPU; negative: on any, or in none.
  void fail_on(int device, const std::string& symbol, cuda::Result result, int times = 1,
               int skipped = 0);
  int calls(const std::string& symbol) const;

  /// IPC cannot export the allocation at this address.
  void forbid_ipc(cuda::DevicePointer base);

  /// The streams made on this GPU from now on are held.
  void hold_new(int device);
  /// All streams, and those made from now on.
  void release_all();
  /// Whether all that was queued has run, also on streams that were destroyed.
  bool is_idle() const;
  /// A held stream runs nothing until it is released.
  void hold(cuda::StreamHandle stream);
  void release(cuda::StreamHandle stream);

  /// Work that is queued on the stream belongs to a graph until the capture ends.
  /// While one is captured that waits for the default stream, that one may not be used.
  /// @{
  void begin_capture(cuda::StreamHandle stream, bool waits_for_default = false);
  void end_capture();
  /// @}

  /// Queues what another library does on a stream: asked when the stream comes to it, and whenever
  /// something has run since, until it says that it is over. It must not call the driver.
  cuda::Result queue(cuda::StreamHandle stream, std::function<bool()> is_over);
  /// Something else has changed that such work may wait for.
  void ask_again();

  /// What a kernel does, by the name it is launched with: takes its arguments at the launch, and
  /// returns what runs when the stream comes to it.
  struct Launch {
    unsigned blocks = 0;
    unsigned threads = 0;
    void** arguments = nullptr;
    template <typename T>
    T argument(std::size_t index) const {
      return *static_cast<const T*>(arguments[index]);
    }
  };
  using Kernel = std::function<std::function<void()>(const Launch&)>;
  /// In place of Ronde's own of this name.
  void add_kernel(const std::string& name, Kernel kernel);

  /// What is acquired at the moment.
  struct Live {
    int contexts = 0;  ///< retained
    int streams = 0;
    int events = 0;
    int allocations = 0;
    int host_allocations = 0;
    int host_registrations = 0;
    int mappings = 0;  ///< opened by IPC
    int modules = 0;
    friend bool operator==(const Live&, const Live&) = default;
    friend std::ostream& operator<<(std::ostream& out, const Live& live);
  };
  Live live() const;
  /// Of Live::contexts, those on this GPU: whatever is acquired there keeps one.
  int contexts_on(int device) const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace ronde::test
