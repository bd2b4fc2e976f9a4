// SPDX-License-Identifier: Apache-2.0
// What Ronde relies on in a CUDA driver, on a GPU: flags that streams write and await, and memory
// that another process maps. A comment names what NVIDIA's manual of the Driver API documents.
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "backends/cuda/ipc/registrations.h"
#include "tests/support/gpu/machine.h"
#include "tests/support/processes/command.h"
#include "tests/support/processes/temporary_folder.h"

namespace {

using namespace ronde;
using namespace ronde::cuda;
using test::Machine;
using test::SharedBytes;

/// A word of host memory, for which streams wait and which the host writes.
class Word {
 public:
  explicit Word(Machine& machine) : memory_(machine, sizeof(std::uint32_t)) {}
  DevicePointer address() const { return memory_.address(); }
  void set(std::uint32_t value) const { word().store(value); }
  std::uint32_t value() const { return word().load(); }

 private:
  std::atomic_ref<std::uint32_t> word() const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(memory_.at(0)));
  }

  const SharedBytes memory_;
};

std::byte pattern(std::size_t place, bool is_turned) {
  return is_turned ? ~static_cast<std::byte>(place % 251) : static_cast<std::byte>(place % 251);
}

}  // namespace

// cuStreamWriteValue32: without CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER there is a fence of the
// whole system before the write, for what the stream did before.
TEST_CASE("gpu: a word that a stream writes shows after what was queued before it") {
  constexpr std::size_t kBytes = 1 << 20;
  Machine machine;
  const DeviceMemory memory(machine.context, kBytes);
  const SharedBytes seen(machine, kBytes);
  const Word word(machine);
  for (unsigned char round = 1; round < 50; ++round) {
    machine.stream.fill(memory.address(), round, kBytes, "filling");
    machine.stream.copy(seen.address(), memory.address(), kBytes, "reading");
    machine.stream.write(std::array{word.address()}, round);
    while (word.value() != round) static_cast<void>(machine.stream.is_idle());
    REQUIRE(*seen.at(0) == std::byte{round});
    REQUIRE(*seen.at(kBytes - 1) == std::byte{round});
  }
}

// cuStreamWaitValue32, CU_STREAM_WAIT_VALUE_GEQ: waits until (int32_t)(*addr - value) >= 0.
// cuStreamBatchMemOp: each operation of a batch is for the whole stream.
TEST_CASE("gpu: a wait for words ends once each has come to its value or beyond, cyclically") {
  Machine machine;
  const Event passed(machine.context);
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
  while (!passed.is_done()) std::this_thread::yield();
}

// scripts/gpu_check.sh has to end it, with a backtrace.
TEST_CASE("helper: a gpu waits for what nobody writes", "[.]") {
  Machine machine;
  const Word word(machine);
  machine.stream.wait_for(std::array{word.address()}, 1);
  machine.finish();
}

// Another process, which opens memory of this one twice, closes it once, reads it and turns it
// around, and closes it again; several times.
TEST_CASE("helper: a peer by ipc", "[.ipc]") {
  Machine machine;
  ExportedMemory shown;
  std::ifstream file(std::getenv("RONDE_TEST_FILE"), std::ios::binary);
  file.read(reinterpret_cast<char*>(&shown), sizeof(shown));
  REQUIRE(file);
  const SharedBytes bytes(machine, shown.bytes);
  for (int round = 0; round < 3; ++round) {
    const MappedMemory mapping = map_memory(machine.context, shown, 0);
    const DevicePointer memory = mapping.get() + shown.offset;
    CHECK(map_memory(machine.context, shown, 0).get() == mapping.get());
    machine.stream.copy(bytes.address(), memory, shown.bytes, "reading");
    machine.finish();
    for (std::size_t k = 0; k < shown.bytes; ++k) {
      REQUIRE(*bytes.at(k) == pattern(k, round % 2 == 1));
      *bytes.at(k) = ~*bytes.at(k);
    }
    machine.stream.copy(memory, bytes.address(), shown.bytes, "writing");
    machine.finish();
  }
  CHECK(machine.context->lost() == 0);
}

// cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_BUFFER_ID: unique in a process, and not used again.
// cuIpcGetMemHandle: a handle is of the whole allocation. cuIpcOpenMemHandle: a context that opens
// a handle again gets the same address, and unmaps it once it has closed it as often.
TEST_CASE("gpu: ipc shows memory to another process, and the next allocation at its address") {
  constexpr std::size_t kShown = 100'000;
  Machine machine;
  const SharedBytes bytes(machine, kShown);
  const test::TemporaryFolder folder;
  const std::string path = folder / "memory";
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
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(&*shown), sizeof(*shown));
    const auto peer =
        test::run_program({"/proc/self/exe", "helper: a peer by ipc"}, {{"RONDE_TEST_FILE", path}});
    INFO(peer.out << peer.err);
    REQUIRE(peer.exit_code == 0);
    machine.stream.copy(bytes.address(), part, kShown, "reading");
    machine.finish();
    for (std::size_t k = 0; k < kShown; ++k) REQUIRE(*bytes.at(k) == pattern(k, true));
  }
  CHECK(machine.context->lost() == 0);
}
