// SPDX-License-Identifier: Apache-2.0
// What every target has beside libFuzzer: valid inputs that must be taken, a small stack, and
// mutations that libFuzzer would not find soon.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

#include "tests/sweeps/fuzz/decoders/fuzz_target.h"

namespace ronde::fuzz {
namespace {

/// The longest input that nests in itself has more levels than fit.
constexpr rlim_t kStackBytes = rlim_t{512} << 10;

const std::vector<std::string>& valid() {
  static const std::vector<std::string> inputs = valid_inputs();
  return inputs;
}

/// What nests in itself nests deeply if its head is repeated.
void repeat(std::string& bytes, std::size_t at, std::size_t length, std::size_t most) {
  const std::string piece = bytes.substr(at, length);
  std::string pieces;
  while (bytes.size() + pieces.size() + piece.size() <= most) pieces += piece;
  bytes.insert(at, pieces);
}

}  // namespace
}  // namespace ronde::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ronde::fuzz::take({reinterpret_cast<const char*>(data), size});
  return 0;
}

extern "C" int LLVMFuzzerInitialize(int*, char*** arguments) {
  using namespace ronde::fuzz;
  ::dprintf(told, "An input that fails is repeated by: %s FILE\n", (*arguments)[0]);
  const rlimit stack = {kStackBytes, RLIM_INFINITY};
  require(::setrlimit(RLIMIT_STACK, &stack) == 0, "the stack's limit is lowered");
  for (const std::string& input : valid()) {
    require(take(input), "a valid input is taken");
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  using namespace ronde::fuzz;
  std::string bytes(data, data + size);
  const unsigned choice = seed % 64;
  seed /= 64;
  if (choice == 0) bytes = valid()[seed % valid().size()];
  if (choice == 1 && size > 0) repeat(bytes, seed % size, 1 + seed / size % 64, most);
  size = std::min(bytes.size(), most);
  std::copy_n(bytes.begin(), size, data);
  return LLVMFuzzerMutate(data, size, most);
}
