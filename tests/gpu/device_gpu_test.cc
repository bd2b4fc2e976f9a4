// SPDX-License-Identifier: Apache-2.0
// Streams, memory and IPC on a GPU.
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/kernel_image.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/registrations.h"
#include "gpu_driver.h"
#include "machine.h"
#include "tests/support/command.h"
#include "tests/support/temporary_folder.h"

namespace {

using namespace ronde;
using namespace ronde::cuda;
using test::Machine;
using test::SharedBytes;

constexpr std::size_t kLarge = 256 << 20;

void fill(Machine& machine, const Stream& stream, const DeviceMemory& memory, unsigned char value) {
  const Current current(*machine.context);
  check(machine.context->api(), "filling", machine.context->api().fill, memory.address(), value,
        memory.bytes(), stream.handle());
}

TEST_CASE("gpu: streams wait for each other by events, while the host goes on") {
  Machine machine;
  Stream other(machine.context);
  const DeviceMemory source(machine.context, kLarge);
  const DeviceMemory target(machine.context, kLarge);
  const SharedBytes result(machine, 16);
  for (unsigned char round = 1; round < 20; ++round) {
    // 256 MiB take longer to fill than the calls below take to be made.
    fill(machine, other, source, round);
    machine.stream.run_after(other.handle(), machine.events);
    machine.stream.copy(target.address(), source.address(), kLarge, "copying");
    machine.stream.copy(result.address(), target.address() + kLarge - 16, 16, "copying");
    machine.stream.run_before(other.handle(), machine.events);
    machine.finish();
    for (std::size_t i = 0; i < 16; ++i) {
      REQUIRE(std::to_integer<unsigned>(*result.at(i)) == round);
    }
  }
  CHECK(machine.events.counts().made <= 3);
  CHECK(machine.context->lost() == 0);
}

TEST_CASE("gpu: memory that was freed is another allocation at its address") {
  Machine machine;
  std::uint64_t last = 0;
  for (int i = 0; i < 10; ++i) {
    const DeviceMemory memory(machine.context, 4 << 20);
    const auto exported = export_memory(*machine.context, memory.address() + 100, 50);
    REQUIRE(exported);
    CHECK(exported->base == memory.address());
    CHECK(exported->offset == 100);
    CHECK(exported->size >= 4 << 20);
    CHECK(exported->buffer_id != last);
    last = exported->buffer_id;
  }
  CHECK(machine.context->lost() == 0);
}

TEST_CASE("gpu: host memory of the program is page-locked once at a time") {
  Machine machine;
  std::vector<char> memory(8 << 20);
  {
    const PinnedRange range(machine.context, memory.data(), memory.size());
    try {
      const PinnedRange again(machine.context, memory.data(), 4096);
      FAIL("it did not throw");
    } catch (const DriverError& error) {
      CHECK(error.result() == kHostMemoryAlreadyRegistered);
    }
  }
  const PinnedRange range(machine.context, memory.data(), memory.size());
  CHECK(machine.context->lost() == 0);
}

/// The peer: maps the memory of the file that the environment names, and turns every byte around.
TEST_CASE("helper: gpu memory of another process is mapped", "[.ipc]") {
  Machine machine;
  std::ifstream file(std::getenv("RONDE_TEST_FILE"), std::ios::binary);
  ExportedMemory shown;
  file.read(reinterpret_cast<char*>(&shown), sizeof(shown));
  REQUIRE(file);
  RegistrationCache cache(true, std::size_t{1} << 40);
  const auto handles = std::make_shared<OpenHandles>();
  for (int i = 0; i < 3; ++i) {
    const auto mapped = map_memory(cache, handles, machine.context, shown, 0);
    const SharedBytes bytes(machine, shown.bytes);
    machine.stream.copy(bytes.address(), mapped->address_of(shown), shown.bytes, "reading");
    machine.finish();
    for (std::size_t k = 0; k < shown.bytes; ++k) {
      REQUIRE(std::to_integer<std::size_t>(*bytes.at(k)) == (i % 2 == 0 ? k % 251 : 255 - k % 251));
      *bytes.at(k) = ~*bytes.at(k);
    }
    machine.stream.copy(mapped->address_of(shown), bytes.address(), shown.bytes, "writing");
    machine.finish();
  }
  cache.clear();
  CHECK(machine.context->lost() == 0);
}

TEST_CASE("gpu: ipc shows memory to another process, which writes it") {
  Machine machine;
  constexpr std::size_t kBytes = 100000;
  const DeviceMemory memory(machine.context, 1 << 20);
  const SharedBytes bytes(machine, kBytes);
  for (std::size_t k = 0; k < kBytes; ++k) *bytes.at(k) = static_cast<std::byte>(k % 251);
  const DevicePointer part = memory.address() + 4096;
  machine.stream.copy(part, bytes.address(), kBytes, "writing");
  machine.finish();
  const auto shown = export_memory(*machine.context, part, kBytes);
  REQUIRE(shown);
  const test::TemporaryFolder folder;
  const std::string path = folder / "memory";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(&*shown), sizeof(*shown));
  const auto peer =
      test::run_program({"/proc/self/exe", "helper: gpu memory of another process is mapped"},
                        {{"RONDE_TEST_FILE", path}});
  INFO(peer.out << peer.err);
  REQUIRE(peer.exit_code == 0);
  machine.stream.copy(bytes.address(), part, kBytes, "reading");
  machine.finish();
  for (std::size_t k = 0; k < kBytes; ++k) {
    REQUIRE(std::to_integer<std::size_t>(*bytes.at(k)) == 255 - k % 251);
  }
}

