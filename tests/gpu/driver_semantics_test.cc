// SPDX-License-Identifier: Apache-2.0
// What Ronde relies on in a CUDA driver, a case each: cuda_tests runs them over the fake, gpu_tests
// on a GPU. A comment says where NVIDIA documents the behaviour (functions are those of the CUDA
// Driver API's manual), or that it does not.
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "backends/cuda/ipc/registrations.h"
#include "backends/gpu/driver/memory.h"
#include "tests/support/gpu/machine.h"
#include "tests/support/processes/command.h"
#include "tests/support/processes/temporary_folder.h"

namespace {

using namespace ronde;
using namespace ronde::cuda;
using test::Machine;
using test::SharedBytes;

constexpr std::size_t kBytes = 1 << 20;

void until_done(const Event& event) {
  while (!event.is_done()) std::this_thread::yield();
}

/// A word of host memory, for which streams wait and which the host writes. While one waits nothing
/// may be allocated: that may wait for the device.
class Word {
 public:
  explicit Word(Machine& machine) : memory_(machine, sizeof(std::uint32_t)) {}
  /// Lets all go on, also where a case fails; waits are for 1 then.
  ~Word() { set(1); }
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;

  DevicePointer address() const { return memory_.address(); }
  void hold(Stream& stream, std::uint32_t until = 1) const {
    stream.wait_for(std::array{address()}, until);
  }
  void set(std::uint32_t value) const { word().store(value); }
  std::uint32_t value() const { return word().load(); }

 private:
  std::atomic_ref<std::uint32_t> word() const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(memory_.at(0)));
  }

  const SharedBytes memory_;
};

/// A GPU, memory of it, and as much that the host reaches, too.
struct WithMemory : Machine {
  const DeviceMemory memory{context, kBytes};
  const SharedBytes seen{*this, kBytes};
};

void fill(const Machine& machine, StreamHandle stream, const DeviceMemory& memory,
          unsigned char value) {
  machine.context->call("filling", &DriverApi::fill, memory.address(), value, memory.bytes(),
                        stream);
}

/// What is queued on `second` from now on runs after all that is queued on `first` now.
void order(Machine& machine, StreamHandle first, StreamHandle second) {
  const Event event = machine.events.take();
  machine.context->call("recording", &DriverApi::event_record, event.handle(), first);
  machine.context->call("waiting", &DriverApi::stream_wait_event, second, event.handle(), 0U);
}

/// A stream of the program's with these flags.
class ProgramStream {
 public:
  ProgramStream(const Machine& machine, unsigned flags) : context_(machine.context) {
    context_->call("making a stream", &DriverApi::stream_create, &handle_, flags, 0);
  }
  ~ProgramStream() { context_->release(context_->api().stream_destroy, handle_); }
  ProgramStream(const ProgramStream&) = delete;
  ProgramStream& operator=(const ProgramStream&) = delete;

  StreamHandle handle() const { return handle_; }

 private:
  const std::shared_ptr<const DeviceContext> context_;
  StreamHandle handle_ = nullptr;
};

std::byte pattern(std::size_t place, bool is_turned) {
  return is_turned ? ~static_cast<std::byte>(place % 251) : static_cast<std::byte>(place % 251);
}

/// What another process does with memory of this one, several times: it opens it twice, closes it
/// once, reads it and turns it around, and closes it again.
void be_peer(Machine& machine, const ExportedMemory& shown) {
  const DriverApi& api = machine.context->api();
  const Current current(*machine.context);
  const SharedBytes bytes(machine, shown.bytes);
  for (int round = 0; round < 3; ++round) {
    DevicePointer base = 0;
    DevicePointer again = 0;
    REQUIRE(api.ipc_open_memory(&base, shown.handle, kIpcLazyEnablePeerAccess) == kSuccess);
    REQUIRE(api.ipc_open_memory(&again, shown.handle, kIpcLazyEnablePeerAccess) == kSuccess);
    CHECK(again == base);
    REQUIRE(api.ipc_close_memory(again) == kSuccess);
    machine.stream.copy(bytes.address(), base + shown.offset, shown.bytes, "reading");
    machine.finish();
    for (std::size_t k = 0; k < shown.bytes; ++k) {
      REQUIRE(*bytes.at(k) == pattern(k, round % 2 == 1));
      *bytes.at(k) = ~*bytes.at(k);
    }
    machine.stream.copy(base + shown.offset, bytes.address(), shown.bytes, "writing");
    machine.finish();
    REQUIRE(api.ipc_close_memory(base) == kSuccess);
    CHECK(api.ipc_close_memory(base) != kSuccess);
  }
}

TEST_CASE("helper: a peer by ipc", "[.ipc]") {
  Machine machine;
  std::ifstream file(std::getenv("RONDE_TEST_FILE"), std::ios::binary);
  ExportedMemory shown;
  file.read(reinterpret_cast<char*>(&shown), sizeof(shown));
  REQUIRE(file);
  be_peer(machine, shown);
}

