// SPDX-License-Identifier: Apache-2.0
// The kernels that pack, on as many segments as models have.
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "backends/gpu/driver/memory.h"
#include "tests/support/gpu/machine.h"

namespace {

using namespace ronde;
using namespace ronde::cuda;
using test::Machine;
using test::SharedBytes;

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
  std::vector<KernelSet::Move> pack;
  std::vector<KernelSet::Move> unpack;
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
  machine.kernels.move(machine.stream, pack,
                       {.from = DataType::F32, .to = DataType::F16, .scaling = {0.5, 1.0}});
  machine.stream.fill(tensors.address(), 0, tensors.bytes(), "clearing");
  machine.kernels.move(machine.stream, unpack,
                       {.from = DataType::F16, .to = DataType::F32, .scaling = {2.0, 1.0}});
  const SharedBytes after(machine, 64 << 20);
  machine.stream.copy(after.address(), tensors.address(), tensors.bytes(), "reading");
  machine.finish();
  for (const KernelSet::Move& move : pack) {
    const auto offset = reinterpret_cast<DevicePointer>(move.source) - tensors.address();
    REQUIRE(std::memcmp(after.at(offset), values.at(offset), move.count * 4) == 0);
  }
}

}  // namespace