TEST_CASE("gpu: hundreds of segments of device memory are packed and unpacked") {
  Machine machine;
  constexpr std::size_t kSegments = 161;
  const DeviceMemory tensors(machine.context, 64 << 20);
  const DeviceMemory buffer(machine.context, 64 << 20);
  const SharedBytes values(machine, 64 << 20);
  for (std::size_t i = 0; i < (64 << 20) / 4; ++i) {
    const auto value = static_cast<float>(i % 2048);  // exact in f16, and by half and twice
    std::memcpy(values.at(4 * i), &value, 4);
  }
  machine.stream.copy(tensors.address(), values.address(), tensors.bytes(), "writing");
  std::vector<SegmentMover::Move> pack;
  std::vector<SegmentMover::Move> unpack;
  std::size_t at = 0;
  std::size_t packed = 0;
  for (std::size_t i = 0; i < kSegments; ++i) {
    const std::size_t count = (i * 7919) % 99991 + 1;
    void* const tensor = reinterpret_cast<void*>(tensors.address() + at);
    void* const place = reinterpret_cast<void*>(buffer.address() + packed);
    pack.push_back({tensor, place, count});
    unpack.push_back({place, tensor, count});
    at += count * 4 + 64 - (count * 4) % 64 + (i % 3) * 4;
    packed += count * 2;
  }
  REQUIRE(at < tensors.bytes());
  machine.mover.move(pack, {.from = DataType::F32, .to = DataType::F16, .scaling = {0.5, 1.0}});
  fill(machine, machine.stream, tensors, 0);
  machine.mover.move(unpack, {.from = DataType::F16, .to = DataType::F32, .scaling = {2.0, 1.0}});
  const SharedBytes after(machine, 64 << 20);
  machine.stream.copy(after.address(), tensors.address(), tensors.bytes(), "reading");
  machine.finish();
  for (const SegmentMover::Move& move : pack) {
    const auto offset = reinterpret_cast<DevicePointer>(move.source) - tensors.address();
    REQUIRE(std::memcmp(after.at(offset), values.at(offset), move.count * 4) == 0);
  }
}

}  // namespace