void run_peer(Machine& machine, const ExportedMemory& shown) {
  if (machine.is_fake()) return be_peer(machine, shown);
  const test::TemporaryFolder folder;
  const std::string path = folder / "memory";
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(&shown), sizeof(shown));
  const auto peer =
      test::run_program({"/proc/self/exe", "helper: a peer by ipc"}, {{"RONDE_TEST_FILE", path}});
  INFO(peer.out << peer.err);
  REQUIRE(peer.exit_code == 0);
}

}  // namespace

// cuEventRecord, cuStreamWaitEvent.
TEST_CASE("cuda driver: streams are ordered by events, while the host goes on") {
  Machine machine;
  Stream framework(machine.context);
  Stream own(machine.context);
  const DeviceMemory source(machine.context, kBytes);
  const DeviceMemory target(machine.context, kBytes);
  const SharedBytes result(machine, kBytes);
  const Event done = machine.events.take();
  for (unsigned char round = 1; round < 20; ++round) {
    const Word word(machine);
    word.hold(framework);
    fill(machine, framework.handle(), source, round);
    order(machine, framework.handle(), own.handle());
    own.copy(target.address(), source.address(), kBytes, "copying");
    order(machine, own.handle(), framework.handle());
    framework.copy(result.address(), target.address(), kBytes, "reading");
    framework.record(done);
    CHECK_FALSE(done.is_done());
    CHECK_FALSE(own.is_idle());
    word.set(1);
    until_done(done);
    REQUIRE(*result.at(0) == std::byte{round});
    REQUIRE(*result.at(kBytes - 1) == std::byte{round});
  }
}

// cuEventQuery: an event that was never recorded is done. cuEventRecord: a call on an event
// replaces its state. cuStreamWaitEvent: a wait is for the state at the time of the call.
TEST_CASE("cuda driver: an event is its last recording, and a wait takes the last one before it") {
  Machine machine;
  Stream waiting(machine.context);
  const Event event = machine.events.take();
  const Event passed = machine.events.take();
  CHECK(event.is_done());
  const Word first(machine);
  const Word second(machine);
  first.hold(machine.stream);
  machine.stream.record(event);
  waiting.wait_for(event);
  waiting.record(passed);
  second.hold(machine.stream);
  machine.stream.record(event);
  CHECK_FALSE(passed.is_done());
  first.set(1);
  until_done(passed);
  CHECK_FALSE(event.is_done());
  second.set(1);
  until_done(event);
}

// cuStreamDestroy: returns at once, and resources are released once the device has done the work.
TEST_CASE_METHOD(WithMemory,
                 "cuda driver: work on a stream that is destroyed runs on, behind its waits") {
  const Event done = events.take();
  fill(*this, stream.handle(), memory, 5);
  finish();
  const Word word(*this);
  {
    Stream destroyed(context);
    word.hold(destroyed);
    destroyed.copy(seen.address(), memory.address(), kBytes, "copying");
    destroyed.record(done);
  }
  CHECK_FALSE(done.is_done());
  CHECK(*seen.at(0) == std::byte{0});
  word.set(1);
  until_done(done);
  CHECK(*seen.at(kBytes - 1) == std::byte{5});
}

// "Stream synchronization behavior" of the manual: what is queued on the legacy default stream
// waits for all streams but those made with CU_STREAM_NON_BLOCKING, and these wait for it.
TEST_CASE_METHOD(
    WithMemory, "cuda driver: the legacy default stream and blocking streams wait for each other") {
  const bool default_is_first = GENERATE(true, false);
  const ProgramStream blocking(*this, 0);
  const StreamHandle first = default_is_first ? nullptr : blocking.handle();
  const StreamHandle second = default_is_first ? blocking.handle() : nullptr;
  const DeviceMemory other(context, kBytes);
  Stream after(context);
  Stream beside(context);
  const Event second_done = events.take();
  const Event beside_done = events.take();
  const Word word(*this);
  word.hold(stream);
  order(*this, stream.handle(), first);
  fill(*this, first, memory, 1);
  fill(*this, second, memory, 2);
  order(*this, second, after.handle());
  after.copy(seen.address(), memory.address(), kBytes, "reading");
  after.record(second_done);
  fill(*this, beside.handle(), other, 3);
  beside.record(beside_done);
  until_done(beside_done);
  CHECK_FALSE(second_done.is_done());
  word.set(1);
  until_done(second_done);
  CHECK(*seen.at(kBytes - 1) == std::byte{2});
}

// cuThreadExchangeStreamCaptureMode: the mode is the thread's.
TEST_CASE("cuda driver: calls leave a thread's mode for graph captures as it was") {
  constexpr int kGlobal = 0;
  constexpr int kThreadLocal = 1;
  const Machine machine;
  const DriverApi& api = machine.context->api();
  const auto exchange = [&](int mode) {
    check(api, "asking for the mode", api.exchange_capture_mode, &mode);
    return mode;
  };
  CHECK(exchange(kThreadLocal) == kGlobal);
  {
    const Current current(*machine.context);
    CHECK(exchange(kCaptureRelaxed) == kCaptureRelaxed);
  }
  CHECK(exchange(kGlobal) == kThreadLocal);
}

// cuStreamWriteValue32: without CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER there is a fence of the
// whole system before the write, for what the stream did before.
TEST_CASE_METHOD(WithMemory,
                 "cuda driver: a word that a stream writes shows after what was queued before it") {
  const Word word(*this);
  for (unsigned char round = 1; round < 50; ++round) {
    fill(*this, stream.handle(), memory, round);
    stream.copy(seen.address(), memory.address(), kBytes, "reading");
    stream.write(std::array{word.address()}, round);
    while (word.value() != round) static_cast<void>(stream.is_idle());
    REQUIRE(*seen.at(0) == std::byte{round});
    REQUIRE(*seen.at(kBytes - 1) == std::byte{round});
  }
}

// cuStreamWaitValue32, CU_STREAM_WAIT_VALUE_GEQ: waits until (int32_t)(*addr - value) >= 0.
// cuStreamBatchMemOp: each operation of a batch is for the whole stream.
TEST_CASE(
    "cuda driver: a wait for words ends once each has come to its value or beyond, cyclically") {
  Machine machine;
  const Event passed = machine.events.take();
  const Word counting(machine);
  const Word plain(machine);
  counting.set(0xFFFFFFFE);
  machine.stream.wait_for(std::array{counting.address(), plain.address()}, 1);
  machine.stream.record(passed);
  plain.set(1);
  CHECK_FALSE(passed.is_done());
  counting.set(0xFFFFFFFF);
  CHECK_FALSE(passed.is_done());
  counting.set(7);
  until_done(passed);
}

// "API synchronization behavior" of the manual: pageable memory is copied aside before the call
// returns.
TEST_CASE_METHOD(WithMemory,
                 "cuda driver: pageable memory has been read once a copy from it returns") {
  std::vector<std::byte> values(kBytes, std::byte{1});
  stream.copy(memory.address(), reinterpret_cast<DevicePointer>(values.data()), kBytes, "writing");
  values.assign(kBytes, std::byte{2});
  stream.copy(seen.address(), memory.address(), kBytes, "reading");
  finish();
  CHECK(*seen.at(0) == std::byte{1});
  CHECK(*seen.at(kBytes - 1) == std::byte{1});
}

// cuMemHostRegister: CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED.
TEST_CASE("cuda driver: host memory of the program is page-locked once at a time") {
  Machine machine;
  std::vector<char> memory(8 << 20);
  {
    const PinnedRange range(machine.context, memory.data(), memory.size());
    try {
      const PinnedRange again(machine.context, memory.data(), 4096);
      FAIL("it did not throw");
    } catch (const DriverError& error) {
      CHECK(error.result() == 712);
    }
  }
  const PinnedRange range(machine.context, memory.data(), memory.size());
  CHECK(machine.context->lost() == 0);
}

// cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_BUFFER_ID: unique in a process, and not used again
// for later allocations. cuIpcGetMemHandle: a handle is of the whole allocation.
// cuIpcOpenMemHandle: a context that opens a handle again gets the same address, and what it has
// opened is unmapped once it has closed it as often (cuIpcCloseMemHandle). It shows the exporter's
// memory, also where that was freed and allocated again meanwhile. The result of a handle whose
// memory was freed is not documented, and Ronde opens none.
TEST_CASE("gpu: ipc shows memory to another process, and the next allocation at its address") {
  Machine machine;
  constexpr std::size_t kShown = 100'000;
  const SharedBytes bytes(machine, kShown);
  std::uint64_t last = 0;
  for (int round = 0; round < 3; ++round) {
    const DeviceMemory memory(machine.context, 4 << 20);
    const DevicePointer part = memory.address() + 4096;
    const auto shown = export_memory(*machine.context, part, kShown);
    REQUIRE(shown);
    CHECK(shown->base == memory.address());
    CHECK(shown->offset == 4096);
    CHECK(shown->size >= memory.bytes());
    CHECK(shown->buffer_id != last);
    last = shown->buffer_id;
    for (std::size_t k = 0; k < kShown; ++k) *bytes.at(k) = pattern(k, false);
    machine.stream.copy(part, bytes.address(), kShown, "writing");
    machine.finish();
    run_peer(machine, *shown);
    machine.stream.copy(bytes.address(), part, kShown, "reading");
    machine.finish();
    for (std::size_t k = 0; k < kShown; ++k) REQUIRE(*bytes.at(k) == pattern(k, true));
  }
  CHECK(machine.context->lost() == 0);
}

// Not documented. Ranks that share a process, as the fake's do, have no CUDA IPC on a GPU.
TEST_CASE("cuda driver: ipc opens no memory of its own process") {
  const Machine machine;
  if (machine.is_fake()) return;
  const DeviceMemory memory(machine.context, 4 << 20);
  const auto shown = export_memory(*machine.context, memory.address(), 1);
  REQUIRE(shown);
  const Current current(*machine.context);
  DevicePointer base = 0;
  CHECK(machine.context->api().ipc_open_memory(&base, shown->handle, kIpcLazyEnablePeerAccess) !=
        kSuccess);
}
